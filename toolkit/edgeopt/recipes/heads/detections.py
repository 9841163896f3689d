"""Boxes (n, 4), left, top, right, bottom in pixels, classes (n,) and scores (n,), each with a batch or not.

Whole numbers are the classes; where none are, the classes come before the scores, as TensorFlow writes them, unless
names say otherwise. Where class 0 is `background` the first class is 1. Rows beyond a count of as many dimensions as
the scores are none; beyond others none has a score.

Source: torchvision, `SSD.postprocess_detections` and `GeneralizedRCNNTransform.postprocess`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from edgeopt.graph.tensors import TensorSpec, ints
from edgeopt.recipes.heads import Head
from edgeopt.recipes.heads._candidates import Array, Candidates, Size, to_pixels
from edgeopt.recipes.heads._rows import SIDES, FoundBoxes, HeadRows
from edgeopt.recipes.heads._shapes import Shape, may_be
from edgeopt.recipes.recipe import Postprocess

_HasShape = TypeVar("_HasShape", TensorSpec, Array)


def _why_unfit(shapes: Sequence[Shape], numbers: Postprocess, size: Sequence[int]) -> str:
    del numbers, size
    wanted = "boxes n x 4, classes n and scores n, or all three behind a batch of 1"
    most = max((len(shape) for shape in shapes), default=0)
    boxes = [shape for shape in shapes if len(shape) == most and shape[-1:] == (4,)]
    if len(shapes) not in (3, 4) or most not in (2, 3) or len(boxes) != 1:
        return wanted
    rows = [shape for shape in shapes if len(shape) == most - 1]
    if len(rows) == 3 and (counts := [shape for shape in rows if may_be(shape[-1], 1)]):
        rows.remove(counts[0])  # how many rows there are
    fits = len(rows) == 2 and all(may_be(shape[-1], boxes[0][-2]) for shape in rows)
    return "" if fits and (most == 2 or may_be(boxes[0][0], 1)) else wanted


def _boxes_first(outputs: Sequence[_HasShape]) -> list[_HasShape]:
    """Return boxes, (n, 4), and the outputs of a number a box, in the model's order; all with a batch or not."""
    most: int = max(len(output.shape) for output in outputs)
    boxes = [output for output in outputs if len(output.shape) == most and output.shape[-1] == 4][:1]
    return boxes + [output for output in outputs if len(output.shape) == most - 1]


def _scores_last(outputs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """Return what is called scores last: TensorRT's BatchedNMS has them ahead of classes that are no integers."""
    return sorted(outputs, key=lambda output: any(word in output.name.lower() for word in ("score", "conf", "prob")))


def decode(
    outputs: Sequence[Array],
    numbers: Postprocess,
    size: Size,
    threshold: float,
    order: Sequence[int] = (0, 1, 2, 3),
) -> Candidates:
    """Decode the head; `order` says where left, top, right and bottom stand."""
    boxes, *others = _boxes_first(outputs)
    rows, flat = boxes.reshape(-1, 4), [output.reshape(-1) for output in others]
    if len(flat) > 2 and (counts := [i for i, vector in enumerate(flat) if vector.size == 1]):
        count = max(int(flat.pop(counts[0])[0]), 0)
        rows, flat = rows[:count], [vector[:count] for vector in flat]
    labels, scores = sorted(flat[:2], key=lambda vector: vector.dtype.kind == "f")
    kept = np.flatnonzero(scores > threshold)
    classes = np.rint(labels[kept]).astype(np.int64) - int(numbers.background)
    array = to_pixels(rows[kept][:, order].astype(np.float32), numbers, size)
    known = classes >= 0
    return array[known], scores[kept][known].astype(np.float32), classes[known]


def write(rows: HeadRows, outputs: Sequence[TensorSpec], order: Sequence[int] = (0, 1, 2, 3)) -> FoundBoxes:
    """Write the head; `order` says where left, top, right and bottom stand."""
    nodes = rows.nodes
    boxes, *flat = _boxes_first(outputs)
    matrix, count = nodes("Reshape", boxes.name, ints(-1, SIDES)), ""
    if len(flat) > 2 and (counts := [output for output in flat if output.shape[-1] == 1]):
        flat.remove(counts[0])
        count = nodes("Reshape", nodes.cast(counts[0].name, "int64"), ints(1))
        count = nodes("Max", count, ints(0))
    labels, scores = sorted(flat[:2], key=lambda output: "float" in output.dtype)
    vectors = [nodes("Reshape", output.name, ints(-1)) for output in (labels, scores)]
    if count:
        matrix, *vectors = [nodes("Slice", tensor, ints(0), count, ints(0)) for tensor in (matrix, *vectors)]
    sides = nodes("Gather", matrix, ints(*order), axis=1) if order != (0, 1, 2, 3) else matrix
    return rows.of_known_classes(sides, vectors[1], vectors[0])


HEAD = Head(
    _why_unfit,
    decode,
    write,
    is_suppressed=True,
    has_whole_numbers=True,
    numbers_classes=True,
    order=_scores_last,
)
