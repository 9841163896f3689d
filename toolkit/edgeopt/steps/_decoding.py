"""The decoders of `tasks/detection/decoders.py` as ONNX ops: raw outputs of a detector to boxes, scores and classes.

Rows of poses and masks are rows of detectors with more numbers behind; `steps/_beside_boxes.py` reads these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import UnsupportedError
from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.output_shapes import DFL_BINS, STRIDES, landmarks_of, split_prototypes, without_landmarks
from edgeopt.recipes.recipe import Boxes, Postprocess, Recipe, Scores
from edgeopt.recipes.suppressed_outputs import scores_last
from edgeopt.steps import _decoding_suppressed as suppressed
from edgeopt.steps._decoded_rows import SIDES, Found, Rows, usually_relative
from edgeopt.steps._embedding import Nodes, floats, ints
from edgeopt.tasks.detection.decoders_anchors import VARIANCES, anchors_of, has_softmax, is_logits
from edgeopt.tasks.detection.decoders_dfl import is_logits as dfl_logits
from edgeopt.tasks.detection.decoders_dfl import nanodet_pairs, pairs_of, shift_of
from edgeopt.tasks.detection.head_parts import MOST_CLASSES, grid


def decode(nodes: Nodes, recipe: Recipe, outputs: Sequence[TensorSpec]) -> Found:
    """Write the recipe's decoder for the model's outputs, in its order.

    Raises:
        UnsupportedError: If there is no such decoder, or an output's size that it needs is free.
    """
    numbers = recipe.postprocess
    if numbers.decoder not in EMBEDDED:
        raise UnsupportedError(
            f"[postprocess] decoder = {numbers.decoder!r} is not embedded",
            remedy=f"leave the step embed-postprocess out; it knows {', '.join(EMBEDDED)}",
        )
    plain, more = [replace(one, name=nodes.cast(one.name, "float32")) for one in scores_last(recipe, outputs)], 0
    if recipe.task == "keypoints":
        more = recipe.keypoints.numbers
    elif pair := split_prototypes(plain) if recipe.task == "instances" else None:
        plain, more = [pair[0]], fixed(pair[1], 1)
    rows = Rows(nodes, numbers, (recipe.input.size[0], recipe.input.size[1]), numbers.score_threshold, more)
    return EMBEDDED[numbers.decoder](rows, plain)


def fixed(output: TensorSpec, axis: int) -> int:
    """Return the size of a dimension.

    Raises:
        UnsupportedError: If it is free.
    """
    size = output.shape[axis] if len(output.shape) > axis else None
    if isinstance(size, int):
        return size
    raise UnsupportedError(
        f"dimension {axis} of output {output} is free", remedy="fix it with --shape, or leave embed-postprocess out"
    )


def _matrix(nodes: Nodes, output: TensorSpec) -> str:
    return nodes("Squeeze", output.name, ints(0))


def _objectness_first(rows: Rows, matrix: str, width: int) -> tuple[str, str, str, str]:
    """Return positions, raw rows, scores and classes where objectness * class is above the threshold."""
    nodes = rows.nodes
    objectness = nodes("Squeeze", nodes.columns(matrix, 4, 5), ints(1))
    likely = nodes.positions(rows.above(objectness, raw=True))
    found = nodes("Gather", matrix, likely, axis=0)
    both = rows.scores_of(nodes.columns(found, 4, width))
    products = nodes("Mul", nodes.columns(both, 1, width - 4), nodes.columns(both, 0, 1))
    best, label = nodes.largest(products, 1), nodes("ArgMax", products, axis=1, keepdims=0)
    kept = nodes.positions(rows.above(best, raw=False))
    return (
        nodes("Gather", likely, kept),
        nodes("Gather", found, kept, axis=0),
        nodes("Gather", best, kept),
        nodes("Gather", label, kept),
    )


def _yolox(rows: Rows, outputs: Sequence[TensorSpec]) -> Found:
    if rows.numbers.boxes in (Boxes.PIXELS, Boxes.RELATIVE):
        return _yolov5(rows, outputs)
    nodes, width = rows.nodes, fixed(outputs[0], 2)
    kept, found, scores, classes = _objectness_first(rows, _matrix(nodes, outputs[0]), width)
    cells, strides = grid(rows.size, rows.numbers.strides or STRIDES)
    stride = nodes("Gather", strides, kept, axis=0)
    centres = nodes("Mul", nodes("Add", nodes.columns(found, 0, 2), nodes("Gather", cells, kept, axis=0)), stride)
    sizes = nodes("Mul", nodes("Exp", nodes.columns(found, 2, 4)), stride)
    return Found(rows.corners(centres, sizes), scores, classes, width - 5)


def _yolov8(rows: Rows, outputs: Sequence[TensorSpec]) -> Found:
    nodes, width = rows.nodes, fixed(outputs[0], 1) - rows.more
    matrix = _matrix(nodes, outputs[0])
    best = nodes.largest(nodes("Slice", matrix, ints(4), ints(width), ints(0)), 0)
    kept = nodes.positions(rows.above(best, raw=True))
    found = nodes("Transpose", nodes("Gather", matrix, kept, axis=1), perm=[1, 0])
    classes = nodes("ArgMax", nodes.columns(found, 4, width), axis=1, keepdims=0)
    scores, raw = rows.scores_of(nodes("Gather", best, kept)), nodes.columns(found, 0, 4)
    more = nodes.columns(found, width, width + rows.more) if rows.more else ""
    if rows.numbers.boxes is not Boxes.CELLS:
        return Found(rows.centred(raw), scores, classes, width - SIDES, more)
    cells, strides = grid(rows.size, rows.numbers.strides or STRIDES)
    centres = nodes("Gather", cells + np.float32(0.5), kept, axis=0)
    ends = nodes("Sub", centres, nodes.columns(raw, 0, 2)), nodes("Add", centres, nodes.columns(raw, 2, 4))
    boxes = nodes("Mul", nodes("Concat", *ends, axis=1), nodes("Gather", strides, kept, axis=0))
    return Found(boxes, scores, classes, width - SIDES, more)


def _yolov8_dfl(rows: Rows, outputs: Sequence[TensorSpec]) -> Found:
    nodes, bins = rows.nodes, rows.numbers.bins or DFL_BINS["yolov8_dfl"]
    planes = [(fixed(one, 1), math.prod(fixed(one, i) for i in range(2, len(one.shape)))) for one in outputs]
    flat = [nodes("Reshape", one.name, ints(*plane)) for one, plane in zip(outputs, planes, strict=True)]
    boxes, scores, width = [], [], 0
    for box, score in pairs_of(planes, 4 * bins):
        first = 4 * bins if box == score else 0
        width = planes[score][0] - first
        boxes.append(nodes("Slice", flat[box], ints(0), ints(4 * bins), ints(0)))
        scores.append(nodes("Slice", flat[score], ints(first), ints(first + width), ints(0)))
    values = nodes("Concat", *scores, axis=1)
    rows = replace(rows, numbers=replace(rows.numbers, scores=_told(is_logit=dfl_logits(rows.numbers))))
    best = nodes.largest(values, 0)
    kept = nodes.positions(rows.above(best, raw=True))
    sides = nodes("Transpose", nodes("Gather", nodes("Concat", *boxes, axis=1), kept, axis=1), perm=[1, 0])
    cells, strides = grid(rows.size, tuple(sorted(rows.numbers.strides or STRIDES)))
    label = nodes("ArgMax", nodes("Gather", values, kept, axis=1), axis=0, keepdims=0)
    made = _from_sides(nodes, sides, bins, kept, cells + np.float32(0.5), strides)
    return Found(made, rows.scores_of(nodes("Gather", best, kept)), label, width)


def _nanodet(rows: Rows, outputs: Sequence[TensorSpec]) -> Found:
    nodes, numbers = rows.nodes, rows.numbers
    bins = numbers.bins or DFL_BINS["nanodet"]
    if len(outputs) == 1:
        width, matrix = fixed(outputs[0], 2), _matrix(nodes, outputs[0])
    else:
        pairs = nanodet_pairs([(fixed(one, 1), fixed(one, 2)) for one in outputs], 4 * bins)
        joined = [nodes("Concat", outputs[i].name, outputs[j].name, axis=2) for i, j in pairs]
        width = sum(fixed(outputs[i], 2) for i in pairs[0])
        matrix = nodes("Squeeze", nodes("Concat", *joined, axis=1), ints(0))
    count = width - 4 * bins
    values = nodes.columns(matrix, 0, count)
    best, label = nodes.largest(values, 1), nodes("ArgMax", values, axis=1, keepdims=0)
    kept = nodes.positions(rows.above(best, raw=True))
    sides = nodes.columns(nodes("Gather", matrix, kept, axis=0), count, width)
    cells, strides = grid(rows.size, numbers.strides or STRIDES, rounds_up=True)
    made = _from_sides(nodes, sides, bins, kept, cells + shift_of(numbers), strides)
    made = nodes("Min", nodes("Max", made, floats(0.0)), floats(*reversed(rows.size), *reversed(rows.size)))
    return Found(made, rows.scores_of(nodes("Gather", best, kept)), nodes("Gather", label, kept), count)


def _told(*, is_logit: bool) -> Scores:
    return Scores.LOGITS if is_logit else Scores.PROBABILITIES


def _from_sides(
    nodes: Nodes, sides: str, bins: int, kept: str, middles: NDArray[np.float32], strides: NDArray[np.float32]
) -> str:
    """Return corners of the cells that are kept, whose sides are distributions, (n, 4 * bins)."""
    if bins > 1:
        shares = nodes("Softmax", nodes("Reshape", sides, ints(-1, bins)), axis=1)
        mean = nodes("MatMul", shares, np.arange(bins, dtype=np.float32).reshape(-1, 1))
        sides = nodes("Reshape", mean, ints(-1, SIDES))
    middle = nodes("Gather", middles, kept, axis=0)
    ends = nodes("Sub", middle, nodes.columns(sides, 0, 2)), nodes("Add", middle, nodes.columns(sides, 2, 4))
    return nodes("Mul", nodes("Concat", *ends, axis=1), nodes("Gather", strides, kept, axis=0))


def _yolov5(rows: Rows, outputs: Sequence[TensorSpec]) -> Found:
    width = fixed(outputs[0], 2)
    matrix = _matrix(rows.nodes, outputs[0])
    if rows.numbers.boxes is Boxes.CELLS:
        return _of_anchors(rows, matrix, width, _pairs(rows.numbers))
    _, found, scores, classes = _objectness_first(rows, matrix, width)
    return Found(rows.centred(rows.nodes.columns(found, 0, 4)), scores, classes, width - 5)


def _yolov5_heads(rows: Rows, outputs: Sequence[TensorSpec]) -> Found:
    if rows.numbers.scores is Scores.USUAL:
        rows = replace(rows, numbers=replace(rows.numbers, scores=Scores.LOGITS))
    pairs = sorted(_pairs(rows.numbers))
    heads = sorted(outputs, key=lambda one: -(fixed(one, 2) * fixed(one, 3)))
    first, anchors = heads[0], len(pairs[0][1]) // 2
    width = fixed(first, 4) if len(first.shape) == 5 else fixed(first, 1) // anchors
    parts = [_head_rows(rows.nodes, head, len(flat) // 2, width) for head, (_, flat) in zip(heads, pairs, strict=True)]
    matrix = rows.nodes("Concat", *parts, axis=0)
    if rows.numbers.boxes not in (Boxes.PIXELS, Boxes.RELATIVE):
        return _of_anchors(rows, matrix, width, pairs)
    _, found, scores, classes = _objectness_first(rows, matrix, width)
    return Found(rows.centred(rows.nodes.columns(found, 0, 4)), scores, classes, width - 5)


def _head_rows(nodes: Nodes, head: TensorSpec, anchors: int, width: int) -> str:
    name = head.name
    if len(head.shape) == 4:
        split = nodes("Reshape", name, ints(anchors, width, fixed(head, 2), fixed(head, 3)))
        name = nodes("Transpose", split, perm=[0, 2, 3, 1])
    return nodes("Reshape", name, ints(-1, width))


def _pairs(numbers: Postprocess) -> list[tuple[int, tuple[float, ...]]]:
    return list(zip(numbers.strides or STRIDES, numbers.anchors, strict=True))


def _of_anchors(rows: Rows, matrix: str, width: int, pairs: Sequence[tuple[int, tuple[float, ...]]]) -> Found:
    """Decode rows relative to a cell and an anchor: heads behind one another, each (anchors, h, w)."""
    nodes = rows.nodes
    cells, strides, anchors = _anchor_grid(rows.size, pairs)
    kept, found, scores, classes = _objectness_first(rows, matrix, width)
    plain = rows.scores_of(nodes.columns(found, 0, 4))
    doubled = nodes("Mul", plain, floats(2.0))
    moved = nodes("Add", nodes.columns(doubled, 0, 2), nodes("Gather", cells - np.float32(0.5), kept, axis=0))
    centres = nodes("Mul", moved, nodes("Gather", strides, kept, axis=0))
    root = nodes.columns(doubled, 2, 4)
    sizes = nodes("Mul", nodes("Mul", root, root), nodes("Gather", anchors, kept, axis=0))
    return Found(rows.corners(centres, sizes), scores, classes, width - 5)


def _anchor_grid(
    size: tuple[int, int], pairs: Sequence[tuple[int, tuple[float, ...]]]
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Return cell, (n, 2), stride, (n, 1), and anchor, (n, 2), of each row."""
    cells, strides, anchors = [], [], []
    for stride, flat in pairs:
        one, steps = grid(size, (stride,))
        for anchor in np.asarray(flat, np.float32).reshape(-1, 2):
            cells.append(one)
            strides.append(steps)
            anchors.append(np.tile(anchor, (len(one), 1)))
    return np.concatenate(cells), np.concatenate(strides), np.concatenate(anchors)


