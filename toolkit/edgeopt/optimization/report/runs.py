"""Several earlier runs side by side: of other versions, targets or devices. They ran apart, so nothing is proven."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeopt.errors import InvalidFileError
from edgeopt.measurement.bench.stored import is_stored, read_stored
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.turns.side_by_side import distinct_labels
from edgeopt.optimization.candidate import Latency
from edgeopt.optimization.candidates.measure import latency_of
from edgeopt.optimization.report.charts import samples_of
from edgeopt.optimization.result import RESULT, Report, read_report
from edgeopt.system.machine.environment import Environment, Use
from edgeopt.tasks import Accuracy

SCHEMA = 1
_UNTOLD = ("cpu.flags", "inputs", "session.placement", "model.inputs", "model.outputs")
"""Facts that fill pages, or that others say shorter."""


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """One run of `optimize`, told by what it chose, or of `bench`."""

    label: str
    folder: Path
    command: str
    """`optimize` or `bench`."""
    model: str
    target: str
    device: str
    """The processor that was measured."""
    threads: int
    budget_ms: float
    environment: Environment
    trust: str
    latency: Latency | None = None
    """None: not measured."""
    samples: Samples | None = None
    chosen: str = ""
    """Name of the candidate; empty of a bench."""
    executor: str = ""
    accuracy: Accuracy | None = None
    drop: float | None = None
    speed: str = ""
    """Against the run's own original, with its interval."""
    size_bytes: int | None = None

    def as_json(self) -> dict[str, Any]:
        """Return plain values; raw samples are where the run wrote them."""
        values = {one.name: getattr(self, one.name) for one in dataclasses.fields(self) if one.name != "samples"}
        values |= {name: dataclasses.asdict(one) if (one := values[name]) else None for name in ("latency", "accuracy")}
        return values | {"folder": str(self.folder), "environment": self.environment.to_json()}


def is_report(folder: Path) -> bool:
    """Return whether a folder is what `optimize` wrote."""
    return (folder / RESULT).is_file()


def read_runs(folders: Sequence[Path]) -> tuple[EarlierRun, ...]:
    """Return the runs of folders that `optimize` or `bench -o` wrote, each with a label of its own.

    Raises:
        InvalidFileError: If one is neither, or damaged.
    """
    runs = [_of_report(read_report(one)) if is_report(one) else _of_bench(one) for one in folders]
    names = [one.folder.name or str(one.folder) for one in runs]
    labels = distinct_labels(names, [str(one.folder) for one in runs])
    return tuple(dataclasses.replace(one, label=label) for one, label in zip(runs, labels, strict=True))


def _of_report(report: Report) -> EarlierRun:
    best = report.best
    return EarlierRun(
        label="",
        folder=report.folder,
        command="optimize",
        model=report.model,
        target=report.target,
        device=report.measured_on or report.environment.cpu,
        threads=report.threads,
        budget_ms=report.budget_ms,
        environment=report.environment,
        trust=report.trust,
        latency=best.latency,
        samples=samples_of(report, best),
        chosen=best.name,
        executor=f"{best.executor}, {best.precision}",
        accuracy=best.simulated or best.score,
        drop=best.drop,
        speed=f"{best.speed} {best.speed.verdict}" if best.speed else "",
        size_bytes=best.size_bytes,
    )


def _of_bench(folder: Path) -> EarlierRun:
    if not is_stored(folder):
        raise InvalidFileError(
            f"{folder} holds no earlier run", remedy="name output folders of edgeopt optimize, or of edgeopt bench -o"
        )
    found = read_stored(folder)
    return EarlierRun(
        label="",
        folder=folder if folder.is_dir() else folder.parent,
        command="bench",
        model=found.name,
        target=found.target,
        device=found.environment.cpu,
        threads=found.threads,
        budget_ms=found.budget_ms,
        environment=found.environment,
        trust=found.trust.upper(),
        latency=latency_of(found.samples, found.budget_ms),
        samples=found.samples,
        executor=found.executor,
    )


def differences(runs: Sequence[EarlierRun]) -> Mapping[str, tuple[str, ...]]:
    """Return the facts of machine, software and subject that all runs know and that differ, by key: one text a run."""
    first, *others = [one.environment for one in runs]
    uses = (Use.CRITICAL, Use.SUBJECT)
    keys = dict.fromkeys(key for other in others for use in uses for key in first.differing(other, use))
    shown = {key: tuple(_told(one.environment, key) for one in runs) for key in keys if key not in _UNTOLD}
    return {key: texts for key, texts in shown.items() if len(set(texts)) > 1 and all(texts)}


def _told(environment: Environment, key: str) -> str:
    fact = environment.facts.get(key)
    if fact is None or fact.value is None:
        return ""
    if isinstance(fact.value, Mapping):
        return ", ".join(f"{name} {value}" for name, value in fact.value.items())
    if isinstance(fact.value, list | tuple):
        return ", ".join(map(str, fact.value))
    return str(fact.value)[:12] if key.endswith("sha256") else str(fact.value)
