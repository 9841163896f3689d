"""Helpers of tasks that find things at places of a frame: boxes, masks, poses."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import InvalidFileError, UnsupportedError
from edgeopt.graph.tensors import Sample, Tensors, TensorSpec
from edgeopt.recipes.embedded import FRAME, FRAME_OFFSET, FRAME_SCALE, Embedded, picture_feed
from edgeopt.recipes.inputs.preprocess import Geometry
from edgeopt.recipes.labels import Labels
from edgeopt.recipes.labels.boxes import BoxLabels
from edgeopt.recipes.metrics import find_metric
from edgeopt.recipes.outputs.output_shapes import require_fit
from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.scoring.average_precision import MatchTable
from edgeopt.tasks import Accuracy, FrameTask, accuracy_of, resampled_accuracy


class Things(FrameTask):
    """One model that finds things: its pictures, how its answers compare, their score."""

    draws: ClassVar[Sequence[str]] = ("picture",)
    reveals_misreading: ClassVar[bool] = True
    time_follows_content: ClassVar[bool] = True
    gives_boxes: ClassVar[bool] = True

    def __init__(self, recipe: Recipe, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], evaluating: bool):
        """Bind a recipe to a model's tensors."""
        outputs = outputs_of(outputs)
        thresholds = recipe.evaluation if evaluating else recipe.postprocess
        self._is_fed_frames = Embedded.PREPROCESS in recipe.embedded
        self._name, self._outputs = recipe.input.tensor or inputs[0].name, tuple(spec.name for spec in outputs)
        self._recipe = recipe
        self._fitting: Sequence[tuple[int | str | None, ...] | None] = [
            None if output.is_unranked else output.shape for output in outputs
        ]
        self._picture = picture_feed(recipe.input, recipe.preprocess, recipe.embedded, reuse=not evaluating)
        self._size = (recipe.input.size[0], recipe.input.size[1])
        self._numbers = recipe.postprocess
        self._score, self._iou, self._most = (
            thresholds.score_threshold,
            thresholds.iou_threshold,
            thresholds.max_detections,
        )

    def _require_read(
        self,
        recipe: Recipe,
        outputs: Sequence[TensorSpec],
        count_classes: Callable[[Sequence[tuple[int | str | None, ...]]], int | None],
    ) -> None:
        """Raise where the decoder cannot read a model's outputs; nothing is decoded where the model does so itself.

        Args:
            recipe: Whose decoder reads.
            outputs: Of the model.
            count_classes: Returns how many classes outputs of some shapes have.

        Raises:
            UnsupportedError: If so, or their classes are not as many as the names.
        """
        self._is_read = Embedded.POSTPROCESS in recipe.embedded
        if self._is_read:
            return
        own = outputs_of(outputs)
        require_fit(recipe, own)
        if not any(output.is_unranked for output in own):
            require_classes(recipe, count_classes([output.shape for output in own]))

    @property
    def holds_outputs(self) -> bool:
        """Whether the model itself gives the answer."""
        return self._is_read

    def preprocess(self, frame: Sample) -> tuple[Tensors, Geometry]:
        """Return the input tensor, and where the frame lies in it; arrays stay unchanged and are the whole frame."""
        if isinstance(frame, Mapping):
            return frame, Geometry.of_input(frame[FRAME].shape if self._is_fed_frames else self._size)
        tensor, geometry = self._picture(frame)
        return {self._name: tensor}, geometry

    def _geometry(self, outputs: Tensors, geometry: Geometry) -> Geometry:
        """Return where the frame lay in the input: a model that is fed frames says it itself."""
        if not self._is_fed_frames:
            return geometry
        (scale_x, scale_y), (left, top) = outputs[FRAME_SCALE].tolist(), outputs[FRAME_OFFSET].tolist()
        return Geometry(scale_x, scale_y, left, top, geometry.width, geometry.height)

    def _ordered(self, outputs: Tensors) -> list[NDArray[Any]]:
        """Return the outputs in the model's order.

        Raises:
            UnsupportedError: If the outputs of this frame have shapes that the decoder cannot read.
        """
        ordered = [outputs[name] for name in self._outputs]
        if (shapes := [array.shape for array in ordered]) != self._fitting:
            require_fit(self._recipe, [TensorSpec(n, str(outputs[n].dtype), outputs[n].shape) for n in self._outputs])
            self._fitting = shapes
        return ordered

    def count(self, answer: Any) -> int:
        """Return the number of things."""
        return len(answer)

    def best_score(self, answer: Any) -> float:
        """Return the best score; 0 where nothing is there."""
        return float(answer.scores.max()) if len(answer) else 0.0

    def classes_in(self, answer: Any) -> Sequence[int]:
        """Return the class of each thing."""
        classes: list[int] = answer.classes.tolist()
        return classes

    def score(self, answers: Sequence[Any], labels: Labels) -> Accuracy:
        """Return the recipe's metric, the others beside it.

        Raises:
            InvalidFileError: If the labels are of another kind, or their categories are not the recipe's classes.
        """
        return accuracy_of(self.match(answers, labels), self._recipe, len(answers))

    def score_resamples(self, answers: Sequence[Any], labels: Labels, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return (resamples,) the metric where the i-th image counts `counts[:, i]` times; things are matched once."""
        return resampled_accuracy(self.match(answers, labels), self._recipe, counts)

    @abstractmethod
    def match(self, answers: Sequence[Any], labels: Labels) -> list[MatchTable]:
        """Return the things matched with the truths, by category; no table where nothing was found."""

    @abstractmethod
    def _matched(self, found: Any, reference: Any) -> tuple[float, float]:
        """Return matched and total score of two answers, as `_matching.matched_share` does."""

    def agreement(self, answers: Sequence[Any], reference: Sequence[Any]) -> float:
        """Return the score-weighted F1 of the things against the reference's: 1 when they are the same."""
        shares = [self._matched(a, b) for a, b in zip(answers, reference, strict=True)]
        return find_metric("agreement").score(np.array([shares]), len(shares)) if shares else 1.0

    def sureness(self, answers: Sequence[Any]) -> NDArray[np.float64]:
        """Return (answers,) best score times mean score of what an app sees.

        A picture fed in the wrong way often gives one sure thing and many that are not.
        """
        least = self._recipe.postprocess.score_threshold
        seen = (np.clip(answer.scores[answer.scores > least], 0.0, 1.0) for answer in answers)
        return np.array([float(value.max() * value.mean()) if len(value) else 0.0 for value in seen])

    def rightness(self, answers: Sequence[Any], labels: Labels) -> None:
        """Return None: things are scored over all pictures together."""


def outputs_of(outputs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """Return a model's own outputs, without what an embedded preprocess adds."""
    return [output for output in outputs if output.name not in (FRAME_SCALE, FRAME_OFFSET)]


def require_boxes(labels: Labels, what: str) -> BoxLabels:
    """Return labels of COCO.

    Raises:
        InvalidFileError: If they are of another kind.
    """
    if not isinstance(labels, BoxLabels):
        raise InvalidFileError(f"{labels.source} holds no {what}", remedy=f"pass a COCO JSON of {what}")
    return labels


def require_classes(recipe: Recipe, count: int | None) -> None:
    """Raise where a model has another number of classes than the recipe names.

    Args:
        recipe: Bound to the model.
        count: Of the model; None where its outputs do not tell.

    Raises:
        UnsupportedError: If so.
    """
    if count is not None and recipe.class_names and count != len(recipe.class_names):
        raise UnsupportedError(
            f"the model has {count} classes, recipe {recipe.name!r} names {len(recipe.class_names)}",
            remedy="write a recipe.toml with your class names (labels = ...) and pass it with --recipe",
        )
