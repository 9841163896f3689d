"""Raw outputs to boxes, for heads that give each side of a box as a distribution over distances.

A side is the mean of 0, 1, ... bins - 1 under the softmax of its bins, in cells.

Source: Generalized Focal Loss (arXiv 2006.04388), equation 6.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeopt.recipes.output_shapes import DFL_BINS, STRIDES
from edgeopt.recipes.recipe import Postprocess, Scores
from edgeopt.tasks.detection.head_parts import Array, Candidates, grid, logit, probabilities, softmax


def distances(raw: Array, bins: int) -> Array:
    """Return (n, 4) distances to left, top, right and bottom, in cells, of (n, 4 * bins); one bin is the distance."""
    if bins == 1:
        return raw
    shares = softmax(raw.reshape(-1, bins))
    return np.asarray(shares @ np.arange(bins, dtype=np.float32), np.float32).reshape(-1, 4)


def yolov8_dfl(outputs: Sequence[Array], numbers: Postprocess, size: tuple[int, int], threshold: float) -> Candidates:
    """Decode YOLOv8, v9, v11, v12 and 26 without their last part: distributions of the sides, then classes.

    Read are (1, 4 * bins + classes, n); boxes (1, 4 * bins, n) and classes (1, classes, n); or for each stride boxes
    (1, 4 * bins, h, w) and classes (1, classes, h, w), with or without the sum of the classes (1, 1, h, w) behind
    them, or both in one. Scores are logits unless the recipe says otherwise. 16 bins unless it says so; YOLO26 has 1.

    Source: Ultralytics, `Detect.forward_head`, `DFL` and `dist2bbox`; for each stride: airockchip/ultralytics_yolov8,
    `Detect.forward` for the format rknn.
    """
    bins = numbers.bins or DFL_BINS[yolov8_dfl.__name__]
    sides, raw = _rows(outputs, 4 * bins)
    is_logit = numbers.scores is not Scores.PROBABILITIES
    best = raw.max(axis=0)
    kept = np.flatnonzero(best > (logit(threshold) if is_logit else threshold))
    scores = probabilities(best[kept]) if is_logit else best[kept]
    cells, strides = grid(size, tuple(sorted(numbers.strides or STRIDES)))
    far, centres = distances(sides[:, kept].T, bins), cells[kept] + 0.5
    boxes = np.concatenate([centres - far[:, :2], centres + far[:, 2:]], axis=1) * strides[kept]
    return boxes.astype(np.float32), scores, raw[:, kept].argmax(axis=0).astype(np.int64)


def _rows(outputs: Sequence[Array], sides: int) -> tuple[Array, Array]:
    """Return (sides, n) and (classes, n), finest stride first."""
    scales: dict[int, list[Array]] = {}
    for one in outputs:
        plane = one[0].reshape(one.shape[1], -1)
        scales.setdefault(plane.shape[1], []).append(plane)
    pairs = []
    for _, planes in sorted(scales.items(), reverse=True):
        if planes[0].shape[0] > sides and len(planes) == 1:
            planes = [planes[0][:sides], planes[0][sides:]]
        first = next(i for i, one in enumerate(planes) if one.shape[0] == sides)
        pairs.append((planes[first], next(one for i, one in enumerate(planes) if i != first)))
    return np.concatenate([one for one, _ in pairs], axis=1), np.concatenate([one for _, one in pairs], axis=1)
