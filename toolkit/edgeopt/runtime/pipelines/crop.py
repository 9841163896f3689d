"""Boxes to pictures: what a detector found is cut out for the models behind it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import UnsupportedError
from edgeopt.graph.tensors import Frame
from edgeopt.runtime.pipelines.description import Stage

_Int = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Crops:
    """The pictures cut out of one frame, best box first; a stage behind it runs once for each."""

    pictures: tuple[Frame, ...]
    """(height, width, 3) uint8 each, a view of the frame: copy what must outlive it."""
    boxes: _Int
    """(n, 4): left, top, right, bottom in pixels of the frame, margin included."""
    rows: _Int
    """(n,) the place of each in the boxes that the detector gave."""
    parents: _Int
    """(n,) which picture it was found in: the number of a crop, where the detector ran on crops; else 0."""
    left_out: int
    """Boxes beyond the most that a frame may have."""

    def __len__(self) -> int:
        return len(self.pictures)


def whole(frame: Frame) -> Crops:
    """Return a frame as the one crop of itself: what boxes are cut out of."""
    height, width = frame.shape[:2]
    nothing = np.zeros(1, np.int64)
    return Crops((frame,), np.array([[0, 0, width, height]], np.int64), nothing, nothing, 0)


def cut(stage: Stage, pictures: Crops, found: Sequence[Any]) -> Crops:
    """Cut out the boxes that were found.

    Args:
        stage: A crop.
        pictures: What the detector took: the frame, or crops of it.
        found: Its answer for each picture, with `boxes` (n, 4) in pixels of that picture, and `scores` (n,) if it
            has any; without scores, the order of the boxes counts.

    Raises:
        UnsupportedError: If an answer holds no boxes.
    """
    boxes = [other for number, answer in enumerate(found) for other in _boxes_of(stage, number, answer)]
    boxes.sort(key=lambda entry: -entry[0])  # stable: of equal scores the first
    edges: list[tuple[int, int, int, int]] = []
    cuts: list[Frame] = []
    places: list[tuple[int, int]] = []
    left_out = 0
    for _, parent, row, box in boxes:  # few boxes: plain numbers are faster than arrays
        picture = pictures.pictures[parent]
        left, top, right, bottom = _inside(box, stage.margin, picture.shape)
        if right <= left or bottom <= top:  # it lies outside the picture
            continue
        if len(cuts) == stage.most:
            left_out += 1
            continue
        cuts.append(picture[top:bottom, left:right])
        x, y = pictures.boxes[parent, :2].tolist()
        edges.append((left + x, top + y, right + x, bottom + y))
        places.append((row, parent))
    table = np.array(places, np.int64).reshape(-1, 2)
    return Crops(tuple(cuts), np.array(edges, np.int64).reshape(-1, 4), table[:, 0], table[:, 1], left_out)


def _boxes_of(stage: Stage, number: int, answer: Any) -> list[tuple[float, int, int, list[float]]]:
    """Return score, picture, place and edges of each box that is finite and good enough."""
    boxes = getattr(answer, "boxes", None)
    if not isinstance(boxes, np.ndarray) or boxes.ndim != 2 or boxes.shape[1] != 4:
        raise UnsupportedError(
            f"stage {stage.crop} gives no boxes: {type(answer).__name__}", remedy="crop the boxes of a detector"
        )
    scores = getattr(answer, "scores", None)
    known = [1.0] * len(boxes) if scores is None else np.asarray(scores).tolist()
    return [
        (score, number, row, box)
        for row, (score, box) in enumerate(zip(known, boxes.tolist(), strict=True))
        if score >= stage.least_score and all(map(math.isfinite, box))
    ]


def _inside(box: Sequence[float], margin: float, shape: Sequence[int]) -> tuple[int, int, int, int]:
    """Return whole pixels of a box with its margin, inside the picture."""
    left, top, right, bottom = box
    x, y = margin * (right - left), margin * (bottom - top)
    return (
        max(0, math.floor(left - x)),
        max(0, math.floor(top - y)),
        min(shape[1], math.ceil(right + x)),
        min(shape[0], math.ceil(bottom + y)),
    )
