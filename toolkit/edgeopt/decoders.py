"""Raw outputs of detectors to boxes, one function a decoder. It suppresses nothing.

Every decoder returns candidates above the score threshold: boxes (n, 4) as left, top, right, bottom in pixels of the
model's input, scores (n,) and classes (n,). It filters by score first, so that a frame costs what its candidates cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.recipe import Postprocess

Array = NDArray[np.float32]
Candidates = tuple[Array, Array, NDArray[np.int64]]
Decoder = Callable[[Sequence[Array], Postprocess, tuple[int, int], float], Candidates]
"""(outputs in the model's order, numbers, (height, width) of the input, score threshold) -> candidates"""


@lru_cache(maxsize=8)
def _grid(size: tuple[int, int], strides: tuple[int, ...]) -> tuple[Array, Array]:
    """Return cell columns and rows, (n, 2), and strides, (n, 1), of all scales, row by row."""
    cells, steps = [], []
    for stride in strides:
        rows, columns = size[0] // stride, size[1] // stride
        x, y = np.meshgrid(np.arange(columns), np.arange(rows))
        cells.append(np.stack([x.ravel(), y.ravel()], axis=1))
        steps.append(np.full((rows * columns, 1), stride))
    return np.concatenate(cells).astype(np.float32), np.concatenate(steps).astype(np.float32)


def _corners(centres: Array, sizes: Array) -> Array:
    half = sizes / 2
    return np.concatenate([centres - half, centres + half], axis=1)


def _best_class(scores: Array, threshold: float) -> tuple[NDArray[np.int64], Array, NDArray[np.int64]]:
    """Return rows, scores and classes of the rows whose best class is above the threshold; `scores` is (n, classes)."""
    best = scores.argmax(axis=1)
    value = scores[np.arange(len(scores)), best]
    rows = np.flatnonzero(value > threshold)
    return rows, value[rows], best[rows].astype(np.int64)


def _objectness_first(rows: Array, threshold: float) -> tuple[NDArray[np.int64], Array, NDArray[np.int64]]:
    """Return rows, scores and classes where objectness * class is above the threshold; `rows` is (n, 5 + classes)."""
    likely = np.flatnonzero(rows[:, 4] > threshold)  # a class score is at most 1
    kept, scores, classes = _best_class(rows[likely, 5:] * rows[likely, 4:5], threshold)
    return likely[kept], scores, classes


def yolox(outputs: Sequence[Array], numbers: Postprocess, size: tuple[int, int], threshold: float) -> Candidates:
    """Decode (1, n, 5 + classes): centre (t + cell) * stride, size exp(t) * stride, objectness, classes.

    Source: YOLOX, `demo_postprocess` in yolox/utils/demo_utils.py.
    """
    rows = outputs[0][0]
    kept, scores, classes = _objectness_first(rows, threshold)
    cells, strides = _grid(size, numbers.strides or (8, 16, 32))
    found, cell, stride = rows[kept], cells[kept], strides[kept]
    return _corners((found[:, :2] + cell) * stride, np.exp(found[:, 2:4]) * stride), scores, classes


def yolov8(outputs: Sequence[Array], numbers: Postprocess, size: tuple[int, int], threshold: float) -> Candidates:
    """Decode (1, 4 + classes, n): centre and size in pixels, class scores. YOLOv8, v9, v11, v12.

    Source: Ultralytics, `Detect._inference`.
    """
    del numbers, size
    rows = outputs[0][0]
    best = rows[4:].max(axis=0)  # along memory: 3x as fast as over the transposed view
    kept = np.flatnonzero(best > threshold)
    found = rows[:, kept].T
    return _corners(found[:, :2], found[:, 2:4]), best[kept], found[:, 4:].argmax(axis=1).astype(np.int64)


def yolov5(outputs: Sequence[Array], numbers: Postprocess, size: tuple[int, int], threshold: float) -> Candidates:
    """Decode (1, n, 5 + classes): centre and size in pixels, objectness, class scores. YOLOv5, v6, v7 exports.

    Source: Ultralytics yolov5, `Detect.forward` with the grid applied.
    """
    del numbers, size
    rows = outputs[0][0]
    kept, scores, classes = _objectness_first(rows, threshold)
    return _corners(rows[kept, :2], rows[kept, 2:4]), scores, classes


def yolov5_heads(outputs: Sequence[Array], numbers: Postprocess, size: tuple[int, int], threshold: float) -> Candidates:
    """Decode anchor-based raw heads, one output a stride, logits: (1, a, h, w, 5 + c), (1, a * (5 + c), h, w) too.

    With s = sigmoid(t): centre (2 s - 0.5 + cell) * stride, size (2 s)^2 * anchor.

    Source: Ultralytics yolov5, `Detect.forward`.
    """
    ordered = sorted(outputs, key=lambda one: -(one.shape[2] * one.shape[3]))
    parts: list[Candidates] = []
    for head, stride, flat in zip(ordered, numbers.strides, numbers.anchors, strict=True):
        anchors = np.asarray(flat, np.float32).reshape(-1, 2)
        raw = head[0]
        if raw.ndim == 3:
            raw = raw.reshape(len(anchors), -1, *raw.shape[1:]).transpose(0, 2, 3, 1)
        # sigmoid is monotonic: compare logits and compute it for the survivors only
        anchor, row, column = np.nonzero(raw[..., 4] > _logit(threshold))
        found = 1 / (1 + np.exp(-raw[anchor, row, column]))
        kept, scores, classes = _best_class(found[:, 5:] * found[:, 4:5], threshold)
        found, cell = found[kept], np.stack([column[kept], row[kept]], axis=1)
        centres = (found[:, :2] * 2 - 0.5 + cell) * stride
        parts.append((_corners(centres, (found[:, 2:4] * 2) ** 2 * anchors[anchor[kept]]), scores, classes))
    del size
    boxes, scores_all, classes_all = zip(*parts, strict=True)
    return np.concatenate(boxes).astype(np.float32), np.concatenate(scores_all), np.concatenate(classes_all)


def _logit(probability: float) -> float:
    clipped = min(max(probability, 1e-7), 1 - 1e-7)
    return float(np.log(clipped / (1 - clipped)))


def end_to_end(outputs: Sequence[Array], numbers: Postprocess, size: tuple[int, int], threshold: float) -> Candidates:
    """Decode (1, n, 6): left, top, right, bottom in pixels, score, class; nothing is left to suppress. YOLOv10, 26."""
    del numbers, size
    rows = outputs[0][0]
    found = rows[rows[:, 4] > threshold]
    return np.ascontiguousarray(found[:, :4]), found[:, 4], found[:, 5].astype(np.int64)


def ssd_corners(outputs: Sequence[Array], numbers: Postprocess, size: tuple[int, int], threshold: float) -> Candidates:
    """Decode scores (1, n, classes) and corners (1, n, 4) relative to the input, 0..1. UltraFace and SSD exports.

    With four classes both outputs look alike; the scores come first then.

    Source: Ultra-Light-Fast-Generic-Face-Detector-1MB, `predict` in run_video_face_detect_onnx.py.
    """
    swapped = outputs[0].shape[-1] == 4 != outputs[1].shape[-1]
    scores, boxes = (one[0] for one in (reversed(outputs) if swapped else outputs))
    kept, value, classes = _best_class(scores[:, int(numbers.background) :], threshold)
    scale = np.array([size[1], size[0]] * 2, np.float32)
    return boxes[kept] * scale, value, classes


DECODERS: dict[str, Decoder] = {
    one.__name__: one for one in (yolox, yolov8, yolov5, yolov5_heads, end_to_end, ssd_corners)
}
"""By the name a recipe writes in `decoder`."""

NEEDS_NO_SUPPRESSION = frozenset({"end_to_end"})


def class_count(decoder: str, shapes: Sequence[Sequence[Any]]) -> int | None:
    """Return how many classes outputs of these shapes can tell apart; None where the shape does not say."""
    first = shapes[0]
    if decoder in ("yolox", "yolov5", "yolov5_heads") and isinstance(first[-1], int) and len(first) != 4:
        return first[-1] - 5
    if decoder == "yolov8" and isinstance(first[1], int):
        return first[1] - 4
    return None
