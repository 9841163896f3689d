"""What a model is for, one file each: frame to tensor, tensor to answer, answers to a score.

The file name is the task's name; each ends in `TASK`, a `TaskFactory`. Tasks never import onnx.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgeopt.labels import Labels
from edgeopt.recipe import Recipe
from edgeopt.tensors import Sample, Tensors, TensorSpec


@dataclass(frozen=True, slots=True)
class Accuracy:
    """A metric on labelled data, with the second metrics the field expects beside it."""

    metric: str
    value: float
    n: int
    """Images it was computed on."""
    others: Mapping[str, float]


class Task(Protocol):
    """Preprocess, postprocess and score for one recipe and one model's shapes."""

    def preprocess(self, frame: Sample) -> tuple[Tensors, Any]:
        """Return the model's inputs, those given as such unchanged, and the geometry that `postprocess` needs."""
        ...

    def postprocess(self, outputs: Tensors, geometry: Any) -> Any:
        """Return the answer in the frame's own coordinates."""
        ...

    def score(self, answers: Sequence[Any], labels: Labels) -> Accuracy:
        """Return the metric; `answers[i]` belongs to the i-th image of `labels`."""
        ...

    def score_resamples(self, answers: Sequence[Any], labels: Labels, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return (resamples,) the metric where the i-th image counts `counts[:, i]` times; no row is empty."""
        ...

    def agreement(self, answers: Sequence[Any], reference: Sequence[Any]) -> float:
        """Return how far answers equal the float model's without labels: 0 (never) to 1 (always)."""
        ...


TaskFactory = Callable[[Recipe, Sequence[TensorSpec], Sequence[TensorSpec], bool], Task]
"""(recipe, model inputs, model outputs, evaluating) -> task; `evaluating` takes the metric's thresholds."""
