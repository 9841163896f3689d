"""Instances of one frame: boxes with masks; where raw masks lie in the frame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.recipes.inputs.preprocess import Geometry
from edgeopt.recipes.scoring.run_lengths import Runs, as_coco, mask_of, runs_of
from edgeopt.tasks._matching import matched_share
from edgeopt.tasks.detection.boxes import Detections, matched_boxes, overlaps

_LEAST_ALIKE = 0.5
"""Overlap below which two masks are not of one thing."""


@dataclass(frozen=True, slots=True)
class Instances:
    """Boxes of one frame, best first, each with its mask."""

    boxes: NDArray[np.float32]
    """(n, 4): left, top, right, bottom in pixels of the frame."""
    scores: NDArray[np.float32]
    """(n,): 0..1."""
    classes: NDArray[np.int64]
    """(n,): class index, from 0."""
    runs: tuple[Runs, ...]
    """Mask of each instance in COCO's run lengths, which take less memory than full masks."""
    size: tuple[int, int]
    """Height and width of the frame."""

    def __len__(self) -> int:
        return len(self.scores)

    def mask(self, index: int) -> NDArray[np.bool_]:
        """Return the mask of instance `index`, (height, width)."""
        return mask_of(self.runs[index], self.size)

    def coco(self) -> list[Any]:
        """Return the masks compressed, as pycocotools takes them."""
        from pycocotools import mask as masks

        return [masks.frPyObjects(as_coco(run, self.size), *self.size) for run in self.runs]


def matched_instances(instances: Instances, reference: Instances) -> tuple[float, float]:
    """Return matched and total score of two sets of instances; a pair counts as much as its masks overlap.

    Frames of different sizes have no pixels in common: there the boxes are compared, as of masks that are both empty.
    """
    if instances.size != reference.size or not len(instances) or not len(reference):
        pair = [Detections(other.boxes, other.scores, other.classes) for other in (instances, reference)]
        return matched_boxes(pair[0], pair[1])
    from pycocotools import mask as masks

    fits = np.asarray(masks.iou(instances.coco(), reference.coco(), [0] * len(reference)), np.float64)
    fits = np.nan_to_num(fits.reshape(len(instances), len(reference)))
    empty = [np.array([not runs[1::2].any() for runs in other.runs]) for other in (instances, reference)]
    both = empty[0][:, None] & empty[1][None, :]
    fits[both] = overlaps(instances.boxes, reference.boxes)[both]
    fits[instances.classes[:, None] != reference.classes[None, :]] = 0
    return matched_share(instances.scores, reference.scores, fits, least=_LEAST_ALIKE, weighs=True)


@dataclass(frozen=True, slots=True)
class Canvas:
    """The frame, and where it lies in the model's input."""

    geometry: Geometry
    size: tuple[int, int]
    """Height and width of the input."""

    @property
    def frame(self) -> tuple[int, int]:
        """Height and width of the frame."""
        return self.geometry.height, self.geometry.width

    def covered(self, box: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return columns and rows of the frame's pixels that a box of the frame covers: left edge in, right edge out.

        Source: Ultralytics, `crop_mask`.
        """
        ends = np.ceil(box.astype(np.float64)).astype(np.int64)
        return np.arange(ends[0], min(ends[2], self.frame[1])), np.arange(ends[1], min(ends[3], self.frame[0]))

    def places(self, columns: NDArray[np.int64], rows: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return where the middles of these pixels lie in the input, in pixels."""
        geometry = self.geometry
        return (columns + 0.5) * geometry.scale_x + geometry.offset_x, (
            rows + 0.5
        ) * geometry.scale_y + geometry.offset_y

    def runs(self, inside: NDArray[np.bool_], columns: NDArray[np.int64], rows: NDArray[np.int64]) -> Runs:
        """Return the runs of a mask that is known for these pixels, and False elsewhere."""
        if not inside.size:
            return runs_of(np.zeros((1, 1), bool), (0, 0), self.frame)
        return runs_of(inside, (int(columns[0]), int(rows[0])), self.frame)


def sampled(plane: NDArray[np.float32], x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float32]:
    """Return (y, x) values of a plane between its cells, bilinear, as `interpolate` of torch does by default.

    Args:
        plane: (height, width).
        x: Of each column that is asked, 0 at the left edge of the plane, its width at the right one.
        y: The same of rows.
    """
    for axis, places in ((0, y), (1, x)):
        most = plane.shape[axis] - 1
        place = np.clip(places - 0.5, 0, most)
        low = np.floor(place).astype(np.int64)
        part = (place - low).astype(np.float32)
        part = part[:, None] if axis == 0 else part[None]
        plane = plane.take(low, axis) * (1 - part) + plane.take(np.minimum(low + 1, most), axis) * part
    return plane
