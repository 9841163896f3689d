"""What heads share of what a student learns: units of boxes, scales of scores; a place is what may give a box."""

from __future__ import annotations

import math
from collections.abc import Sequence

from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.heads._candidates import Size
from edgeopt.recipes.learned import Columns, LearnedHead, Scale
from edgeopt.recipes.recipe import Boxes, Postprocess, Scores

BOX = 4
_A_PIXEL = 0.1
"""What a difference of a pixel counts; one of a cell, 8 to 32 pixels, 1."""


def unit_of(numbers: Postprocess, size: Size, usual: Boxes) -> float:
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


def rows_with_objectness(numbers: Postprocess, output: TensorSpec, size: Size, usual: Boxes) -> tuple[LearnedHead, ...]:
    """Return what is learned of (1, n, 5 + classes): a box, objectness, classes."""
    name, scale = output.name, scale_of(is_logit=numbers.scores is Scores.LOGITS)
    boxes, sure, classes = Columns(name, 2, 0, BOX), Columns(name, 2, BOX, BOX + 1), Columns(name, 2, BOX + 1)
    return (LearnedHead(classes, scale, objectness=sure, boxes=boxes, unit=unit_of(numbers, size, usual)),)


def columns_of(outputs: Sequence[TensorSpec]) -> tuple[Columns, Columns]:
    """Return the columns of two outputs in either order; see `scores_first`."""
    is_swapped = outputs[0].shape[-1] == BOX != outputs[1].shape[-1]
    scores, boxes = reversed(outputs[:2]) if is_swapped else outputs[:2]
    return Columns(scores.name, 2), Columns(boxes.name, 2)
