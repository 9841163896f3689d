"""Raw outputs of detectors to boxes, one function a decoder.

Every decoder returns candidates above the score threshold: boxes (n, 4) as left, top, right, bottom in pixels of the
model's input, scores (n,) and classes (n,). It filters by score first, so that a frame costs what its candidates cost.
Values that overflow stay infinite or NaN; the task drops them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.recipes.output_shapes import STRIDES
from edgeopt.recipes.recipe import Boxes, Postprocess, Scores
from edgeopt.tasks.detection.decoders_anchors import ssd_offsets, ssd_offsets_yx
from edgeopt.tasks.detection.decoders_dfl import nanodet, yolov8_dfl
from edgeopt.tasks.detection.decoders_map import dbnet, dbnet_upright
from edgeopt.tasks.detection.decoders_queries import detr, rtdetr, rtdetr_rows
from edgeopt.tasks.detection.decoders_whole import columns, detections, detections_yx, scored_boxes
from edgeopt.tasks.detection.head_parts import (
    MOST_CLASSES,
    Array,
    Candidates,
    Decoder,
    best_class,
    corners,
    grid,
    least,
    probabilities,
    scores_first,
    scores_of,
    softmax,
    to_pixels,
)


def _objectness_first(
    rows: Array, numbers: Postprocess, threshold: float
) -> tuple[NDArray[np.int64], Array, NDArray[np.int64]]:
    """Return rows, scores and classes where objectness * class is above the threshold; `rows` is (n, 5 + classes)."""
    likely = np.flatnonzero(rows[:, 4] > least(numbers, threshold))  # a class score is at most 1
    both = scores_of(rows[likely, 4:], numbers)
    kept, scores, classes = best_class(both[:, 1:] * both[:, :1], threshold)
    return likely[kept], scores, classes


def yolox(outputs: Sequence[Array], numbers: Postprocess, size: tuple[int, int], threshold: float) -> Candidates:
    """Decode (1, n, 5 + classes): centre (t + cell) * stride, size exp(t) * stride, objectness, classes.

    Source: YOLOX, `demo_postprocess` in yolox/utils/demo_utils.py.
    """
    if numbers.boxes in (Boxes.PIXELS, Boxes.RELATIVE):
        return yolov5(outputs, numbers, size, threshold)
    rows = outputs[0][0]
    kept, scores, classes = _objectness_first(rows, numbers, threshold)
    cells, strides = grid(size, numbers.strides or STRIDES)
    found, cell, stride = rows[kept], cells[kept], strides[kept]
    return corners((found[:, :2] + cell) * stride, np.exp(found[:, 2:4]) * stride), scores, classes


def yolov8(outputs: Sequence[Array], numbers: Postprocess, size: tuple[int, int], threshold: float) -> Candidates:
    """Decode (1, 4 + classes, n): centre and size in pixels, class scores. YOLOv8, v9, v11, v12.

    Boxes relative to a cell are distances to left, top, right and bottom of its centre, in cells.

    Source: Ultralytics, `Detect._inference` and `dist2bbox`.
    """
    rows = outputs[0][0]
    best = rows[4:].max(axis=0)  # along memory: 3x as fast as over the transposed view
    kept = np.flatnonzero(best > least(numbers, threshold))
    found, scores = rows[:4, kept].T, scores_of(best[kept], numbers)
    classes = rows[4:, kept].argmax(axis=0).astype(np.int64)
    if numbers.boxes is not Boxes.CELLS:
        found = to_pixels(found, numbers, size)
        return corners(found[:, :2], found[:, 2:4]), scores, classes
    cells, strides = grid(size, numbers.strides or STRIDES)
    centres = cells[kept] + 0.5
    boxes = np.concatenate([centres - found[:, :2], centres + found[:, 2:4]], axis=1) * strides[kept]
    return boxes, scores, classes


def yolov5(outputs: Sequence[Array], numbers: Postprocess, size: tuple[int, int], threshold: float) -> Candidates:
    """Decode (1, n, 5 + classes): centre and size in pixels, objectness, class scores. YOLOv5, v6, v7 exports.

    Boxes relative to a cell are raw heads behind one another, each (anchors, h, w, 5 + classes).

    Source: Ultralytics yolov5, `Detect.forward` with the grid applied.
    """
    rows = outputs[0][0]
    if numbers.boxes is Boxes.CELLS:
        return yolov5_heads(_split_heads(rows, numbers, size), numbers, size, threshold)
    kept, scores, classes = _objectness_first(rows, numbers, threshold)
    found = to_pixels(rows[kept, :4], numbers, size)
    return corners(found[:, :2], found[:, 2:4]), scores, classes


def _split_heads(rows: Array, numbers: Postprocess, size: tuple[int, int]) -> list[Array]:
    heads, start = [], 0
    for stride, flat in zip(numbers.strides or STRIDES, numbers.anchors, strict=True):
        shape = (1, len(flat) // 2, size[0] // stride, size[1] // stride, rows.shape[1])
        end = start + shape[1] * shape[2] * shape[3]
        heads.append(rows[start:end].reshape(shape))
        start = end
    return heads


def yolov5_heads(outputs: Sequence[Array], numbers: Postprocess, size: tuple[int, int], threshold: float) -> Candidates:
    """Decode anchor-based raw heads, one output a stride, logits: (1, a, h, w, 5 + c), (1, a * (5 + c), h, w) too.

    With s = sigmoid(t): centre (2 s - 0.5 + cell) * stride, size (2 s)^2 * anchor. Probabilities are s itself.

    Source: Ultralytics yolov5, `Detect.forward`.
    """
    if numbers.scores is Scores.USUAL and numbers.decoder == yolov5_heads.__name__:
        numbers = replace(numbers, scores=Scores.LOGITS)
    pairs = sorted(zip(numbers.strides or STRIDES, numbers.anchors, strict=True))
    ordered = sorted(outputs, key=lambda one: -(one.shape[2] * one.shape[3]))
    parts = [
        _of_head(head[0], stride, np.asarray(flat, np.float32).reshape(-1, 2), numbers, size, threshold)
        for head, (stride, flat) in zip(ordered, pairs, strict=True)
    ]
    boxes, scores, classes = zip(*parts, strict=True)
    return np.concatenate(boxes).astype(np.float32), np.concatenate(scores), np.concatenate(classes)


def _of_head(
    raw: Array, stride: int, anchors: Array, numbers: Postprocess, size: tuple[int, int], threshold: float
) -> Candidates:
    if raw.ndim == 3:
        raw = raw.reshape(len(anchors), -1, *raw.shape[1:]).transpose(0, 2, 3, 1)
    anchor, row, column = np.nonzero(raw[..., 4] > least(numbers, threshold))
    found = raw[anchor, row, column]
    both = scores_of(found[:, 4:], numbers)
    kept, scores, classes = best_class(both[:, 1:] * both[:, :1], threshold)
    found = found[kept, :4]
    if numbers.boxes in (Boxes.PIXELS, Boxes.RELATIVE):
        found = to_pixels(found, numbers, size)
        return corners(found[:, :2], found[:, 2:4]), scores, classes
    found, cell = scores_of(found, numbers), np.stack([column[kept], row[kept]], axis=1)
    centres = (found[:, :2] * 2 - 0.5 + cell) * stride
    return corners(centres, (found[:, 2:4] * 2) ** 2 * anchors[anchor[kept]]), scores, classes


def end_to_end(outputs: Sequence[Array], numbers: Postprocess, size: tuple[int, int], threshold: float) -> Candidates:
    """Decode (1, n, 6): left, top, right, bottom in pixels, score, class; nothing is left to suppress. YOLOv10, 26."""
    rows = outputs[0][0]
    is_class = (rows[:, 5] > -0.5) & (rows[:, 5] < MOST_CLASSES)  # rows beyond the last box may hold -1
    found = rows[(rows[:, 4] > least(numbers, threshold)) & is_class]
    boxes = to_pixels(found[:, :4], numbers, size)
    return np.ascontiguousarray(boxes), scores_of(found[:, 4], numbers), found[:, 5].round().astype(np.int64)


def ssd_corners(outputs: Sequence[Array], numbers: Postprocess, size: tuple[int, int], threshold: float) -> Candidates:
    """Decode scores (1, n, classes) and corners (1, n, 4) relative to the input, 0..1. UltraFace and SSD exports.

    With four classes both outputs look alike; the scores come first then.

    Source: Ultra-Light-Fast-Generic-Face-Detector-1MB, `predict` in run_video_face_detect_onnx.py.
    """
    raw, boxes = scores_first(outputs)
    scores = raw if numbers.scores is not Scores.LOGITS else softmax(raw) if numbers.background else probabilities(raw)
    kept, value, classes = best_class(scores[:, int(numbers.background) :], threshold)
    if numbers.boxes is Boxes.USUAL:
        numbers = replace(numbers, boxes=Boxes.RELATIVE)
    return to_pixels(boxes[kept], numbers, size), value, classes


DECODERS: dict[str, Decoder] = {
    one.__name__: one
    for one in (
        yolox,
        yolov8,
        yolov8_dfl,
        nanodet,
        yolov5,
        yolov5_heads,
        end_to_end,
        columns,
        ssd_corners,
        ssd_offsets,
        ssd_offsets_yx,
        detr,
        rtdetr,
        rtdetr_rows,
        dbnet,
        dbnet_upright,
        detections,
        detections_yx,
        scored_boxes,
    )
}
"""By the name a recipe writes in `decoder`."""

NEEDS_NO_SUPPRESSION = frozenset(
    {"columns", "end_to_end", "detr", "rtdetr", "rtdetr_rows", "dbnet", "dbnet_upright"}
    | {"detections", "detections_yx", "scored_boxes"}
)


def class_count(decoder: str, shapes: Sequence[Sequence[Any]]) -> int | None:
    """Return how many classes outputs of these shapes can tell apart; None where the shape does not say."""
    first = shapes[0]
    if decoder in ("yolox", "yolov5", "yolov5_heads") and isinstance(first[-1], int) and len(first) != 4:
        return first[-1] - 5
    if decoder in ("detr", "rtdetr") and len(shapes) == 2:
        width = next((one[-1] for one in shapes if one[-1] != 4), 4)
        return width - int(decoder == "detr") if isinstance(width, int) else None
    if decoder == "yolov8" and isinstance(first[1], int):
        return first[1] - 4
    return None
