"""The result of `optimize` whatever was optimized: what every report has, its one JSON form, and how that is read."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from edgeopt.errors import EXIT_INCONCLUSIVE, EXIT_INTERRUPTED, EXIT_OF, EXIT_PASS, InvalidFileError, Note
from edgeopt.measurement.accuracy.judgement import Word
from edgeopt.measurement.resources.trust import TrustLevel, read_trust, told_trust, undecided, warning_of
from edgeopt.measurement.statistics.ratio import Ratio
from edgeopt.optimization.candidate import Candidate, Latency
from edgeopt.report.result import HEAD, SCHEMA, Result, fields_as_json
from edgeopt.system.machine.environment import Environment, Fact, Use
from edgeopt.system.text import format_bytes, short
from edgeopt.system.toml import parse_table, read_object
from edgeopt.tasks import Accuracy

RESULT = "report.json"
NOT_THE_TARGET = "this machine is not the target"
"""Begins the reason why nothing was timed on this machine."""
_WITHOUT_HEAD = 4
"""Schema of reports of older versions, of any kind, with the same fields as today but no head before them."""
_OLDER = (("frames", 3), ("generation", 1), ("pipeline", 1))
"""Kinds and schemas of reports of still older versions that are read."""
_RENAMED = {
    "generation": {"forms": "candidates", "max_rise": "max_drop", "calibration": "calibrated_on"},
    "pipeline": {"pipeline": "model", "may_lose": "max_drop"},
}
"""Fields of such reports by kind, with their names of today."""
_REMEDY = "name the output folder of edgeopt optimize"


class Reported(Protocol):
    """A candidate of any kind, as far as every report asks for it."""

    @property
    def name(self) -> str:
        """Its name in the report."""
        ...

    @property
    def size_bytes(self) -> int:
        """Size of its model."""
        ...

    @property
    def word(self) -> str:
        """The proof of its accuracy: KEPT, LOST, NOT DECIDED, AGREES or DIFFERS; empty: nothing was judged."""
        ...


C = TypeVar("C", bound=Reported)
R = TypeVar("R", bound="Report[Any]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(Result, Generic[C]):
    """One run of `optimize`; a kind of workload adds its own facts in a dataclass below this one."""

    command: ClassVar[str] = "optimize"
    kind: ClassVar[str]
    """Name of the kind of workload."""
    derived: ClassVar[tuple[str, ...]] = ()
    """Names of properties that the file tells too; they are not read back."""

    model: str
    """Name of what was optimized."""
    target: str
    environment: Environment
    """The machine that measured, and its software."""
    threads: int
    """Threads of the engine; 0: not recorded."""
    metric: str
    """The measure of accuracy: a metric on labels, `agreement`, `perplexity`."""
    max_drop: float
    """Loss that is allowed, in the metric's own unit; of the perplexity the rise, as a share."""
    candidates: tuple[C, ...]
    """The original first."""
    chosen: str
    """Name of the candidate in the bundle."""
    reason: str = ""
    """The reason for the choice."""
    folder: Path
    bundle: Path | None
    """None: not written yet."""
    calibrated_on: str = ""
    """The samples that calibrated; empty: nothing was calibrated."""
    notes: tuple[Note, ...] = ()
    trust: str = ""
    """TRUSTED, or NOISY or INVALID with the reasons; empty where nothing was measured, or nobody watched."""
    accuracy_asked: bool = False
    """Whether labels were given, or a drop that is allowed."""
    was_cut: bool = False
    """Whether it was interrupted: the bundle holds what was proven by then."""
    seconds: float = 0.0
    """How long the run took; 0: not recorded."""

    def __post_init__(self) -> None:
        if [candidate.name for candidate in self.candidates].count(self.chosen) != 1:
            raise ValueError(f"chosen {short(self.chosen)} is none of the candidates")
        if self.verdict and self.verdict not in EXIT_OF:
            raise ValueError(f"the verdict is {short(self.verdict)}")

    @property
    def best(self) -> C:
        """The chosen candidate."""
        return next(candidate for candidate in self.candidates if candidate.name == self.chosen)

    @property
    def is_as_given(self) -> bool:
        """Whether what is deployed is the model as it was given."""
        return self.best is self.candidates[0]

    @property
    @abstractmethod
    def is_gate(self) -> bool:
        """Whether the user set a limit; only then a missed one changes the exit code."""

    @property
    @abstractmethod
    def verdict(self) -> str:
        """PASS, FAIL or INCONCLUSIVE by the limits; NOISY or INVALID where the machine closes the gate; empty: none."""

    @property
    def noise(self) -> str:
        """NOISY or INVALID; empty where the machine was quiet, or nothing was measured."""
        level = self.trust.partition(";")[0]
        return "" if level == TrustLevel.TRUSTED.upper() else level

    @property
    def budget_code(self) -> int:
        """The exit code of the limits alone."""
        return EXIT_OF[self.verdict] if self.is_gate else EXIT_PASS

    @property
    def is_accuracy_open(self) -> bool:
        """Whether accuracy was asked for, and what was chosen is not proven to keep it."""
        return self.accuracy_asked and not self.is_as_given and self.best.word != Word.KEPT

    @property
    def exit_code(self) -> int:
        """130 interrupted; else 2, 3 or 4 by the limits; else 3 where accuracy was asked for and is not decided.

        Else 0. The bundle is written all the same.
        """
        if self.was_cut:
            return EXIT_INTERRUPTED
        return EXIT_INCONCLUSIVE if self.budget_code == EXIT_PASS and self.is_accuracy_open else self.budget_code

    @property
    def missing(self) -> str:
        """The figure that a stored report of this kind lacks, though each field is there; empty: none."""
        return ""

    @property
    def verdict_word(self) -> str:
        """The verdict, as the head tells it."""
        return self.verdict

    def own_figures(self) -> dict[str, Any]:
        """Return plain values."""
        derived = {name: getattr(self, name) for name in self.derived}
        bundle = None if self.bundle is None else str(self.bundle)
        told = {"trust": told_trust(self.trust), "folder": str(self.folder), "bundle": bundle}
        return {**fields_as_json(self), **derived, **told}


