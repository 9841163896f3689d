"""Boxes of one frame, their overlaps, and how far two sets of boxes agree."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeopt.tasks._matching import matched_share


@dataclass(frozen=True, slots=True)
class Detections:
    """Boxes of one frame, best first."""

    boxes: NDArray[np.float32]
    """(n, 4): left, top, right, bottom in pixels of the frame."""
    scores: NDArray[np.float32]
    """(n,): 0..1."""
    classes: NDArray[np.int64]
    """(n,): class index, from 0."""
    points: NDArray[np.float32] | None = None
    """(n, points, 2): x and y in pixels of the frame, if the model gives points, as RetinaFace does for a face."""

    def __len__(self) -> int:
        return len(self.scores)


def overlaps(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return (n, m) intersection over union of (n, 4) and (m, 4) corner boxes; 0 for empty boxes."""
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    shared = np.prod(np.clip(high - low, 0, None), axis=2)
    area_a, area_b = np.prod(a[:, 2:] - a[:, :2], axis=1), np.prod(b[:, 2:] - b[:, :2], axis=1)
    union = area_a[:, None] + area_b[None, :] - shared
    return np.asarray(np.divide(shared, union, out=np.zeros_like(shared), where=union > 0), np.float32)


def matched_boxes(detections: Detections, reference: Detections, iou: float = 0.5) -> tuple[float, float]:
    """Return matched and total score of two sets of detections: equal sets give equal numbers.

    A pair matches when class and place agree (overlap at least `iou`).
    """
    fits = overlaps(detections.boxes, reference.boxes)
    fits[detections.classes[:, None] != reference.classes[None, :]] = 0
    return matched_share(detections.scores, reference.scores, fits, least=iou, weighs=False)


def lost_share(detections: Detections, reference: Detections) -> tuple[float, float]:
    """Return what is lost of boxes of the same places, and what there is: squared scores, as background counts little.

    A place loses the square of what its score is off, and as much of its own as its boxes do not overlap.

    Args:
        detections: The box of each place, not suppressed.
        reference: The same; where the places are not the same ones, boxes are matched.
    """
    whole = float(np.square(reference.scores.astype(np.float64)).sum())
    if len(detections) != len(reference):
        matched, total = matched_boxes(detections, reference)
        return (1 - matched / total if total > 0 else 0.0) * whole, whole
    own = np.where(detections.classes == reference.classes, detections.scores, 0.0).astype(np.float64)
    scores = reference.scores.astype(np.float64)
    lost = np.square(scores - own) + np.square(scores) * (1 - _paired_overlaps(detections.boxes, reference.boxes))
    return (float(lost.sum()) if np.isfinite(lost).all() else math.inf), whole


def _paired_overlaps(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return (n,) intersection over union of (n, 4) corner boxes with those of the same row."""
    first, second = a.astype(np.float64), b.astype(np.float64)
    low, high = np.maximum(first[:, :2], second[:, :2]), np.minimum(first[:, 2:], second[:, 2:])
    shared = np.prod(np.clip(high - low, 0, None), axis=1)
    areas = [np.prod(np.clip(array[:, 2:] - array[:, :2], 0, None), axis=1) for array in (first, second)]
    union = areas[0] + areas[1] - shared
    return np.asarray(np.divide(shared, union, out=np.zeros_like(shared), where=union > 0))
