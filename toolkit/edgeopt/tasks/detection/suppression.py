"""Non-maximum suppression: of boxes on one object the best stays."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

_MANY = 400
"""Candidates from which on one call a class is faster: one call for all compares boxes of different classes too."""


def suppress(
    boxes: NDArray[np.float32], scores: NDArray[np.float32], classes: NDArray[np.int64], iou: float, most: int
) -> NDArray[np.int64]:
    """Return the positions kept by class-wise non-maximum suppression, best first; of equal scores the first row.

    Args:
        boxes: (n, 4) left, top, right, bottom.
        scores: (n,).
        classes: (n,); boxes of different classes never suppress one another.
        iou: A box goes when its overlap with a better one of its class is above this.
        most: At most so many are kept.

    Source: OpenCV `dnn.NMSBoxesBatched` and `dnn.NMSBoxes`; what each costs is in benchmarks/suppression.py.
    """
    if not len(scores):
        return np.empty(0, np.int64)
    sizes = boxes.astype(np.float64)
    sizes[:, 2:] -= sizes[:, :2]
    if len(scores) < _MANY:
        sizes[:, :2] -= sizes[:, :2].min(axis=0)  # it sets classes apart by the largest coordinate, from 0
        kept = cv2.dnn.NMSBoxesBatched(sizes.tolist(), scores.tolist(), classes.tolist(), 0.0, iou)
        return np.asarray(kept, np.int64).reshape(-1)[:most]
    parts = []
    for label in np.unique(classes):
        rows = np.flatnonzero(classes == label)
        found = cv2.dnn.NMSBoxes(sizes[rows].tolist(), scores[rows].tolist(), 0.0, iou)
        parts.append(rows[np.asarray(found, np.int64).reshape(-1)])
    together = np.concatenate(parts)
    return together[np.lexsort((together, -scores[together]))][:most]


def keep_best(
    boxes: NDArray[np.float32],
    scores: NDArray[np.float32],
    classes: NDArray[np.int64],
    iou: float,
    most: int,
    *,
    suppresses: bool,
) -> NDArray[np.intp]:
    """Return the positions of the best things, best first; what the model suppressed itself is only ordered.

    Args:
        boxes: As `suppress`.
        scores: As `suppress`.
        classes: As `suppress`.
        iou: As `suppress`.
        most: At most so many are kept.
        suppresses: Whether boxes of one object are still among them.
    """
    if suppresses:
        return suppress(boxes, scores, classes, iou, most)
    return np.argsort(-scores, kind="stable")[:most]
