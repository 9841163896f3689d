"""Tasks of models, one file each: how a model is fed, what it answers, how answers are scored, told and drawn.

The file name is the task's name; each ends in `TASK`, a class with everything in `Task`. Tasks never import onnx.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from edgeopt import tasks
from edgeopt.graph.tensors import Frame, Sample, Tensors, TensorSpec
from edgeopt.recipes.drawings import HEIGHT
from edgeopt.recipes.embedded import Embedded
from edgeopt.recipes.inputs.jpeg import ReducedDecoding
from edgeopt.recipes.inputs.preprocess import Decode
from edgeopt.recipes.labels import Labels
from edgeopt.recipes.metrics import Counts, Evidence, find_metric, metrics_of
from edgeopt.recipes.recipe import Recipe
from edgeopt.system.declared import registry
from edgeopt.system.text import format_score


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The recipe's metric on labelled pictures, and the other metrics of its task."""

    metric: str
    value: float
    n: int
    """Number of pictures."""
    others: Mapping[str, float] = field(default_factory=dict)
    by_chance: float = 0.0
    """The value that a guess may reach."""

    @property
    def is_by_chance(self) -> bool:
        """Whether a guess may reach this value, so that keeping it proves nothing."""
        return self.value <= self.by_chance

    @property
    def short(self) -> str:
        """The metric and its value: `AP 0.2581`."""
        return f"{self.metric} {format_score(self.value)}"

    def __str__(self) -> str:
        others = ", ".join(f"{name} {format_score(value)}" for name, value in self.others.items())
        return f"{self.short}{f' ({others})' if others else ''}"


def accuracy_of(evidence: Evidence, recipe: Recipe, pictures: int) -> Accuracy:
    """Return the recipe's metric, and all others of its task that read labels."""
    asked, names = recipe.evaluation.metric, metrics_of(recipe.task)
    values = {name: find_metric(name).score(evidence, pictures) for name in names if find_metric(name).reads_labels}
    by_chance = find_metric(asked).by_chance
    least = by_chance(evidence, pictures) if by_chance else 0.0
    return Accuracy(asked, values.pop(asked), pictures, values, least)


def resampled_accuracy(evidence: Evidence, recipe: Recipe, counts: Counts) -> NDArray[np.float64]:
    """Return (resamples,) the recipe's metric of each resample."""
    return find_metric(recipe.evaluation.metric).resample(evidence, counts)


class FrameTask(Protocol):
    """The part of a task that a timed frame needs; a task inherits its names."""

    decoding: ReducedDecoding | None = None
    """How files of pictures are decoded for `preprocess`; None: whole. What is decoded already is taken as it is."""
    reveals_misreading: ClassVar[bool] = False
    """Whether `sureness` is lower where pictures are fed in the wrong way."""
    time_follows_content: ClassVar[bool] = False
    """Whether `postprocess` takes longer where an answer holds more."""
    gives_boxes: ClassVar[bool] = False
    """Whether an answer has `boxes`, (n, 4) in the frame's pixels, and `scores`: a pipeline can cut them out."""

    @property
    def stages(self) -> tuple[str, str]:
        """The names that reports give to `preprocess` and `postprocess`; the stages of the session lie between them."""
        return "preprocess", "postprocess"

    @property
    def holds_outputs(self) -> bool:
        """Whether an answer may show the model's outputs themselves: the next frame must not write over them."""
        return True

    def choice(self, answer: Any) -> Hashable | None:
        """Return all that the recipe's metric reads of an answer, where the metric is a share of right samples.

        Answers of an equal choice are right or wrong together. None: by this metric an answer is no single choice.
        """
        del answer
        return None

    def agreement_of_each(self, answers: Sequence[Any], reference: Sequence[Any]) -> NDArray[np.float64] | None:
        """Return (samples,) how far each answer equals the reference's, judged beside all others.

        None: an answer is judged alike alone and beside others. Numbers are not: a column that hardly varies within one
        sample, as a score that is low all over a picture, is compared with how it varies over all samples.
        """
        del answers, reference
        return None

    def best_score(self, answer: Any) -> float | None:
        """Return the score of the best thing in an answer, 0 where it holds none; None: answers have no scores."""
        del answer
        return None

    def classes_in(self, answer: Any) -> Sequence[int]:
        """Return the index of the class of each thing that an answer names; none where answers have no classes."""
        del answer
        return ()

    def preprocess(self, frame: Sample) -> tuple[Tensors, Any]:
        """Return the model's inputs, arrays unchanged, and the geometry that `postprocess` needs."""
        ...

    def postprocess(self, outputs: Tensors, geometry: Any) -> Any:
        """Return the answer in the frame's own coordinates."""
        ...

    def count(self, answer: Any) -> int:
        """Return how many things the answer holds, for example boxes; 0: nothing was found."""
        ...


