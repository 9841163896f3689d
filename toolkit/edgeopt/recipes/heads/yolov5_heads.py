"""YOLOv5 without its last part: one output a stride, logits: (1, a, h, w, 5 + c), (1, a * (5 + c), h, w) too.

With s = sigmoid(t): centre (2 s - 0.5 + cell) * stride, size (2 s)^2 * anchor. Probabilities are s itself.

Source: Ultralytics yolov5, `Detect.forward`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.tensors import TensorSpec, floats, ints
from edgeopt.recipes.heads import Head
from edgeopt.recipes.heads._candidates import (
    Array,
    Candidates,
    Size,
    best_class,
    centred,
    corners,
    grid,
    least,
    scores_of,
)
from edgeopt.recipes.heads._rows import FoundBoxes, HeadRows, fixed
from edgeopt.recipes.heads._shapes import STRIDES, Shape, at_least, classes_of_rows, may_be
from edgeopt.recipes.heads._values import Usual, Values, middles
from edgeopt.recipes.outputs.learned import BOX, Columns, LearnedHead, scale_of, unit_of
from edgeopt.recipes.recipe import Boxes, Postprocess, Scores

_WITHOUT_GRID = (Boxes.PIXELS, Boxes.RELATIVE)


def _why_unfit(shapes: Sequence[Shape], numbers: Postprocess, size: Sequence[int]) -> str:
    if not numbers.anchors or len(shapes) != len(numbers.strides):
        return f"one output a stride, with anchors: {len(numbers.strides)} strides, {len(numbers.anchors)} of anchors"
    free = list(shapes)
    for stride, flat in zip(numbers.strides, numbers.anchors, strict=True):
        head = next((shape for shape in free if _is_head(shape, stride, len(flat) // 2, size)), None)
        if head is None:
            return f"1 x {len(flat) // 2} x height/{stride} x width/{stride} x (5 + classes)"
        free.remove(head)
    widths = {shape[-1] if len(shape) == 5 else shape[1] for shape in shapes}
    return "the same classes in each" if len(widths - {None}) > 1 else ""


def _is_head(shape: Shape, stride: int, anchors: int, size: Sequence[int]) -> bool:
    if len(shape) not in (4, 5) or not may_be(shape[0], 1):
        return False
    plane = shape[2:4]
    if size and not all(may_be(cells, side // stride) for cells, side in zip(plane, size, strict=True)):
        return False
    if not all(at_least(side, 1) for side in plane):
        return False
    if len(shape) == 5:
        return may_be(shape[1], anchors) and at_least(shape[4], 6)
    return not isinstance(shape[1], int) or (shape[1] % anchors == 0 and shape[1] // anchors >= 6)


def _usually_logits(numbers: Postprocess) -> Postprocess:
    return replace(numbers, scores=Scores.LOGITS) if numbers.scores is Scores.USUAL else numbers


def _decode(outputs: Sequence[Array], numbers: Postprocess, size: Size, threshold: float) -> Candidates:
    return of_anchors(outputs, _usually_logits(numbers), size, threshold)


def of_anchors(outputs: Sequence[Array], numbers: Postprocess, size: Size, threshold: float) -> Candidates:
    """Decode heads in any order, whose scores are what the numbers say."""
    pairs = sorted(zip(numbers.strides or STRIDES, numbers.anchors, strict=True))
    parts = [
        _of_head(head[0], stride, np.asarray(flat, np.float32).reshape(-1, 2), numbers, size, threshold)
        for head, (stride, flat) in zip(_finest_first(outputs), pairs, strict=True)
    ]
    boxes, scores, classes = zip(*parts, strict=True)
    return np.concatenate(boxes).astype(np.float32), np.concatenate(scores), np.concatenate(classes)


def _finest_first(outputs: Sequence[Array]) -> list[Array]:
    return sorted(outputs, key=lambda output: -(output.shape[2] * output.shape[3]))


def _anchors_last(raw: Array, anchors: int) -> Array:
    """Return (anchors, h, w, 5 + classes) of a head without its batch."""
    return raw if raw.ndim == 4 else raw.reshape(anchors, -1, *raw.shape[1:]).transpose(0, 2, 3, 1)


def _of_head(raw: Array, stride: int, anchors: Array, numbers: Postprocess, size: Size, threshold: float) -> Candidates:
    raw = _anchors_last(raw, len(anchors))
    anchor, row, column = np.nonzero(raw[..., 4] > least(numbers, threshold))
    likely = raw[anchor, row, column]
    both = scores_of(likely[:, 4:], numbers)
    kept, scores, classes = best_class(both[:, 1:] * both[:, :1], threshold)
    boxes = likely[kept, :4]
    if numbers.boxes in _WITHOUT_GRID:
        return centred(boxes, numbers, size), scores, classes
    boxes, cell = scores_of(boxes, numbers), np.stack([column[kept], row[kept]], axis=1)
    centres = (boxes[:, :2] * 2 - 0.5 + cell) * stride
    return corners(centres, (boxes[:, 2:4] * 2) ** 2 * anchors[anchor[kept]]), scores, classes


def _write(rows: HeadRows, outputs: Sequence[TensorSpec]) -> FoundBoxes:
    rows = replace(rows, numbers=_usually_logits(rows.numbers))
    pairs = sorted(zip(rows.numbers.strides or STRIDES, rows.numbers.anchors, strict=True))
    heads = sorted(outputs, key=lambda output: -(fixed(output, 2) * fixed(output, 3)))
    head, anchors = heads[0], len(pairs[0][1]) // 2
    width = fixed(head, 4) if len(head.shape) == 5 else fixed(head, 1) // anchors
    parts = [_head_rows(rows, head, len(flat) // 2, width) for head, (_, flat) in zip(heads, pairs, strict=True)]
    matrix = rows.nodes("Concat", *parts, axis=0)
    if rows.numbers.boxes not in _WITHOUT_GRID:
        return write_anchors(rows, matrix, width, pairs)
    _, boxes, scores, classes = rows.objectness_first(matrix, width)
    return FoundBoxes(rows.centred(rows.nodes.columns(boxes, 0, 4)), scores, classes, width - 5)


def _head_rows(rows: HeadRows, head: TensorSpec, anchors: int, width: int) -> str:
    nodes, name = rows.nodes, head.name
    if len(head.shape) == 4:
        split = nodes("Reshape", name, ints(anchors, width, fixed(head, 2), fixed(head, 3)))
        name = nodes("Transpose", split, perm=[0, 2, 3, 1])
    return nodes("Reshape", name, ints(-1, width))


def write_anchors(
    rows: HeadRows, matrix: str, width: int, pairs: Sequence[tuple[int, tuple[float, ...]]]
) -> FoundBoxes:
    """Write rows relative to a cell and an anchor: heads behind one another, each (anchors, h, w)."""
    nodes = rows.nodes
    cells, strides, anchors = _anchor_grid(rows.size, pairs)
    kept, boxes, scores, classes = rows.objectness_first(matrix, width)
    plain = rows.scores_of(nodes.columns(boxes, 0, 4))
    doubled = nodes("Mul", plain, floats(2.0))
    moved = nodes("Add", nodes.columns(doubled, 0, 2), nodes("Gather", cells - np.float32(0.5), kept, axis=0))
    centres = nodes("Mul", moved, nodes("Gather", strides, kept, axis=0))
    root = nodes.columns(doubled, 2, 4)
    sizes = nodes("Mul", nodes("Mul", root, root), nodes("Gather", anchors, kept, axis=0))
    return FoundBoxes(rows.corners(centres, sizes), scores, classes, width - 5)


def _anchor_grid(
    size: Size, pairs: Sequence[tuple[int, tuple[float, ...]]]
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Return cell, (n, 2), stride, (n, 1), and anchor, (n, 2), of each row."""
    cells, strides, anchors = [], [], []
    for stride, flat in pairs:
        plane, steps = grid(size, (stride,))
        for anchor in np.asarray(flat, np.float32).reshape(-1, 2):
            cells.append(plane)
            strides.append(steps)
            anchors.append(np.tile(anchor, (len(plane), 1)))
    return np.concatenate(cells), np.concatenate(strides), np.concatenate(anchors)


