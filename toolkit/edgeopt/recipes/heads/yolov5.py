"""YOLOv5, v6, v7: (1, n, 5 + classes), centre and size in pixels, objectness, class scores.

Boxes relative to a cell are the raw heads of `yolov5_heads` behind one another, each (anchors, h, w, 5 + classes).

Source: Ultralytics yolov5, `Detect.forward` with the grid applied.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.heads import Head, first, yolov5_heads
from edgeopt.recipes.heads._candidates import Array, Candidates, Size, centred, objectness_first
from edgeopt.recipes.heads._rows import FoundBoxes, HeadRows, fixed
from edgeopt.recipes.heads._shapes import (
    ONE_EACH,
    STRIDES,
    Shape,
    are_rows,
    classes_of_rows,
    count_cells,
    may_be,
    why_other_cells,
)
from edgeopt.recipes.heads._values import Usual, gather_rows
from edgeopt.recipes.outputs.learned import rows_with_objectness
from edgeopt.recipes.recipe import Boxes, Postprocess, Scores

_COCO_ANCHORS = ((10.0, 13, 16, 30, 33, 23), (30.0, 61, 62, 45, 59, 119), (116.0, 90, 156, 198, 373, 326))
"""COCO anchors of YOLOv5 at strides 8, 16, 32, in pixels."""
_MOST_ANCHORS = 9
"""Anchors of one cell."""


def _why_unfit(shapes: Sequence[Shape], numbers: Postprocess, size: Sequence[int]) -> str:
    if not are_rows(shapes, 6):
        return ONE_EACH
    count = shapes[0][1]
    if numbers.boxes is not Boxes.CELLS:
        return why_other_cells(count, numbers, size, most_anchors=_MOST_ANCHORS)
    if not numbers.anchors:
        return "anchors, which the recipe does not give for boxes relative to a cell"
    pairs = zip(numbers.strides or STRIDES, numbers.anchors, strict=True)
    cells = sum(len(flat) // 2 * count_cells(size, [stride]) for stride, flat in pairs) if size else count
    return "" if may_be(count, cells) else f"{cells} boxes, an anchor of a cell each"


def _decode(outputs: Sequence[Array], numbers: Postprocess, size: Size, threshold: float) -> Candidates:
    rows = outputs[0][0]
    if numbers.boxes is Boxes.CELLS:
        return yolov5_heads.of_anchors(_split_heads(rows, numbers, size), numbers, size, threshold)
    kept, scores, classes = objectness_first(rows, numbers, threshold)
    return centred(rows[kept, :4], numbers, size), scores, classes


def _split_heads(rows: Array, numbers: Postprocess, size: Size) -> list[Array]:
    heads, start = [], 0
    for stride, flat in zip(numbers.strides or STRIDES, numbers.anchors, strict=True):
        shape = (1, len(flat) // 2, size[0] // stride, size[1] // stride, rows.shape[1])
        end = start + shape[1] * shape[2] * shape[3]
        heads.append(rows[start:end].reshape(shape))
        start = end
    return heads


def write(rows: HeadRows, outputs: Sequence[TensorSpec]) -> FoundBoxes:
    """Write the head; YOLOX with its grid applied is written so too."""
    width, matrix = fixed(outputs[0], 2), rows.matrix(outputs[0])
    if rows.numbers.boxes is Boxes.CELLS:
        pairs = list(zip(rows.numbers.strides or STRIDES, rows.numbers.anchors, strict=True))
        return yolov5_heads.write_anchors(rows, matrix, width, pairs)
    _, boxes, scores, classes = rows.objectness_first(matrix, width)
    return FoundBoxes(rows.centred(rows.nodes.columns(boxes, 0, 4)), scores, classes, width - 5)


HEAD = Head(
    _why_unfit,
    _decode,
    write,
    learned=lambda numbers, outputs, size: (rows_with_objectness(numbers, outputs[0], size, Boxes.PIXELS),),
    count_classes=classes_of_rows,
    usual=Usual(Boxes.PIXELS, Scores.PROBABILITIES, gather_rows, _COCO_ANCHORS),
    read=first,
)
