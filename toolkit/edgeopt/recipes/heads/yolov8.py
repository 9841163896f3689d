"""YOLOv8, v9, v11, v12: (1, 4 + classes, n), centre and size in pixels, class scores.

Boxes relative to a cell are distances to left, top, right and bottom of its centre, in cells.

Source: Ultralytics, `Detect._inference` and `dist2bbox`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.tensors import TensorSpec, ints
from edgeopt.recipes.heads import Exported, Head, first
from edgeopt.recipes.heads._candidates import Array, Candidates, Size, around, centred, grid, least, scores_of
from edgeopt.recipes.heads._rows import SIDES, FoundBoxes, HeadRows, fixed
from edgeopt.recipes.heads._shapes import STRIDES, Shape, are_rows, why_other_cells
from edgeopt.recipes.heads._values import Usual, Values, of_cells
from edgeopt.recipes.outputs.learned import BOX, Columns, LearnedHead, scale_of, unit_of
from edgeopt.recipes.recipe import Boxes, Postprocess, Scores

_ROUNDING = 1e-3


def _why_unfit(shapes: Sequence[Shape], numbers: Postprocess, size: Sequence[int]) -> str:
    if not are_rows(shapes, 5, axis=1):
        return "1 x (4 + classes) x boxes"
    return why_other_cells(shapes[0][2], numbers, size)


def _decode(outputs: Sequence[Array], numbers: Postprocess, size: Size, threshold: float) -> Candidates:
    rows = outputs[0][0]
    best = rows[4:].max(axis=0)  # along memory: 3x as fast as over the transposed view
    kept = np.flatnonzero(best > least(numbers, threshold))
    boxes, scores = rows[:4, kept].T, scores_of(best[kept], numbers)
    classes = rows[4:, kept].argmax(axis=0).astype(np.int64)
    if numbers.boxes is not Boxes.CELLS:
        return centred(boxes, numbers, size), scores, classes
    cells, strides = grid(size, numbers.strides or STRIDES)
    return around(cells[kept] + 0.5, boxes, strides[kept]), scores, classes


def write(rows: HeadRows, outputs: Sequence[TensorSpec]) -> FoundBoxes:
    """Write the head; rows of poses and masks hold more numbers behind the classes."""
    nodes, width = rows.nodes, fixed(outputs[0], 1) - rows.more
    matrix = rows.matrix(outputs[0])
    best = nodes.largest(nodes("Slice", matrix, ints(4), ints(width), ints(0)), 0)
    kept = nodes.positions(rows.above(best, raw=True))
    found = nodes("Transpose", nodes("Gather", matrix, kept, axis=1), perm=[1, 0])
    classes = nodes("ArgMax", nodes.columns(found, 4, width), axis=1, keepdims=0)
    scores, raw = rows.scores_of(nodes("Gather", best, kept)), nodes.columns(found, 0, 4)
    more = nodes.columns(found, width, width + rows.more) if rows.more else ""
    if rows.numbers.boxes is not Boxes.CELLS:
        return FoundBoxes(rows.centred(raw), scores, classes, width - SIDES, more)
    cells, strides = grid(rows.size, rows.numbers.strides or STRIDES)
    return FoundBoxes(rows.around(cells + np.float32(0.5), raw, strides, kept), scores, classes, width - SIDES, more)


def _learned(numbers: Postprocess, outputs: Sequence[TensorSpec], size: Size) -> tuple[LearnedHead, ...]:
    name, scale = outputs[0].name, scale_of(is_logit=numbers.scores is Scores.LOGITS)
    unit = unit_of(numbers, size, Boxes.PIXELS)
    return (LearnedHead(Columns(name, 1, BOX), scale, boxes=Columns(name, 1, 0, BOX), unit=unit),)


def _count_classes(shapes: Sequence[Shape]) -> int | None:
    width = shapes[0][1]
    return width - SIDES if isinstance(width, int) else None


def _why_unlikely(numbers: Postprocess, output: TensorSpec, answers: Sequence[NDArray[Any]]) -> str:
    """Return what other numbers are there: poses and turned boxes have this shape, and are no probabilities."""
    if numbers.scores is not Scores.USUAL or not answers:
        return ""
    scores = np.stack([np.asarray(answer, np.float64)[0, 4:] for answer in answers])
    if not np.isfinite(scores).all() or (scores.min() >= -_ROUNDING and scores.max() <= 1 + _ROUNDING):
        return ""
    text = f"{scores.min():.3g} to {scores.max():.3g} where scores of {output.shape[1]} - 4 classes would be 0 to 1"
    return f"{text}: points, turned boxes or logits"


def _gather(numbers: Postprocess, size: Sequence[int], frames: Sequence[Sequence[Array]]) -> Values:
    return of_cells(np.stack([outputs[0][0].T for outputs in frames]), numbers, size)


HEAD = Head(
    _why_unfit,
    _decode,
    write,
    _learned,
    _count_classes,
    usual=Usual(Boxes.PIXELS, Scores.PROBABILITIES, _gather),
    exported=Exported.PLAIN,
    read=first,
    why_unlikely=_why_unlikely,
)