def _end_to_end(rows: Rows, outputs: Sequence[TensorSpec], *, is_centred: bool = False) -> Found:
    nodes = rows.nodes
    matrix = _matrix(nodes, outputs[0])
    score, label = (nodes("Squeeze", nodes.columns(matrix, i, i + 1), ints(1)) for i in (4, 5))
    is_class = nodes(
        "And",
        nodes("Greater", label, np.array(-0.5, np.float32)),
        nodes("Less", label, np.array(MOST_CLASSES, np.float32)),
    )
    kept = nodes.positions(nodes("And", rows.above(score, raw=True), is_class))
    found = nodes("Gather", matrix, kept, axis=0)
    sides, more = nodes.columns(found, 0, 4), nodes.columns(found, 6, 6 + rows.more)
    boxes = rows.centred(sides) if is_centred else rows.to_pixels(sides)
    classes = nodes.cast(nodes("Round", nodes("Gather", label, kept)), "int64")
    return Found(boxes, rows.scores_of(nodes("Gather", score, kept)), classes, 0, more if rows.more else "")


def _ssd_corners(rows: Rows, outputs: Sequence[TensorSpec]) -> Found:
    nodes, numbers = rows.nodes, rows.numbers
    scored, placed = _scores_first(outputs)
    values, width = _matrix(nodes, scored), fixed(scored, 2)
    if numbers.scores is Scores.LOGITS:
        values = nodes("Softmax", values, axis=1) if numbers.background else nodes("Sigmoid", values)
    values = nodes.columns(values, int(numbers.background), width)
    best, label = nodes.largest(values, 1), nodes("ArgMax", values, axis=1, keepdims=0)
    kept = nodes.positions(rows.above(best, raw=False))
    boxes = usually_relative(rows).to_pixels(nodes("Gather", _matrix(nodes, placed), kept, axis=0))
    return Found(boxes, nodes("Gather", best, kept), nodes("Gather", label, kept), width - int(numbers.background))


