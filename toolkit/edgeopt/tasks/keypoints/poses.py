"""Poses of one frame, and how far two sets of them agree."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeopt.recipes.scoring.keypoints import around, likeness
from edgeopt.tasks._matching import matched_share

_LEAST_ALIKE = 0.5
"""Similarity below which two poses are not of one thing."""


@dataclass(frozen=True, slots=True)
class Poses:
    """Poses of one frame, best first."""

    points: NDArray[np.float32]
    """(n, points, 3): x and y in pixels of the frame, and the confidence, 0..1."""
    boxes: NDArray[np.float32]
    """(n, 4): left, top, right, bottom in pixels of the frame; around the points if the model gives no boxes."""
    scores: NDArray[np.float32]
    """(n,): 0..1."""
    classes: NDArray[np.int64]
    """(n,): class index, from 0."""

    def __len__(self) -> int:
        return len(self.scores)


def areas_of(boxes: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return (n,) the area of each box."""
    sides = np.clip(boxes[:, 2:].astype(np.float64) - boxes[:, :2], 0, None)
    return np.asarray(sides.prod(axis=1))


def matched_poses(poses: Poses, reference: Poses, sigmas: NDArray[np.float64]) -> tuple[float, float]:
    """Return matched and total score of two sets of poses; a pair counts as much as its points are alike.

    Args:
        poses: Of one model.
        reference: Of another; its sure points count most, and its boxes say how large a thing is.
        sigmas: (points,).
    """
    fits = likeness(poses.points, reference.points, areas_of(reference.boxes), sigmas, _weights(reference))
    fits[poses.classes[:, None] != reference.classes[None, :]] = 0
    return matched_share(poses.scores, reference.scores, fits, least=_LEAST_ALIKE, weighs=True)


def lost_share(poses: Poses, reference: Poses, sigmas: NDArray[np.float64]) -> tuple[float, float]:
    """Return what is lost of poses of the same places, and what there is: squared scores, as of boxes.

    Args:
        poses: The pose of each place, not suppressed.
        reference: The same; where the places are not the same ones, poses are matched.
        sigmas: (points,).
    """
    scores = reference.scores.astype(np.float64)
    whole = float(np.square(scores).sum())
    if len(poses) != len(reference):
        matched, total = matched_poses(poses, reference, sigmas)
        return (1 - matched / total if total > 0 else 0.0) * whole, whole
    own = np.where(poses.classes == reference.classes, poses.scores, 0.0).astype(np.float64)
    weights, areas = _weights(reference), areas_of(reference.boxes)
    far = np.square(poses.points[..., :2].astype(np.float64) - reference.points[..., :2]).sum(axis=2)
    alike = np.exp(-far / (2 * np.square(2 * sigmas)) / (areas[:, None] + np.spacing(1)))
    total = weights.sum(axis=1)
    alike = np.divide((alike * weights).sum(axis=1), total, out=np.zeros_like(total), where=total > 0)
    lost = np.square(scores - own) + np.square(scores) * (1 - alike)
    return (float(lost.sum()) if np.isfinite(lost).all() else math.inf), whole


def _weights(poses: Poses) -> NDArray[np.float64]:
    return np.clip(np.nan_to_num(poses.points[..., 2].astype(np.float64)), 0, 1)


def with_boxes(points: NDArray[np.float32], scores: NDArray[np.float32]) -> Poses:
    """Return poses of one class whose boxes lie around their points."""
    return Poses(points, around(points), scores, np.zeros(len(scores), np.int64))
