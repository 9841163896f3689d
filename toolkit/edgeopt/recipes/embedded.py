"""Parts of a recipe inside a model, and the tensors that an app then feeds and reads."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from enum import StrEnum
from typing import Any

from numpy.typing import NDArray

from edgeopt.graph.tensors import Sample, require_picture
from edgeopt.recipes.inputs.preprocess import Colour, Geometry, Input, Layout, PictureInput, Preprocess


class Embedded(StrEnum):
    """A part of a recipe that lies in the model itself."""

    PREPROCESS = "preprocess"
    """The input is the frame as it comes: `FRAME`."""
    NORMALISE = "normalise"
    """The input is a picture of the model's own size: `PICTURE`. An application resizes frames itself."""
    POSTPROCESS = "postprocess"
    """The outputs are the answer: `CLASSES` and `SCORES`, of what finds things `BOXES` too, and `POINTS` or `MASKS`;
    of segmentation `CLASS_MAP`."""

    @property
    def takes_frames(self) -> bool:
        """Whether the model is fed frames of any size, which it scales itself."""
        return self is Embedded.PREPROCESS

    @property
    def takes_pictures(self) -> bool:
        """Whether it changes what the model is fed."""
        return self is not Embedded.POSTPROCESS


FRAME = "frame"
"""Input (height, width, 3), BGR, uint8, of any height and width."""
PICTURE = "picture"
"""Input (height, width, 3), BGR, uint8, of the model's height and width; borders of a letterbox belong to it."""
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
CLASS_MAP = "class_map"
"""Output (height, width), uint16: class index of each pixel of the frame, or, without `PREPROCESS`, of the model's
input; 65535 everywhere where the model's scores hold NaN."""

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
    if Embedded.NORMALISE in embedded:
        return _resized_alone(wanted, preprocess, reuse)
    return PictureInput(wanted, preprocess, reuse=reuse)


def _resized_alone(wanted: Input, preprocess: Preprocess, reuse: bool) -> Feed:
    picture = replace(wanted, layout=Layout.NHWC, dtype="uint8")
    as_it_is = replace(preprocess, colour=Colour.BGR, scale=1.0, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    made = PictureInput(picture, as_it_is, reuse=reuse)

    def feed(frame: Sample) -> tuple[NDArray[Any], Geometry]:
        tensor, geometry = made(frame)
        return tensor[0], geometry

    return feed


def _as_it_comes(frame: Sample) -> tuple[NDArray[Any], Geometry]:
    picture = require_picture(frame)
    return picture, Geometry.of_input(picture.shape[:2])