class Task(FrameTask, Protocol):
    """One recipe bound to one model's tensors: it feeds the model, reads its outputs, scores and shows its answers."""

    draws: ClassVar[Sequence[str]]
    """Kinds of samples on which `draw` can show an answer, as `Frames.given` calls them."""

    def __init__(
        self, recipe: Recipe, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], evaluating: bool
    ) -> None:
        """Bind a recipe to a model's tensors.

        Args:
            recipe: Of this task.
            inputs: Of the model.
            outputs: Of the model, in its order.
            evaluating: Whether answers are scored: the thresholds of `[evaluation]`, not those of an application.

        Raises:
            NotFoundError: If the task lacks the recipe's decoder or metric.
            UnsupportedError: If the recipe does not fit the tensors.
        """
        ...

    def as_text(self, answer: Any) -> str:
        """Return one line."""
        ...

    def as_json(self, answer: Any) -> dict[str, Any]:
        """Return plain values by name, all finite or None."""
        ...

    def draw(self, frame: Any, answer: Any, height: int = HEIGHT) -> Frame:
        """Return a picture of a frame that shows the answer, so many pixels high, of a short text less.

        Raises:
            UnsupportedError: If the frame is of no kind that the task `draws`.
        """
        ...

    def score(self, answers: Sequence[Any], labels: Labels) -> Accuracy:
        """Return the metric; `answers[i]` belongs to the i-th image of `labels`."""
        ...

    def score_resamples(self, answers: Sequence[Any], labels: Labels, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return (resamples,) the metric where the i-th image counts `counts[:, i]` times; no row is empty."""
        ...

    def agreement(self, answers: Sequence[Any], reference: Sequence[Any]) -> float:
        """Return how far answers equal the float model's, without labels: 0 (never) to 1 (always)."""
        ...

    def loss(self, outputs: Sequence[Tensors], reference: Sequence[Tensors]) -> float:
        """Return how much of a model's outputs another one loses, without labels: 0 none, 1 and above all of it.

        It sees changes that move no answer yet, which `agreement` does not; infinite where numbers are not finite.

        Args:
            outputs: Of the other model, picture by picture.
            reference: Of the model, for the same pictures.
        """
        ...

    def sureness(self, answers: Sequence[Any]) -> NDArray[np.float64]:
        """Return (answers,) how sure each is, 0 to 1, to compare ways to feed one model on the same pictures."""
        ...

    def rightness(self, answers: Sequence[Any], labels: Labels) -> NDArray[np.float64] | None:
        """Return (answers,) how near each is to the truth, 0 to 1, by a proper score: what exaggerates loses.

        None where a single answer has no such score.
        """
        ...


def find_task(name: str) -> type[Task]:
    """Return the task of this name.

    Raises:
        NotFoundError: If there is none.
    """
    task: type[Task] = registry.load(tasks, name).TASK
    return task


def make_task(recipe: Recipe, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], *, evaluating: bool) -> Task:
    """Return the recipe's task bound to a model's tensors; see `Task`.

    Raises:
        NotFoundError: If there is no such task, or it lacks the recipe's decoder or metric.
        UnsupportedError: If the recipe does not fit the tensors.
    """
    task = find_task(recipe.task)(recipe, inputs, outputs, evaluating)
    task.decoding = decoding_of(recipe)
    return task


def decoding_of(recipe: Recipe) -> ReducedDecoding | None:
    """Return how a recipe has files of pictures decoded; None: whole."""
    if recipe.preprocess.decode is Decode.FULL or recipe.kind != "picture" or not recipe.input.size:
        return None
    return None if Embedded.PREPROCESS in recipe.embedded else ReducedDecoding(recipe.input.size, recipe.preprocess)
