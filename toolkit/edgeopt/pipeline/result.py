"""The result of `optimize` as a value, JSON and Markdown."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeopt.errors import EXIT_INCONCLUSIVE, EXIT_MISSED, EXIT_NOISY, EXIT_PASS, InvalidFileError, Note
from edgeopt.measurement.stage_time import StageTime
from edgeopt.pipeline.candidate import BASELINE, Candidate
from edgeopt.report.page import render
from edgeopt.steps.quantize.inspection.table import COLUMNS, TENSORS, worst_tensors
from edgeopt.system.environment import Environment
from edgeopt.system.text import format_bytes, short
from edgeopt.system.toml import parse_table, read_object

SCHEMA = 3
_SHOWN_FROM = 0.01
"""Share of the frame from which a stage gets a column."""
_VERDICT_EXIT = {
    "PASS": EXIT_PASS,
    "FAIL": EXIT_MISSED,
    "INCONCLUSIVE": EXIT_INCONCLUSIVE,
    "NOISY": EXIT_NOISY,
    "INVALID": EXIT_NOISY,
}


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that one run of `optimize` found."""

    model: str
    model_sha256: str
    recipe: str
    recipe_reason: str
    target: str
    environment: Environment
    threads: int
    budget_ms: float
    budget_asked: bool
    max_drop: float
    metric: str
    candidates: tuple[Candidate, ...]
    chosen: str
    reason: str
    folder: Path
    bundle: Path
    calibrated_on: str
    notes: tuple[Note, ...]
    untimed: str = ""
    """Why nothing was measured; empty where it was."""
    foreign_runtime: str = ""
    """What runs the model on the device where edgeopt does not; empty where it does."""
    measured_on: str = ""
    """The processor of the device that brought the chosen candidate's latency; empty: the machine of the report."""
    off_target: str = ""
    """Why nothing runs on the target's own device; empty where the chosen candidate does."""
    trust: str = ""
    """TRUSTED, or NOISY or INVALID with the reasons; empty where nothing was measured."""

    def __post_init__(self) -> None:
        if [one.name for one in self.candidates].count(self.chosen) != 1:
            raise ValueError(f"chosen {short(self.chosen)} is none of the candidates")
        if self.verdict not in _VERDICT_EXIT:
            raise ValueError(f"the verdict is {short(self.verdict)}")

    @property
    def best(self) -> Candidate:
        """The chosen candidate."""
        return next(one for one in self.candidates if one.name == self.chosen)

    @property
    def verdict(self) -> str:
        """PASS, FAIL or INCONCLUSIVE by the budget; NOISY or INVALID where the machine closes the gate."""
        if self.best.latency is None:
            return "INCONCLUSIVE"
        return self._noise if self._noise and self.budget_asked else self.best.latency.verdict

    @property
    def _noise(self) -> str:
        """NOISY or INVALID; empty where the machine was quiet, or nothing was measured."""
        level = self.trust.partition(";")[0]
        return "" if level == "TRUSTED" else level

    @property
    def exit_code(self) -> int:
        """0, 2, 3 or 4; a budget that nobody asked for fails nothing, a device that runs nothing does."""
        if self.off_target:
            tried = any(one.profile and one.refused for one in self.candidates)
            return EXIT_MISSED if tried else EXIT_INCONCLUSIVE
        return _VERDICT_EXIT[self.verdict] if self.budget_asked else EXIT_PASS

    @property
    def verdict_line(self) -> str:
        """The verdict in one sentence, with what a larger file and a noisy machine mean for it."""
        if self.best.latency is None:
            return f"latency: not measured ({self.untimed}); {self.how_to_measure}"
        undecided = self.verdict != self.best.latency.verdict
        found = f"a noisy machine decides no budget; seen: {self.best.latency.detail}"
        parts = [f"{self.verdict}: {found if undecided else self.best.latency.detail}", self._larger]
        if self._noise and not undecided:
            parts.append(f"the machine was {self._noise}: believe no close figure")
        if not self.budget_asked and self.verdict != "PASS":
            parts.append("that is the target's budget, --budget makes it a gate")
        return "; ".join(part for part in parts if part)

    @property
    def _larger(self) -> str:
        """How much larger the chosen file is than the original; empty where it is not."""
        size, was = self.best.size_bytes, self.candidates[0].size_bytes
        if size <= was:
            return ""
        return f"the file is {size / was:.2f} times the original's size ({format_bytes(size)}, was {format_bytes(was)})"

    @property
    def how_to_measure(self) -> str:
        """What to do on the device for the missing latency."""
        if self.foreign_runtime:
            return f"on the device: {self.foreign_runtime}, edgeopt does not run there"
        return f"on the device: edgeopt bench {self.bundle}"

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        values = dataclasses.asdict(self)
        values |= {"schema": SCHEMA, "folder": str(self.folder), "bundle": str(self.bundle), "verdict": self.verdict}
        return values


def table_columns(report: Report) -> tuple[str, ...]:
    """Return the heads of the table: stages that take time in any candidate, then the frame."""
    return (
        "candidate",
        "size",
        report.metric,
        *_device_columns(report),
        "drop",
        "speed",
        *(f"{stage} p50/p99" for stage in shown_stages(report)),
        "frame p50/p99",
        f"budget {report.budget_ms:.1f} ms",
        "",
    )


