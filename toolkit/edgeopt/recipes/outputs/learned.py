"""The outputs that a student learns, as data: which numbers are scores, and which say where.

A task knows how its decoders read outputs; what trains knows torch. Between them go these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.recipe import Boxes, Postprocess, Scores

BOX = 4
_A_PIXEL = 0.1
"""Weight of a difference of a pixel; a difference of a cell, which is 8 to 32 pixels, has weight 1."""


class Scale(StrEnum):
    """The scale of scores before they are probabilities."""

    SIGMOID = "sigmoid"
    """A logit each."""
    SOFTMAX = "softmax"
    """Logits that exclude one another."""
    EACH = "each"
    """Probabilities, one by one."""
    SHARES = "shares"
    """Probabilities that sum to 1."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Some numbers of each place of an output; all its other axes, but that of the batch, count places."""

    output: str
    axis: int = -1
    """Axis along which the numbers of one place lie."""
    first: int = 0
    end: int | None = None
    """The first that is no more of them; negative: from the end; None: all."""
    blocks: int = 1
    """Equal parts of the axis, such as anchors, each a place with numbers of its own."""


@dataclass(frozen=True, slots=True)
class LearnedHead:
    """Numbers that belong together place by place."""

    scores: Columns
    scale: Scale
    """Scale of scores and objectness."""
    background: int | None = None
    """Which of the scores says that nothing is there."""
    objectness: Columns | None = None
    """One number that multiplies the scores."""
    boxes: Columns | None = None
    """Numbers that say where; they count by the place's best score."""
    unit: float = 1.0
    """Weight of a difference of 1 in a number of `boxes`."""
    bins: int = 1
    """Logits whose softmax gives, as the mean of 0, 1, ... bins - 1, each of the numbers."""


@runtime_checkable
class Taught(Protocol):
    """A task that says what a student of the model learns of its outputs."""

    @property
    def heads(self) -> Sequence[LearnedHead]:
        """None: all numbers of all outputs count alike."""
        ...


def heads_of(task: object) -> Sequence[LearnedHead]:
    """Return what a task says; none where it says nothing."""
    return task.heads if isinstance(task, Taught) else ()


def unit_of(numbers: Postprocess, size: tuple[int, int], usual: Boxes) -> float:
    """Return what a difference of 1 of a box's numbers counts."""
    boxes = usual if numbers.boxes is Boxes.USUAL else numbers.boxes
    if boxes is Boxes.RELATIVE:
        return _A_PIXEL * math.sqrt(size[0] * size[1])
    return _A_PIXEL if boxes is Boxes.PIXELS else 1.0


def scale_of(*, is_logit: bool, excludes: bool = False) -> Scale:
    """Return the scale of scores that exclude one another or do not."""
    if excludes:
        return Scale.SOFTMAX if is_logit else Scale.SHARES
    return Scale.SIGMOID if is_logit else Scale.EACH


def rows_with_objectness(numbers: Postprocess, output: TensorSpec, size: tuple[int, int], usual: Boxes) -> LearnedHead:
    """Return what is learned of (1, n, 5 + classes): a box, objectness, classes."""
    name, scale = output.name, scale_of(is_logit=numbers.scores is Scores.LOGITS)
    boxes, sure, classes = Columns(name, 2, 0, BOX), Columns(name, 2, BOX, BOX + 1), Columns(name, 2, BOX + 1)
    return LearnedHead(classes, scale, objectness=sure, boxes=boxes, unit=unit_of(numbers, size, usual))


def columns_of(outputs: Sequence[TensorSpec]) -> tuple[Columns, Columns]:
    """Return the columns of two outputs in either order; see `scores_first`."""
    is_swapped = outputs[0].shape[-1] == BOX != outputs[1].shape[-1]
    scores, boxes = reversed(outputs[:2]) if is_swapped else outputs[:2]
    return Columns(scores.name, 2), Columns(boxes.name, 2)
