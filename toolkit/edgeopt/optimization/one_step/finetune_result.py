"""The result of `finetune`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgeopt.errors import EXIT_MISSED, EXIT_PASS, Note
from edgeopt.measurement.accuracy.bootstrap import Drop
from edgeopt.steps.finetune.standing import HeldOutCheck


@dataclass(frozen=True, slots=True)
class FigureChange:
    """One figure of the student before and after training."""

    before: float
    after: float
    by: Drop
    """What it changed by, for the better where above zero, with its 95 % interval over pictures."""

    def __str__(self) -> str:
        return f"{self.before:.4f} to {self.after:.4f}, better by {self.by}"


@dataclass(frozen=True, slots=True)
class FinetuneResult:
    """The result of a training."""

    model: str
    teacher: str
    recipe: str
    data: Path
    file: Path | None
    """None: training gained nothing, and nothing was written."""
    reason: str
    loss: FigureChange
    """On held-out pictures, against the teacher."""
    agreement: FigureChange
    """Mean over the same pictures, 0 to 1, by ONNX Runtime."""
    learned: int
    """Pictures that were learned from."""
    judged: int
    """Pictures that judged, of which nothing was learned."""
    features: int
    """Tensors within the graph that were compared."""
    curve: tuple[HeldOutCheck, ...]
    metric: str = ""
    """Metric of the labels; empty: there were none."""
    of_teacher: float | None = None
    labelled: FigureChange | None = None
    """The metric; labels decide nothing here."""
    pictures: int = 0
    """On which the metric was computed."""
    notes: tuple[Note, ...] = ()
    given: str = ""
    """The model as it was asked for: a path, which `compare` takes too."""

    @property
    def exit_code(self) -> int:
        """0 if a model was written, 2 if training gained nothing."""
        return EXIT_PASS if self.file else EXIT_MISSED

    def as_json(self) -> Mapping[str, Any]:
        """Return plain values."""
        values = asdict(self)
        curve = [{**asdict(check), "learned": check.learned if check.step else None} for check in self.curve]
        result = {"data": str(self.data), "file": str(self.file) if self.file else None, "curve": curve}
        return {**values, **result, "exit_code": self.exit_code}
