"""The points of a pose: how many, their names, how exactly each can be placed, and what is joined when drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from edgeopt.system.toml import Within

COCO_NAMES = (
    *("nose", "left_eye", "right_eye", "left_ear", "right_ear", "left_shoulder", "right_shoulder", "left_elbow"),
    *("right_elbow", "left_wrist", "right_wrist", "left_hip", "right_hip", "left_knee", "right_knee", "left_ankle"),
    "right_ankle",
)
_COCO_SIGMAS = (0.026, *[0.025] * 2, *[0.035] * 2, *[0.079] * 2, *[0.072] * 2, *[0.062] * 2, *[0.107] * 2)
_COCO_SIGMAS += (*[0.087] * 2, *[0.089] * 2)
"""Source: COCO keypoint evaluation; pycocotools, `Params.setKpParams`."""
_COCO_SKELETON = (
    *((15, 13), (13, 11), (16, 14), (14, 12), (11, 12), (5, 11), (6, 12), (5, 6), (5, 7), (6, 8), (7, 9), (8, 10)),
    *((1, 2), (0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 6)),
)
_MOST_POINTS = 1024


@dataclass(frozen=True, slots=True)
class Keypoints:
    """The table `[keypoints]` of a recipe."""

    count: Annotated[int, Within(0, _MOST_POINTS)] = 0
    """Points of one pose; 0: as the exporter or the outputs say, else COCO's 17."""
    values: Annotated[int, Within(0, 3)] = 0
    """Numbers a point in a detector's rows: 2 (x, y) or 3 (and how sure); 0: as the exporter says, else 3."""
    names: tuple[str, ...] = ()
    """None: COCO's where there are 17 points, else numbers."""
    sigmas: tuple[Annotated[float, Within(1e-4, 1)], ...] = ()
    """How far apart annotators place each point, over the square root of the thing's area."""
    skeleton: tuple[tuple[Annotated[int, Within(0, _MOST_POINTS)], ...], ...] = ()
    """Pairs of points, from 0, that are joined when drawn."""
    point_threshold: Annotated[float, Within(0, 1)] = 0.5
    """Points that are less sure are not told and not drawn."""

    def __post_init__(self) -> None:
        if self.values == 1:
            raise ValueError("values is 1, not 2 (x, y) or 3 (x, y, how sure)")
        values = {"names": self.names, "sigmas": self.sigmas}
        for name, ones in values.items():
            if self.count and ones and len(ones) != self.count:
                raise ValueError(f"{len(ones)} {name} for {self.count} points")
        if self.names and self.sigmas and len(self.names) != len(self.sigmas):
            raise ValueError(f"{len(self.names)} names for {len(self.sigmas)} sigmas")
        if odd := [pair for pair in self.skeleton if len(pair) != 2]:
            raise ValueError(f"skeleton has {list(odd[0])}, no pair of points")

    @property
    def points(self) -> int:
        """How many a row of a detector holds."""
        return self.count or len(self.names) or len(self.sigmas) or len(COCO_NAMES)

    @property
    def numbers(self) -> int:
        """How many numbers a row of a detector holds for its points."""
        return self.points * (self.values or 3)

    def name(self, index: int) -> str:
        """Return the name of a point, from 0."""
        names = self.names or (COCO_NAMES if self.points == len(COCO_NAMES) else ())
        return names[index] if index < len(names) else f"point {index}"

    def joined(self, count: int) -> tuple[tuple[int, ...], ...]:
        """Return the pairs that are joined when drawn, of so many points."""
        pairs = self.skeleton or (_COCO_SKELETON if count == len(COCO_NAMES) else ())
        return tuple(pair for pair in pairs if max(pair) < count)

    def spreads(self, count: int) -> NDArray[np.float64]:
        """Return (count,) sigmas: the recipe's, COCO's for its 17 points, or else 1 / count.

        Source: of other points, Ultralytics, `PoseValidator.init_metrics`.
        """
        if len(self.sigmas) == count:
            return np.array(self.sigmas)
        return np.array(_COCO_SIGMAS) if count == len(COCO_NAMES) else np.full(count, 1 / count)


def likeness(
    array: NDArray[np.float32],
    reference: NDArray[np.float32],
    areas: NDArray[np.float64],
    sigmas: NDArray[np.float64],
    weights: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return (n, m) object keypoint similarity of poses, 0 to 1; 0 where a reference has no point that counts.

    Args:
        array: (n, points, 2 or more) x and y first.
        reference: (m, points, 2 or more).
        areas: (m,) of the references, in square pixels.
        sigmas: (points,).
        weights: (m, points) how much each point of a reference counts.

    Source: COCO keypoint evaluation; pycocotools, `COCOeval.computeOks`.
    """
    far = np.square(array[:, None, :, :2].astype(np.float64) - reference[None, :, :, :2]).sum(axis=3)
    with np.errstate(over="ignore", invalid="ignore"):
        alike = np.exp(-far / (2 * np.square(2 * sigmas)) / (areas[None, :, None] + np.spacing(1)))
    total = weights.sum(axis=1)[None]
    shares = (np.nan_to_num(alike) * weights[None]).sum(axis=2)
    return np.asarray(np.divide(shares, total, out=np.zeros_like(shares), where=total > 0))


def around(points: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return (n, 4) the box around each of (n, points, 2 or more)."""
    if not len(points):
        return np.zeros((0, 4), np.float32)
    return np.concatenate([points[..., :2].min(axis=1), points[..., :2].max(axis=1)], axis=1)


def told_shape(shape: Sequence[object]) -> tuple[int, int] | None:
    """Return count and values of an exporter's `kpt_shape = [17, 3]`; None where it is absurd."""
    if len(shape) != 2:
        return None
    count, values = shape
    if type(count) is not int or type(values) is not int or not 1 <= count <= _MOST_POINTS or values not in (2, 3):
        return None
    return count, values