def _device_columns(report: Report) -> tuple[str, ...]:
    """Return the head of the column for the device's own numbers, where a candidate has them."""
    if not any(one.simulated for one in report.candidates):
        return ()
    return (f"{report.metric} {'simulated' if report.untimed else 'on device'}",)


def shown_stages(report: Report) -> tuple[str, ...]:
    """Return the stages worth a column: on a CPU upload and download take next to nothing."""
    stages: dict[str, bool] = {}
    for one in report.candidates:
        for name, time in (one.latency.stages if one.latency else {}).items():
            whole = one.latency.frame.p50_ms if one.latency else None
            stages[name] = stages.get(name, False) or (time.p50_ms or 0.0) >= _SHOWN_FROM * (whole or 0.0)
    return tuple(name for name, takes in stages.items() if takes)


def table_rows(report: Report) -> tuple[tuple[str, ...], ...]:
    """Return one row a candidate, as text."""
    stages = shown_stages(report)
    return tuple(_row(one, report, stages) for one in report.candidates)


def _row(one: Candidate, report: Report, stages: Sequence[str]) -> tuple[str, ...]:
    latency = one.latency
    times = [latency.stages.get(name) for name in stages] if latency else [None] * len(stages)
    mark = "chosen" if one.name == report.chosen else ("front" if one.on_front else "")
    return (
        one.name,
        format_bytes(one.size_bytes),
        f"{one.score.value:.4f}" if one.score else f"agree {one.agreement:.3f}" if one.agreement is not None else "n/a",
        *((f"{one.simulated.value:.4f}" if one.simulated else "",) if _device_columns(report) else ()),
        "" if one.name == BASELINE or one.drop is None else f"{one.drop:+.4f} {one.drop_interval}".rstrip(),
        "1.00x" if one.name == BASELINE else _speed(one),
        *(_times(time) for time in times),
        _times(latency.frame) if latency else "not measured",
        latency.verdict if latency else "INCONCLUSIVE",
        f"{mark} refused: {one.refused}".strip() if one.refused else mark,
    )


def _speed(one: Candidate) -> str:
    return f"{one.speed} {one.speed.verdict}" if one.speed else "not measured"


def _times(time: StageTime | None) -> str:
    if time is None:
        return "n/a"
    return " / ".join("n/a" if value is None else f"{value:.2f}" for value in (time.p50_ms, time.p99_ms))


def read_report(folder: Path) -> Report:
    """Return the report that `write_report` wrote into an output folder.

    Raises:
        InvalidFileError: If there is none, it is damaged, or of another version.
    """
    path = folder / "report.json"
    remedy = "name the output folder of edgeopt optimize"
    values = read_object(path, schema=SCHEMA, remedy=remedy)
    known = {key: value for key, value in values.items() if key not in ("schema", "folder", "bundle", "verdict")}
    where = f"{path} is no report of edgeopt optimize"
    try:
        return parse_table(Report, known, where, {"folder": folder, "bundle": folder / "bundle"})
    except InvalidFileError as error:
        raise InvalidFileError(error.problem, remedy=remedy) from error


def write_report(report: Report) -> tuple[Path, Path]:
    """Write `report.json` and `report.md` into the output folder; return both paths.

    Raises:
        InvalidFileError: If the folder is not writable or the disk is full.
    """
    from edgeopt.system.files import write_beside

    data, text = report.folder / "report.json", report.folder / "report.md"
    write_beside(data, json.dumps(report.as_json(), indent=2, allow_nan=False) + "\n")
    write_beside(text, render_markdown(report))
    return data, text


def render_markdown(report: Report) -> str:
    """Return the report as Markdown."""
    picture = "boxes.png" if (report.folder / "boxes.png").is_file() else ""
    return render(
        "report.md.jinja",
        report=report,
        columns=table_columns(report),
        rows=table_rows(report),
        picture=picture,
        facts=_facts(report),
        tensor_columns=COLUMNS,
        tensors=_worst_tensors(report),
    )


def _worst_tensors(report: Report) -> tuple[tuple[str, ...], ...]:
    """Return rows for the tensors that suffer most in the chosen INT8 candidate, or else in one nearest to it."""
    near = sorted(report.candidates, key=lambda one: (one is not report.best, one.profile != report.best.profile))
    files = [(report.folder / one.file).with_name(TENSORS) for one in near]  # one file for all of an engine's search
    return next((rows for file in files if (rows := worst_tensors(file))), ())


def _facts(report: Report) -> Mapping[str, str]:
    machine = report.environment
    return {
        "recipe": f"{report.recipe} ({report.recipe_reason})",
        "target": f"{report.target}, {report.threads} thread(s)",
        "machine": f"{machine.cpu}, {machine.architecture}, {machine.cores} core(s): {', '.join(machine.instructions)}",
        "software": f"{machine.system}, Python {machine.python}, "
        + ", ".join(f"{name} {version}" for name, version in machine.packages.items()),
        "calibration": report.calibrated_on,
        **({"latency": f"measured on {report.measured_on}"} if report.measured_on else {}),
        "fingerprint": machine.hash,
    }
