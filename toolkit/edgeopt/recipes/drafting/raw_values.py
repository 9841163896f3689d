"""How a model's raw outputs must be read, judged by their values.

Scores outside 0..1 are logits, whatever a recipe says; centres that follow the grid have it applied already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from edgeopt.recipes.heads import head_of
from edgeopt.recipes.heads._candidates import Array
from edgeopt.recipes.heads._shapes import STRIDES
from edgeopt.recipes.outputs.output_shapes import CLASSIFIERS
from edgeopt.recipes.recipe import Boxes, Postprocess, Scores

_ROUNDING = 1e-3
_FOLLOWS = 0.7
"""Correlation of centres with their cells: near 1 where the grid is applied, near 0 where it is not."""
_LARGEST_RELATIVE = 2.0
"""A relative box may reach past the frame, but not by more than the frame."""


def fitting_numbers(numbers: Postprocess, size: Sequence[int], frames: Sequence[Sequence[Array]]) -> Postprocess:
    """Return the recipe's numbers with `boxes` and `scores` as the values show them; what the recipe states stays.

    Args:
        numbers: Of the recipe.
        size: Height and width of the input.
        frames: The outputs for each of a few frames, in the model's order.
    """
    if numbers.decoder in CLASSIFIERS:
        return replace(numbers, decoder=_classifier(numbers.decoder, [frame[0].reshape(-1) for frame in frames]))
    head = head_of(numbers.decoder)
    if not head or not head.usual:
        return numbers
    usual = head.usual
    boxes, scores, cells = usual.gather(numbers, size, frames)
    found_scores = _scores_of(scores)
    is_raw = usual.has_logits_in_cells and found_scores is Scores.LOGITS
    found_boxes = _boxes_of(boxes, cells, size, usual.boxes, is_raw)
    if numbers.boxes is Boxes.USUAL and found_boxes is not usual.boxes:
        numbers = replace(numbers, boxes=found_boxes)
    if numbers.scores is Scores.USUAL and found_scores is not usual.scores:
        numbers = replace(numbers, scores=found_scores)
    if usual.anchors and numbers.boxes is Boxes.CELLS and not numbers.anchors:
        return replace(numbers, strides=STRIDES, anchors=usual.anchors)
    return numbers


def _classifier(text: str, frames: Sequence[Array]) -> str:
    """Return `logits` or `probabilities`; several independent probabilities need not add up to 1."""
    if any(_scores_of(frame) is Scores.LOGITS for frame in frames):
        return "logits"
    return "probabilities" if all(abs(float(frame.sum()) - 1) < _ROUNDING * 10 for frame in frames) else text


def _scores_of(scores: Array) -> Scores:
    is_within = (scores >= -_ROUNDING) & (scores <= 1 + _ROUNDING) | ~np.isfinite(scores)
    return Scores.PROBABILITIES if is_within.all() else Scores.LOGITS


def _boxes_of(boxes: Array, cells: Array | None, size: Sequence[int], usual: Boxes, is_raw: bool) -> Boxes:
    """Return the unit of boxes (frames, n, 4); `cells` (n, 2) holds the middle of each box's cell."""
    if is_raw or not np.isfinite(boxes).all() or not np.abs(boxes).max(initial=0.0) > 0:
        return usual
    applied = Boxes.RELATIVE if np.percentile(np.abs(boxes), 99) <= _LARGEST_RELATIVE else Boxes.PIXELS
    if cells is None:
        return applied if usual is not Boxes.CELLS else usual
    centres = boxes[..., :2].mean(axis=0)
    likeness = [_correlation(centres[:, axis], cells[:, axis]) for axis in (0, 1) if size[1 - axis] > max(STRIDES)]
    if not likeness:
        return usual
    return applied if min(likeness) >= _FOLLOWS else Boxes.CELLS


def _correlation(x: Array, y: Array) -> float:
    x, y = x - x.mean(), y - y.mean()
    product = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float(x @ y) / product if product > 0 else 0.0
