"""What a model may hold of its own recipe, and the tensors that an app then feeds and reads."""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import StrEnum
from typing import Any

from numpy.typing import NDArray

from edgeopt.graph.tensors import Sample, require_picture
from edgeopt.recipes.preprocess import Geometry, Input, PictureInput, Preprocess


class Embedded(StrEnum):
    """A part of a recipe that lies in the model itself."""

    PREPROCESS = "preprocess"
    """The input is the frame as it comes: `FRAME`."""
    POSTPROCESS = "postprocess"
    """The outputs are the answer: `CLASSES` and `SCORES`, of what finds things `BOXES` too, and `POINTS` or `MASKS`."""


FRAME = "frame"
"""Input (height, width, 3), BGR, uint8, of any height and width."""
FRAME_SCALE, FRAME_OFFSET = "frame_scale", "frame_offset"
"""Outputs (2,), float32, x and y, of a detector with raw boxes: input = frame * scale + offset, in pixels."""
BOXES = "boxes"
"""Output (n, 4), float32, best first: left, top, right, bottom in pixels of the frame, or, without `PREPROCESS`, of the
model's input."""
SCORES = "scores"
"""Output (n,), float32, best first: 0 to 1."""
CLASSES = "classes"
"""Output (n,), int64: class index, from 0."""

POINTS = "keypoints"
"""Output (n, points, 3), float32: x and y as `BOXES` has them, and how sure; of a face's landmarks (n, 5, 2)."""
MASKS = "masks"
"""Output (n, height, width), bool: of the frame, or, without `PREPROCESS`, of the model's input."""

Feed = Callable[[Sample], tuple[NDArray[Any], Geometry]]


def picture_feed(wanted: Input, preprocess: Preprocess, embedded: Collection[Embedded], *, reuse: bool) -> Feed:
    """Return what turns a frame into the tensor that a model takes.

    Args:
        wanted: Size (set), layout and dtype of the tensor, where nothing is embedded.
        preprocess: Resize mode, colour and normalisation.
        embedded: Parts of the recipe in the model.
        reuse: See `PictureInput`.
    """
    if Embedded.PREPROCESS in embedded:
        return _as_it_comes
    return PictureInput(wanted, preprocess, reuse=reuse)


def _as_it_comes(frame: Sample) -> tuple[NDArray[Any], Geometry]:
    picture = require_picture(frame)
    return picture, Geometry.of_input(picture.shape[:2])
