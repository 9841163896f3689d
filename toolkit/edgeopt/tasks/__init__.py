"""What a model is for, one file each: frame to tensor, tensor to answer, answers to a score.

The file name is the task's name; each ends in `TASK`, a `TaskFactory`. Tasks never import onnx.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.tensors import Sample, Tensors, TensorSpec
from edgeopt.recipes.labels import Labels
from edgeopt.recipes.metrics import Counts, Evidence, find_metric, metrics_of
from edgeopt.recipes.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Accuracy:
    """A metric on labelled data, with the second metrics the field expects beside it."""

    metric: str
    value: float
    n: int
    """Images it was computed on."""
    others: Mapping[str, float] = field(default_factory=dict)
    by_chance: float = 0.0
    """What answers may score on them that were made without looking."""

    @property
    def is_by_chance(self) -> bool:
        """Whether no answer need be right for this value, so that losing nothing of it proves nothing."""
        return self.value <= self.by_chance

    def __str__(self) -> str:
        others = ", ".join(f"{name} {value:.4f}" for name, value in self.others.items())
        return f"{self.metric} {self.value:.4f}{f' ({others})' if others else ''}"


def accuracy_of(evidence: Evidence, recipe: Recipe, pictures: int) -> Accuracy:
    """Return the recipe's metric, and beside it all that its task scores against labels."""
    asked, names = recipe.evaluation.metric, metrics_of(recipe.task)
    values = {name: find_metric(name).score(evidence, pictures) for name in names if find_metric(name).reads_labels}
    by_chance = find_metric(asked).by_chance
    least = by_chance(evidence, pictures) if by_chance else 0.0
    return Accuracy(asked, values.pop(asked), pictures, values, least)


def resampled_accuracy(evidence: Evidence, recipe: Recipe, counts: Counts) -> NDArray[np.float64]:
    """Return (resamples,) the recipe's metric of each resample."""
    return find_metric(recipe.evaluation.metric).resample(evidence, counts)


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

    def sureness(self, answers: Sequence[Any]) -> NDArray[np.float64]:
        """Return (answers,) how sure each is, 0 to 1, to compare ways to feed one model on the same pictures."""
        ...

    def rightness(self, answers: Sequence[Any], labels: Labels) -> NDArray[np.float64] | None:
        """Return (answers,) how near each is to the truth, 0 to 1, by a proper score: what exaggerates loses.

        None where a single answer has no such score.
        """
        ...


TaskFactory = Callable[[Recipe, Sequence[TensorSpec], Sequence[TensorSpec], bool], Task]
"""(recipe, model inputs, model outputs, evaluating) -> task; `evaluating` takes the metric's thresholds."""
