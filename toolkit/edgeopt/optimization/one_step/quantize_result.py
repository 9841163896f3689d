"""The result of `quantize`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from edgeopt.errors import EXIT_INCONCLUSIVE, EXIT_MISSED, EXIT_PASS, Note
from edgeopt.measurement.accuracy.judgement import Judgement
from edgeopt.optimization.result import ModelReport
from edgeopt.report.result import Result, fields_as_json
from edgeopt.system.machine.environment import Environment


@dataclass(frozen=True, slots=True)
class Tried:
    """One INT8 form that was built and measured."""

    name: str
    speed_ratio: float | None
    """Time of the float model over its own, in turns; None where this machine is not the target."""
    agreement: float
    """Agreement with the float model, without labels."""
    score: float | None = None
    """Metric on the labels; None where they were not asked."""
    judgement: Judgement | None = None
    """Proof of its accuracy by the labels; None: the labels were not read for it."""


@dataclass(frozen=True, slots=True)
class QuantizeResult(Result):
    """The result of the search for an INT8 form."""

    command: ClassVar[str] = "quantize"
    kind: ClassVar[str] = ModelReport.kind

    model: str
    target: str
    recipe: str
    prepared: str
    """Why simplify and fuse were needed first; empty: they were not, or changed nothing."""
    tried: tuple[Tried, ...]
    """Best first, before labels."""
    chosen: Tried | None
    """None: the float model stays."""
    reason: str
    file: Path | None
    metric: str = ""
    baseline: float | None = None
    """The metric of the model as given."""
    pictures: int = 0
    """Number of pictures on which the metric was computed."""
    max_drop: float = 0.0
    notes: tuple[Note, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    """Session options with which the file was measured, beyond those of the target."""
    tensors: tuple[Mapping[str, Any], ...] = ()
    """Figures of each tensor, the worst first; see `tensor_rows`."""
    untimed: str = ""
    """Why no form's speed is known: what differs between this machine and the target; empty: it was measured."""
    given: str = ""
    """The model as it was asked for: a path or a shipped name, which `compare` takes too."""
    environment: Environment | None = None
    """The machine that searched, and its software."""

    @property
    def exit_code(self) -> int:
        """0 if there is an INT8 model, 2 if none is fast and accurate enough, 3 if its labels do not decide."""
        if self.chosen is None:
            return EXIT_MISSED
        judged = self.chosen.judgement
        return EXIT_PASS if judged is None or judged.is_proven else EXIT_INCONCLUSIVE

    def own_figures(self) -> dict[str, Any]:
        """Return plain values."""
        return {**fields_as_json(self), "file": str(self.file) if self.file else None}