@dataclass(frozen=True, slots=True, kw_only=True)
class FramesReport(Report[Candidate]):
    """A report of what answers frames, whose candidates are timed by whole frames: a model, or a pipeline."""

    candidates: tuple[Candidate, ...]
    bundle: Path
    budget_ms: float
    budget_asked: bool
    untimed: str = ""
    """Why nothing was measured; empty where it was."""

    @property
    def is_gate(self) -> bool:
        """Whether the user asked for the budget."""
        return self.budget_asked

    @property
    def verdict(self) -> str:
        """PASS, FAIL or INCONCLUSIVE by the budget; NOISY or INVALID where the machine closes the gate."""
        latency = self.latency
        if latency is None:
            return "INCONCLUSIVE"
        return (self.noise if self.budget_asked else "") or latency.verdict

    @property
    def latency(self) -> Latency | None:
        """Times of frames of what is deployed, which judge the budget; None where nothing was measured."""
        return self.best.latency

    @property
    def deployed_speed(self) -> Ratio | None:
        """Ratio of whole frames of what is deployed against the original; None where it was not measured."""
        return self.best.speed

    @property
    def timed_otherwise(self) -> str:
        """The difference of the frames that judge the budget from those of the bundle; empty: none."""
        return ""

    def budget_word(self, candidate: Candidate) -> str:
        """Return what is proven of a candidate and the budget; on a noisy machine nothing is, whatever was seen."""
        if candidate.latency is None:
            return ""
        return self.noise or candidate.latency.verdict

    @property
    def score(self) -> Accuracy | None:
        """The metric of what is deployed; None without labels."""
        return self.best.score

    @property
    def verdict_word(self) -> str:
        """The verdict; of a budget that nobody asked for PASS alone, on a quiet machine, and of proven answers."""
        if self.is_gate:
            return self.verdict
        judged = self.best.judgement
        is_open = judged is not None and not judged.is_proven
        return "PASS" if self.verdict == "PASS" and not self.noise and not is_open else ""

    @property
    def verdict_line(self) -> str:
        """The verdict in one sentence, with what a larger file and a noisy machine mean for it."""
        if self.latency is None:
            return f"latency: not measured ({self.untimed}); {self.how_to_measure}"
        detail = self.latency.detail
        is_blocked = bool(self.noise) and (self.budget_asked or self.verdict == "FAIL")
        parts = [undecided(self.noise, detail) if is_blocked else f"{self.verdict}: {detail}", self._larger]
        if self.noise and not is_blocked:
            parts.append(warning_of(self.trust))
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
        """The command that measures the missing latency on the device."""
        return f"on the device: edgeopt bench {self.bundle}"