def _ssd_offsets(rows: Rows, outputs: Sequence[TensorSpec]) -> Found:
    nodes, numbers = rows.nodes, rows.numbers
    scored, placed = _scores_first(without_landmarks(outputs))
    values, width = _matrix(nodes, scored), fixed(scored, 2)
    if is_logits(numbers):
        values = nodes("Softmax", values, axis=1) if has_softmax(numbers) else nodes("Sigmoid", values)
    values = nodes.columns(values, int(numbers.background), width)
    best, label = nodes.largest(values, 1), nodes("ArgMax", values, axis=1, keepdims=0)
    kept = nodes.positions(rows.above(best, raw=False))
    found = nodes("Gather", _matrix(nodes, placed), kept, axis=0)
    if numbers.decoder == "ssd_offsets_yx":
        found = nodes("Gather", found, ints(1, 0, 3, 2), axis=1)
    anchors, (centre, stretch) = anchors_of(numbers, rows.size), numbers.variances or VARIANCES
    middle, side = (nodes("Gather", part, kept, axis=0) for part in (anchors[:, :2], anchors[:, 2:]))
    moved = nodes("Mul", nodes("Mul", nodes.columns(found, 0, 2), floats(centre)), side)
    sizes = nodes("Mul", side, nodes("Exp", nodes("Mul", nodes.columns(found, 2, 4), floats(stretch))))
    boxes, scores = rows.corners(nodes("Add", middle, moved), sizes), nodes("Gather", best, kept)
    count, points = width - int(numbers.background), landmarks_of(outputs)
    if points is None or numbers.decoder == "ssd_offsets_yx":
        return Found(boxes, scores, nodes("Gather", label, kept), count)
    moved = nodes("Mul", nodes("Gather", _matrix(nodes, points), kept, axis=0), floats(centre))
    pairs = ints(1, fixed(points, 2) // 2)
    landmarks = nodes("Add", nodes("Tile", middle, pairs), nodes("Mul", moved, nodes("Tile", side, pairs)))
    return Found(boxes, scores, nodes("Gather", label, kept), count, landmarks)


def _detr(rows: Rows, outputs: Sequence[TensorSpec]) -> Found:
    nodes = rows.nodes
    scored, placed = _scores_first(outputs)
    values, width = _matrix(nodes, scored), fixed(scored, 2)
    if rows.numbers.scores is not Scores.PROBABILITIES:
        values = nodes("Softmax", values, axis=1)
    values = nodes.columns(values, 0, width - 1)
    best, label = nodes.largest(values, 1), nodes("ArgMax", values, axis=1, keepdims=0)
    kept = nodes.positions(rows.above(best, raw=False))
    boxes = nodes("Gather", _matrix(nodes, placed), kept, axis=0)
    return Found(usually_relative(rows).centred(boxes), nodes("Gather", best, kept), nodes("Gather", label, kept), 0)


def _rtdetr(rows: Rows, outputs: Sequence[TensorSpec]) -> Found:
    nodes = rows.nodes
    if len(outputs) == 1:
        matrix, width = _matrix(nodes, outputs[0]), fixed(outputs[0], 2)
        boxes, raw = nodes.columns(matrix, 0, 4), nodes.columns(matrix, 4, width)
    else:
        scored, placed = _scores_first(outputs)
        raw, boxes = _matrix(nodes, scored), _matrix(nodes, placed)
    if rows.numbers.scores is Scores.USUAL:
        usual = Scores.PROBABILITIES if len(outputs) == 1 else Scores.LOGITS
        rows = replace(rows, numbers=replace(rows.numbers, scores=usual))
    pairs = nodes("Transpose", nodes("NonZero", rows.above(raw, raw=True)), perm=[1, 0])
    query, label = (nodes("Squeeze", nodes.columns(pairs, i, i + 1), ints(1)) for i in (0, 1))
    corners = usually_relative(rows).centred(nodes("Gather", boxes, query, axis=0))
    return Found(corners, rows.scores_of(nodes("GatherND", raw, pairs)), label, 0)


def _rtdetr_rows(rows: Rows, outputs: Sequence[TensorSpec]) -> Found:
    return _end_to_end(usually_relative(rows), outputs, is_centred=True)


def _scores_first(outputs: Sequence[TensorSpec]) -> tuple[TensorSpec, TensorSpec]:
    is_swapped = fixed(outputs[0], 2) == SIDES != fixed(outputs[1], 2)
    return (outputs[1], outputs[0]) if is_swapped else (outputs[0], outputs[1])


EMBEDDED: dict[str, Callable[[Rows, Sequence[TensorSpec]], Found]] = {
    "yolox": _yolox,
    "yolov8": _yolov8,
    "yolov8_dfl": _yolov8_dfl,
    "nanodet": _nanodet,
    "yolov5": _yolov5,
    "yolov5_heads": _yolov5_heads,
    "end_to_end": _end_to_end,
    "ssd_corners": _ssd_corners,
    "ssd_offsets": _ssd_offsets,
    "ssd_offsets_yx": _ssd_offsets,
    "detr": _detr,
    "rtdetr": _rtdetr,
    "rtdetr_rows": _rtdetr_rows,
    "columns": suppressed.columns,
    "detections": suppressed.detections,
    "detections_yx": suppressed.detections_yx,
    "scored_boxes": suppressed.scored_boxes,
    "yolov8_pose": _yolov8,
    "end_to_end_pose": _end_to_end,
    "yolov8_segment": _yolov8,
    "end_to_end_segment": _end_to_end,
}
