"""How a model's raw outputs must be read, judged by their values.

Scores outside 0..1 are logits, whatever a recipe says; centres that follow the grid have it applied already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edgeopt.recipes.columns import Column
from edgeopt.recipes.output_shapes import CLASSIFIERS, STRIDES, count_cells
from edgeopt.recipes.recipe import Boxes, Postprocess, Scores

Array = NDArray[np.float32]
_USUAL = {
    "yolox": (Boxes.CELLS, Scores.PROBABILITIES),
    "yolov8": (Boxes.PIXELS, Scores.PROBABILITIES),
    "yolov5": (Boxes.PIXELS, Scores.PROBABILITIES),
    "yolov5_heads": (Boxes.CELLS, Scores.LOGITS),
    "end_to_end": (Boxes.PIXELS, Scores.PROBABILITIES),
    "columns": (Boxes.PIXELS, Scores.PROBABILITIES),
    "ssd_corners": (Boxes.RELATIVE, Scores.PROBABILITIES),
}
"""What each decoder's exporter writes."""
_SIDES = frozenset({*Column} - {Column.BATCH, Column.CLASS, Column.SCORE, Column.OTHER})
COCO_ANCHORS = ((10.0, 13, 16, 30, 33, 23), (30.0, 61, 62, 45, 59, 119), (116.0, 90, 156, 198, 373, 326))
"""Of YOLOv5 at strides 8, 16, 32, in pixels."""
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
        return replace(numbers, decoder=_classifier(numbers.decoder, [one[0].reshape(-1) for one in frames]))
    if numbers.decoder not in _USUAL:
        return numbers
    boxes, scores, cells = _gathered(numbers, size, frames)
    usual_boxes, usual_scores = _USUAL[numbers.decoder]
    found_scores = _scores_of(scores)
    is_raw = numbers.decoder == "yolov5_heads" and found_scores is Scores.LOGITS
    found_boxes = _boxes_of(boxes, cells, size, usual_boxes, is_raw)
    if numbers.boxes is Boxes.USUAL and found_boxes is not usual_boxes:
        numbers = replace(numbers, boxes=found_boxes)
    if numbers.scores is Scores.USUAL and found_scores is not usual_scores:
        numbers = replace(numbers, scores=found_scores)
    if numbers.decoder == "yolov5" and numbers.boxes is Boxes.CELLS and not numbers.anchors:
        return replace(numbers, strides=STRIDES, anchors=COCO_ANCHORS)
    return numbers


def _classifier(told: str, frames: Sequence[Array]) -> str:
    """Return `logits` or `probabilities`; several independent probabilities need not add up to 1."""
    if any(_scores_of(one) is Scores.LOGITS for one in frames):
        return "logits"
    return "probabilities" if all(abs(float(one.sum()) - 1) < _ROUNDING * 10 for one in frames) else told


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


def _gathered(
    numbers: Postprocess, size: Sequence[int], frames: Sequence[Sequence[Array]]
) -> tuple[Array, Array, Array | None]:
    """Return boxes (frames, n, 4), all scores, and the middle of each box's cell, None where boxes have no cells."""
    strides = numbers.strides or STRIDES
    if numbers.decoder == "ssd_corners":
        both = [sorted(one[:2], key=lambda output: output.shape[-1] == 4) for one in frames]
        return np.stack([one[1][0] for one in both]), np.stack([one[0][0] for one in both]), None
    if numbers.decoder == "yolov5_heads":
        pairs = sorted(zip(strides, numbers.anchors, strict=True))
        rows = np.stack([_flat_heads(one, pairs) for one in frames])
        counts = [len(flat) // 2 for _, flat in pairs]
        return rows[..., :4], rows[..., 4:], _middles(size, [stride for stride, _ in pairs], counts)
    if numbers.decoder == "columns":
        rows = np.concatenate([one[0].reshape(-1, len(numbers.columns)) for one in frames])[None]
        sides = [i for i, one in enumerate(numbers.columns) if one in _SIDES]
        return rows[..., sides], rows[..., numbers.columns.index(Column.SCORE)], None
    rows = np.stack([one[0][0].T if numbers.decoder == "yolov8" else one[0][0] for one in frames])
    if numbers.decoder == "end_to_end":
        return rows[..., :4], rows[..., 4], None
    cells = count_cells(size, strides)
    anchors = rows.shape[1] // cells if cells and rows.shape[1] % cells == 0 else 0
    return rows[..., :4], rows[..., 4:], _middles(size, strides, [anchors] * len(strides)) if anchors else None


def _flat_heads(outputs: Sequence[Array], pairs: Sequence[tuple[int, Sequence[float]]]) -> Array:
    parts = []
    for head, (_, flat) in zip(sorted(outputs, key=lambda one: -(one.shape[2] * one.shape[3])), pairs, strict=True):
        raw = head[0]
        if raw.ndim == 3:
            raw = raw.reshape(len(flat) // 2, -1, *raw.shape[1:]).transpose(0, 2, 3, 1)
        parts.append(raw.reshape(-1, raw.shape[-1]))
    return np.concatenate(parts)


def _middles(size: Sequence[int], strides: Sequence[int], anchors: Sequence[int]) -> Array:
    """Return (n, 2) x and y of each cell's middle in pixels: stride by stride, anchor by anchor, row by row."""
    parts = []
    for stride, count in zip(strides, anchors, strict=True):
        x, y = np.meshgrid(np.arange(size[1] // stride), np.arange(size[0] // stride))
        plane = (np.stack([x.ravel(), y.ravel()], axis=1) + 0.5) * stride
        parts.append(np.tile(plane, (count, 1)))
    return np.concatenate(parts).astype(np.float32)