def _learned(numbers: Postprocess, outputs: Sequence[TensorSpec], size: Size) -> tuple[LearnedHead, ...]:
    scale = scale_of(is_logit=numbers.scores is not Scores.PROBABILITIES)
    anchors = {len(flat) // 2 for flat in numbers.anchors}
    if len(anchors) != 1 or any(len(output.shape) not in (4, 5) for output in outputs):
        return ()
    unit, heads = unit_of(numbers, size, Boxes.CELLS), list[LearnedHead]()
    for output in outputs:
        axis, blocks = (4, 1) if len(output.shape) == 5 else (1, anchors.copy().pop())
        boxes, sure, classes = (
            Columns(output.name, axis, start, end, blocks) for start, end in ((0, BOX), (BOX, BOX + 1), (BOX + 1, None))
        )
        heads.append(LearnedHead(classes, scale, objectness=sure, boxes=boxes, unit=unit))
    return tuple(heads)


def _gather(numbers: Postprocess, size: Sequence[int], frames: Sequence[Sequence[Array]]) -> Values:
    pairs = sorted(zip(numbers.strides or STRIDES, numbers.anchors, strict=True))
    counts = [len(flat) // 2 for _, flat in pairs]
    rows = np.stack([_flat_heads(outputs, counts) for outputs in frames])
    return rows[..., :4], rows[..., 4:], middles(size, [stride for stride, _ in pairs], counts)


def _flat_heads(outputs: Sequence[Array], counts: Sequence[int]) -> Array:
    heads = zip(_finest_first(outputs), counts, strict=True)
    parts = [_anchors_last(head[0], count) for head, count in heads]
    return np.concatenate([part.reshape(-1, part.shape[-1]) for part in parts])


HEAD = Head(
    _why_unfit,
    _decode,
    _write,
    _learned,
    count_classes=classes_of_rows,
    usual=Usual(Boxes.CELLS, Scores.LOGITS, _gather, has_logits_in_cells=True),
)
