"""Boxes and their suppression."""

from __future__ import annotations

import math
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

_MANY = 400
"""From here one call a class is faster: one call for all compares boxes of different classes too."""


@dataclass(frozen=True, slots=True)
class Detections:
    """Boxes of one frame, best first."""

    boxes: NDArray[np.float32]
    """(n, 4): left, top, right, bottom in pixels of the frame."""
    scores: NDArray[np.float32]
    """(n,): 0..1."""
    classes: NDArray[np.int64]
    """(n,): class index, from 0."""

    def __len__(self) -> int:
        return len(self.scores)


def suppress(
    boxes: NDArray[np.float32], scores: NDArray[np.float32], classes: NDArray[np.int64], iou: float, most: int
) -> NDArray[np.int64]:
    """Return the positions kept by class-wise non-maximum suppression, best first.

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
        kept = cv2.dnn.NMSBoxesBatched(sizes.tolist(), scores.tolist(), classes.tolist(), 0.0, iou)
        return np.asarray(kept, np.int64).reshape(-1)[:most]
    parts = []
    for label in np.unique(classes):
        rows = np.flatnonzero(classes == label)
        found = cv2.dnn.NMSBoxes(sizes[rows].tolist(), scores[rows].tolist(), 0.0, iou)
        parts.append(rows[np.asarray(found, np.int64).reshape(-1)])
    together = np.concatenate(parts)
    return together[np.argsort(-scores[together], kind="stable")][:most]


def overlaps(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return (n, m) intersection over union of (n, 4) and (m, 4) corner boxes; 0 for empty boxes."""
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    shared = np.prod(np.clip(high - low, 0, None), axis=2)
    area_a, area_b = np.prod(a[:, 2:] - a[:, :2], axis=1), np.prod(b[:, 2:] - b[:, :2], axis=1)
    union = area_a[:, None] + area_b[None, :] - shared
    return np.asarray(np.divide(shared, union, out=np.zeros_like(shared), where=union > 0), np.float32)


def matched_share(found: Detections, reference: Detections, iou: float = 0.5) -> tuple[float, float]:
    """Return matched and total score of two sets of detections: equal sets give equal numbers.

    A pair matches when class and place agree (overlap at least `iou`), best score first, each box once; it counts
    twice the smaller score.
    """
    total = math.fsum([*found.scores.tolist(), *reference.scores.tolist()])  # exact, as are the pairs' below
    if not len(found) or not len(reference):
        return 0.0, total
    fits = overlaps(found.boxes, reference.boxes)
    fits[found.classes[:, None] != reference.classes[None, :]] = 0
    matched: list[float] = []
    for row in np.argsort(-found.scores, kind="stable"):
        column = int(fits[row].argmax())
        if fits[row, column] >= iou:
            matched.append(2 * float(min(found.scores[row], reference.scores[column])))
            fits[:, column] = 0
    return math.fsum(matched), total