def is_report(folder: Path) -> bool:
    """Return whether a folder is what `optimize` wrote."""
    return (folder / RESULT).is_file()


def read_values(folder: Path) -> dict[str, Any]:
    """Return the values of the report that `optimize` wrote into an output folder, as this version writes them.

    Raises:
        InvalidFileError: If there is none, it is damaged, or of another version.
    """
    path, page = folder / RESULT, folder / "report.html"
    remedy = f"open {page}, or run edgeopt optimize again" if page.is_file() else _REMEDY
    values = read_object(path, schema=(SCHEMA, _WITHOUT_HEAD, *{schema for _, schema in _OLDER}), remedy=remedy)
    kind, schema = values.setdefault("kind", "frames"), values["schema"]
    if schema in (SCHEMA, _WITHOUT_HEAD):
        return values
    if (kind, schema) not in _OLDER:
        raise InvalidFileError(f"{path} is of another version of edgeopt", remedy=remedy)
    return _as_now(values)


def _as_now(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a report of an older version under the names of this one, with what it did not tell."""
    renamed = _RENAMED.get(values["kind"], {})
    now = {renamed.get(key, key): value for key, value in values.items()}
    if values["kind"] == "generation":
        cpu = Fact(Use.CRITICAL, now.pop("cpu", None))
        now |= {"environment": {"facts": {"cpu.model": dataclasses.asdict(cpu)}}, "metric": "perplexity"}
    return {"threads": 0, **now}


def read_report(folder: Path, kind: type[R]) -> R:
    """Return the report that `optimize` wrote into an output folder.

    Args:
        folder: The folder.
        kind: The class of reports of its kind of workload.

    Raises:
        InvalidFileError: If there is none, it is damaged, of another version, or of another kind.
    """
    return report_of(folder, read_values(folder), kind)


def report_of(folder: Path, values: Mapping[str, Any], kind: type[R]) -> R:
    """Return the values of a report as an object.

    Args:
        folder: The folder in which it lies.
        values: By `read_values`.
        kind: The class of reports of its kind of workload.

    Raises:
        InvalidFileError: If it is damaged, or of another kind.
    """
    where = f"{folder / RESULT} is no report of edgeopt optimize"
    if values.get("kind") != kind.kind:
        text = f"{folder / RESULT} is a report of the kind {short(values.get('kind'))}, not {kind.kind!r}"
        raise InvalidFileError(text, remedy=f"{_REMEDY} for another workload")
    derived = (*HEAD, "folder", "bundle", *kind.derived)
    stored = {key: value for key, value in values.items() if key not in derived}
    bundle = folder / "bundle" if values.get("bundle") is not None else None
    try:
        stored["trust"] = read_trust(stored.get("trust"))
        environment = Environment.from_json(values.get("environment"))
        report = parse_table(kind, stored, where, {"folder": folder, "bundle": bundle, "environment": environment})
    except ValueError as error:
        raise InvalidFileError(f"{where}: {error}", remedy=_REMEDY) from error
    except InvalidFileError as error:
        raise InvalidFileError(error.problem, remedy=_REMEDY) from error
    if report.missing:
        raise InvalidFileError(f"{folder / RESULT} has no {report.missing}", remedy="run edgeopt optimize again")
    return report
