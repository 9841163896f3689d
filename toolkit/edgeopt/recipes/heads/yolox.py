"""YOLOX: (1, n, 5 + classes), a box a cell: centre (t + cell) * stride, size exp(t) * stride, objectness, classes.

Source: YOLOX, `demo_postprocess` in yolox/utils/demo_utils.py. Boxes that know no grid are those of YOLOv5.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.heads import Head, first, yolov5
from edgeopt.recipes.heads._candidates import Array, Candidates, Size, corners, grid, objectness_first
from edgeopt.recipes.heads._rows import FoundBoxes, HeadRows, fixed
from edgeopt.recipes.heads._shapes import ONE_EACH, STRIDES, Shape, are_rows, classes_of_rows, why_other_cells
from edgeopt.recipes.heads._values import Usual, gather_rows
from edgeopt.recipes.outputs.learned import rows_with_objectness
from edgeopt.recipes.recipe import Boxes, Postprocess, Scores

_WITHOUT_GRID = (Boxes.PIXELS, Boxes.RELATIVE)


def _why_unfit(shapes: Sequence[Shape], numbers: Postprocess, size: Sequence[int]) -> str:
    if not are_rows(shapes, 6):
        return ONE_EACH
    return why_other_cells(shapes[0][1], numbers, size, has_usual_strides=False)


def _decode(outputs: Sequence[Array], numbers: Postprocess, size: Size, threshold: float) -> Candidates:
    if numbers.boxes in _WITHOUT_GRID:
        return yolov5.HEAD.decode(outputs, numbers, size, threshold)
    rows = outputs[0][0]
    kept, scores, classes = objectness_first(rows, numbers, threshold)
    cells, strides = grid(size, numbers.strides or STRIDES)
    boxes, cell, stride = rows[kept], cells[kept], strides[kept]
    return corners((boxes[:, :2] + cell) * stride, np.exp(boxes[:, 2:4]) * stride), scores, classes


def _write(rows: HeadRows, outputs: Sequence[TensorSpec]) -> FoundBoxes:
    if rows.numbers.boxes in _WITHOUT_GRID:
        return yolov5.write(rows, outputs)
    nodes, width = rows.nodes, fixed(outputs[0], 2)
    kept, boxes, scores, classes = rows.objectness_first(rows.matrix(outputs[0]), width)
    cells, strides = grid(rows.size, rows.numbers.strides or STRIDES)
    stride = nodes("Gather", strides, kept, axis=0)
    centres = nodes("Mul", nodes("Add", nodes.columns(boxes, 0, 2), nodes("Gather", cells, kept, axis=0)), stride)
    sizes = nodes("Mul", nodes("Exp", nodes.columns(boxes, 2, 4)), stride)
    return FoundBoxes(rows.corners(centres, sizes), scores, classes, width - 5)


HEAD = Head(
    _why_unfit,
    _decode,
    _write,
    learned=lambda numbers, outputs, size: (rows_with_objectness(numbers, outputs[0], size, Boxes.CELLS),),
    count_classes=classes_of_rows,
    usual=Usual(Boxes.CELLS, Scores.PROBABILITIES, gather_rows),
    read=first,
)
