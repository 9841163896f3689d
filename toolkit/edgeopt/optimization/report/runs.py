"""Several earlier runs side by side: of other versions, targets or devices. They ran apart, so nothing is proven."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeopt.errors import EdgeoptError, InvalidFileError
from edgeopt.measurement.bench.stored import is_stored, read_stored
from edgeopt.measurement.resources.trust import told_trust
from edgeopt.measurement.samples import FRAME, Samples
from edgeopt.measurement.turns.side_by_side import distinct_labels
from edgeopt.optimization.candidate import Latency
from edgeopt.optimization.candidates.measure import latency_of
from edgeopt.optimization.report.result import is_report
from edgeopt.system.machine.environment import Environment, Use
from edgeopt.tasks import Accuracy

_UNTOLD = ("cpu.flags", "inputs", "session.placement", "model.inputs", "model.outputs")
"""Facts that fill pages, or that others say shorter."""


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """One run of `optimize`, told by what it chose, or of `bench`."""

    label: str
    folder: Path
    command: str
    """`optimize` or `bench`."""
    kind: str
    """Name of the kind of workload."""
    model: str
    target: str
    device: str
    """The processor that was measured."""
    threads: int
    """0: not recorded."""
    budget_ms: float | None
    """None: of answers, or without a budget."""
    environment: Environment
    trust: str
    """Empty: nothing was recorded about that."""
    whole: str = FRAME
    """Unit that was timed: `frame` or `answer`."""
    verdict: str = ""
    """Verdict on its limits; empty: there were none."""
    latency: Latency | None = None
    """None: not measured."""
    samples: Samples | None = None
    chosen: str = ""
    """Name of the candidate; empty of a bench."""
    executor: str = ""
    accuracy: Accuracy | None = None
    drop: float | None = None
    speed: str = ""
    """Speed against the run's own original, with its interval."""
    size_bytes: int | None = None

    def as_json(self) -> dict[str, Any]:
        """Return plain values; raw samples are where the run wrote them."""
        values = {
            field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "samples"
        }
        values |= {
            name: dataclasses.asdict(value) if (value := values[name]) else None for name in ("latency", "accuracy")
        }
        further = {
            "folder": str(self.folder),
            "environment": self.environment.to_json(),
            "trust": told_trust(self.trust),
        }
        return values | further


def read_runs(folders: Sequence[Path], of_optimize: Callable[[Path], EarlierRun]) -> tuple[EarlierRun, ...]:
    """Return the runs of folders that `optimize` or `bench -o` wrote, each with a label of its own.

    Args:
        folders: The folders.
        of_optimize: Reads what `optimize` wrote, as its kind of workload does.

    Raises:
        InvalidFileError: If one is neither, or damaged.
        EdgeoptError: If some are of frames and others of answers.
    """
    runs = [of_optimize(folder) if is_report(folder) else _of_bench(folder) for folder in folders]
    first = runs[0]
    if other := next((run for run in runs if run.whole != first.whole), None):
        problem = f"{first.folder} holds times of whole {first.whole}s, and {other.folder} of {other.whole}s"
        raise EdgeoptError(problem, remedy="show each alone")
    names = [run.folder.name or str(run.folder) for run in runs]
    labels = distinct_labels(names, [str(run.folder) for run in runs])
    return tuple(dataclasses.replace(run, label=label) for run, label in zip(runs, labels, strict=True))


def _of_bench(folder: Path) -> EarlierRun:
    if not is_stored(folder):
        raise InvalidFileError(
            f"{folder} holds no earlier run", remedy="name output folders of edgeopt optimize, or of edgeopt bench -o"
        )
    stored = read_stored(folder)
    latency = latency_of(stored.samples, stored.budget_ms, stored.max_miss_ratio)
    return EarlierRun(
        label="",
        folder=folder if folder.is_dir() else folder.parent,
        command="bench",
        kind=stored.kind,
        model=stored.name,
        target=stored.target,
        device=stored.environment.cpu,
        threads=stored.threads,
        budget_ms=stored.budget_ms,
        environment=stored.environment,
        trust=stored.trust.upper(),
        whole=stored.samples.whole,
        verdict=stored.verdict.upper() or latency.verdict,
        latency=latency,
        samples=stored.samples,
        executor=stored.executor,
    )


def differences(runs: Sequence[EarlierRun]) -> Mapping[str, tuple[str, ...]]:
    """Return the facts of machine, software and subject that all runs know and that differ, by key: one text a run."""
    first, *others = [run.environment for run in runs]
    uses = (Use.CRITICAL, Use.SUBJECT)
    keys = dict.fromkeys(key for other in others for use in uses for key in first.differing(other, use))
    shown = {key: tuple(_told(run.environment, key) for run in runs) for key in keys if key not in _UNTOLD}
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
