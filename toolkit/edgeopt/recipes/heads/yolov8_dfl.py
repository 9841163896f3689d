"""YOLOv8, v9, v11, v12 and 26 without their last part: distributions of the sides, then classes.

Read are (1, 4 * bins + classes, n); boxes (1, 4 * bins, n) and classes (1, classes, n); or for each stride boxes
(1, 4 * bins, h, w) and classes (1, classes, h, w), with or without the sum of the classes (1, 1, h, w) behind them, or
both in one. Scores are logits unless the recipe says otherwise. 16 bins unless it says so; YOLO26 has 1.

Source: Ultralytics, `Detect.forward_head`, `DFL` and `dist2bbox`; for each stride: airockchip/ultralytics_yolov8,
`Detect.forward` for the format rknn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from edgeopt.graph.tensors import TensorSpec, ints
from edgeopt.recipes.heads import Exported, Head
from edgeopt.recipes.heads._candidates import Array, Candidates, Size, around, distances, grid, logit, probabilities
from edgeopt.recipes.heads._rows import FoundBoxes, HeadRows, fixed
from edgeopt.recipes.heads._shapes import STRIDES, Shape, at_least, may_be, why_other_cells
from edgeopt.recipes.outputs.learned import BOX, Columns, LearnedHead, scale_of
from edgeopt.recipes.recipe import Postprocess, Scores

_BINS = 16


def _why_unfit(shapes: Sequence[Shape], numbers: Postprocess, size: Sequence[int]) -> str:
    sides = 4 * (numbers.bins or _BINS)
    strides = sorted(numbers.strides or STRIDES)
    wanted = f"{sides} numbers of a box and its classes for each cell (1 x {sides} + classes x cells), or both a stride"
    if not all(may_be(shape[0], 1) for shape in shapes if shape) or len({len(shape) for shape in shapes}) != 1:
        return wanted
    if len(shapes[0]) == 3:
        fits = len(shapes) == 1 and at_least(shapes[0][1], sides + 1)
        fits = fits or (len(shapes) == 2 and any(may_be(shape[1], sides) for shape in shapes))
        return wanted if not fits or any(why_other_cells(shape[2], numbers, size) for shape in shapes) else ""
    if len(shapes[0]) != 4 or len(shapes) % len(strides):
        return wanted
    for stride in strides:
        mine = [shape for shape in shapes if not size or shape[2:] == (size[0] // stride, size[1] // stride)]
        channels = [shape[1] for shape in mine]
        is_whole = len(mine) == 1 and at_least(channels[0], sides + 1)
        if size and not is_whole and (len(mine) not in (2, 3) or sides not in channels):
            return wanted
    return ""


def _decode(outputs: Sequence[Array], numbers: Postprocess, size: Size, threshold: float) -> Candidates:
    bins, is_logit = numbers.bins or _BINS, _is_logit(numbers)
    sides, raw = _sides_and_classes(outputs, 4 * bins)
    best = raw.max(axis=0)
    kept = np.flatnonzero(best > (logit(threshold) if is_logit else threshold))
    scores = probabilities(best[kept]) if is_logit else best[kept]
    cells, strides = grid(size, tuple(sorted(numbers.strides or STRIDES)))
    boxes = around(cells[kept] + 0.5, distances(sides[:, kept].T, bins), strides[kept])
    return boxes.astype(np.float32), scores, raw[:, kept].argmax(axis=0).astype(np.int64)


def _is_logit(numbers: Postprocess) -> bool:
    return numbers.scores is not Scores.PROBABILITIES


def _sides_and_classes(outputs: Sequence[Array], sides: int) -> tuple[Array, Array]:
    """Return (sides, n) and (classes, n), finest stride first."""
    planes = [output[0].reshape(output.shape[1], -1) for output in outputs]
    pairs = [
        (planes[i], planes[j]) if i != j else (planes[i][:sides], planes[i][sides:])
        for i, j in pairs_of([plane.shape for plane in planes], sides)
    ]
    return np.concatenate([box for box, _ in pairs], axis=1), np.concatenate([score for _, score in pairs], axis=1)


def pairs_of(planes: Sequence[tuple[int, ...]], sides: int) -> list[tuple[int, int]]:
    """Return which outputs hold sides and which classes, finest stride first; the same one where it holds both.

    Args:
        planes: Channels and cells of each output.
        sides: Channels of the sides.
    """
    scales: dict[int, list[int]] = {}
    for i, (_, cells) in enumerate(planes):
        scales.setdefault(cells, []).append(i)
    pairs = []
    for _, mine in sorted(scales.items(), reverse=True):
        box = next((i for i in mine if planes[i][0] == sides), mine[0])
        pairs.append((box, next((i for i in mine if i != box), box)))
    return pairs


def _write(rows: HeadRows, outputs: Sequence[TensorSpec]) -> FoundBoxes:
    nodes, bins = rows.nodes, rows.numbers.bins or _BINS
    planes = [(fixed(spec, 1), math.prod(fixed(spec, i) for i in range(2, len(spec.shape)))) for spec in outputs]
    flat = [nodes("Reshape", output.name, ints(*plane)) for output, plane in zip(outputs, planes, strict=True)]
    boxes, scores, width = [], [], 0
    for box, score in pairs_of(planes, 4 * bins):
        start = 4 * bins if box == score else 0
        width = planes[score][0] - start
        boxes.append(nodes("Slice", flat[box], ints(0), ints(4 * bins), ints(0)))
        scores.append(nodes("Slice", flat[score], ints(start), ints(start + width), ints(0)))
    values = nodes("Concat", *scores, axis=1)
    rows = rows.with_scores(Scores.LOGITS if _is_logit(rows.numbers) else Scores.PROBABILITIES)
    best = nodes.largest(values, 0)
    kept = nodes.positions(rows.above(best, raw=True))
    sides = nodes("Transpose", nodes("Gather", nodes("Concat", *boxes, axis=1), kept, axis=1), perm=[1, 0])
    cells, strides = grid(rows.size, tuple(sorted(rows.numbers.strides or STRIDES)))
    label = nodes("ArgMax", nodes("Gather", values, kept, axis=1), axis=0, keepdims=0)
    made = rows.around(cells + np.float32(0.5), rows.distances(sides, bins), strides, kept)
    return FoundBoxes(made, rows.scores_of(nodes("Gather", best, kept)), label, width)


def _learned(numbers: Postprocess, outputs: Sequence[TensorSpec], size: Size) -> tuple[LearnedHead, ...]:
    del size
    bins, scale = numbers.bins or _BINS, scale_of(is_logit=_is_logit(numbers))
    planes = list[tuple[int, int]]()
    for output in outputs:
        sides = [side for side in output.shape[1:] if isinstance(side, int)]
        if len(sides) != len(output.shape) - 1 or not sides:
            return ()
        planes.append((sides[0], math.prod(sides[1:])))
    heads = list[LearnedHead]()
    for i, j in pairs_of(planes, BOX * bins):
        boxes = Columns(outputs[i].name, 1, 0, BOX * bins)
        scores = Columns(outputs[j].name, 1, BOX * bins if i == j else 0)
        heads.append(LearnedHead(scores, scale, boxes=boxes, bins=bins))
    return tuple(heads)


HEAD = Head(_why_unfit, _decode, _write, _learned, exported=Exported.PLAIN)
