"""Boxes (n, 5), left, top, right, bottom in pixels and a score, and classes (n,), with a batch or not.

Rows of a class below 0 are none: so TensorRT fills up. Masks beside them are not read.

Source: MMDeploy, `multiclass_nms` in mmdeploy/mmcv/ops/nms.py; its outputs are called dets and labels.
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
    wanted = "boxes with a score n x 5 and classes n, both behind a batch of 1 or not"
    wide = [shape for shape in shapes if len(shape) in (2, 3) and shape[-1] == 5]
    if len(wide) != 1 or len(shapes) not in (2, 3):
        return wanted
    before, labels = wide[0][:-1], [shape for shape in shapes if len(shape) == len(wide[0]) - 1]
    masks = [shape for shape in shapes if len(shape) > len(before) and shape is not wide[0]]
    fits = len(labels) == 1 and len(masks) == len(shapes) - 2 and may_be(labels[0][-1], before[-1])
    return "" if fits and (len(before) == 1 or may_be(before[0], 1)) else wanted


def _boxes_and_classes(outputs: Sequence[_HasShape]) -> list[_HasShape]:
    boxes = next(output for output in outputs if len(output.shape) in (2, 3) and output.shape[-1] == 5)
    return [boxes, next(output for output in outputs if len(output.shape) == len(boxes.shape) - 1)]


def _decode(outputs: Sequence[Array], numbers: Postprocess, size: Size, threshold: float) -> Candidates:
    boxes, labels = _boxes_and_classes(outputs)
    rows, classes = boxes.reshape(-1, 5), np.rint(labels.reshape(-1)).astype(np.int64) - int(numbers.background)
    kept = (rows[:, 4] > threshold) & (classes >= 0)
    array = rows[kept].astype(np.float32)
    return to_pixels(np.ascontiguousarray(array[:, :4]), numbers, size), array[:, 4], classes[kept]


def _write(rows: HeadRows, outputs: Sequence[TensorSpec]) -> FoundBoxes:
    nodes, (boxes, labels) = rows.nodes, _boxes_and_classes(outputs)
    matrix = nodes("Reshape", boxes.name, ints(-1, SIDES + 1))
    scores = nodes("Reshape", nodes.columns(matrix, SIDES, SIDES + 1), ints(-1))
    sides = nodes.columns(matrix, 0, SIDES)
    return rows.of_known_classes(sides, scores, nodes("Reshape", labels.name, ints(-1)))


def _read(outputs: Sequence[TensorSpec]) -> Sequence[TensorSpec]:
    return outputs if any(output.is_unranked for output in outputs) else _boxes_and_classes(outputs)


HEAD = Head(
    _why_unfit,
    _decode,
    _write,
    is_suppressed=True,
    has_whole_numbers=True,
    numbers_classes=True,
    read=_read,
)
