"""Pictures as they might have been taken otherwise: cut, moved, mirrored and lit anew, before the recipe prepares them.

The teacher answers the same changed picture, so no label has to be right for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from edgeopt.graph.tensors import Frame, Sample
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.recipes.recipe import Recipe

LEAST_MIRRORED = 0.6
"""Agreement of a teacher's answers to pictures and to their mirror images from which mirrored ones are of use.

SqueezeNet and YOLOX-nano reach 0.79 and 0.73, the digits detector 0.27."""
_LEAST_AREA = 0.45
"""Share of a picture that a cut keeps at least."""
_ZOOM = (0.6, 1.5)
"""Zoom of a detector's picture."""
_MOSAIC = 0.25
"""Share of a detector's pictures that are four of them."""
_LIGHT, _TINT, _OFFSET = 0.2, 0.06, 12.0
"""How far brightness, the balance of colours and, in steps of 255, the level of black change."""


@dataclass(frozen=True, slots=True)
class Augmentation:
    """How pictures of one recipe may be changed; arrays stay as they are."""

    frames: Frames
    gives_boxes: bool
    mirrors: bool
    pad: int
    """Grey value around a picture that was made smaller."""
    seed: int

    @classmethod
    def of(cls, frames: Frames, recipe: Recipe, *, gives_boxes: bool, mirrors: bool, seed: int) -> Augmentation:
        """Return what suits a recipe.

        Args:
            frames: Pictures, or arrays.
            recipe: Bound to the model.
            gives_boxes: Whether the task finds things at places.
            mirrors: Whether the teacher answers mirrored pictures alike; see `LEAST_MIRRORED`.
            seed: Of all that is drawn.
        """
        return cls(frames, gives_boxes, mirrors, recipe.preprocess.pad, seed)

    def draw(self, position: int) -> Sample:
        """Return the sample at a position of an endless row: each epoch holds every picture once, newly changed.

        Args:
            position: From 0; the same one gives the same sample.
        """
        epoch, place = divmod(position, len(self.frames))
        order = np.random.default_rng([self.seed, 0, epoch]).permutation(len(self.frames))
        sample = self.frames.read(int(order[place]))
        if not isinstance(sample, np.ndarray):
            return sample
        chance = np.random.default_rng([self.seed, 1, position])
        if not self.gives_boxes:
            sample = _cut(sample, chance)
        elif chance.random() < _MOSAIC:
            others = [self.frames.picture(int(i)) for i in chance.integers(0, len(self.frames), 3)]
            sample = _mosaic([sample, *others], chance)
        else:
            sample = _zoomed(sample, chance, self.pad)
        if self.mirrors and chance.random() < 0.5:
            sample = mirrored(sample)
        return _lit(sample, chance)


def mirrored(picture: Frame) -> Frame:
    """Return a picture with left and right exchanged."""
    return np.ascontiguousarray(picture[:, ::-1])


def _cut(picture: Frame, chance: np.random.Generator) -> Frame:
    """Return a part of a picture, of another shape by up to a fifth."""
    height, width = picture.shape[:2]
    area, stretch = chance.uniform(_LEAST_AREA, 1.0), float(np.exp(chance.uniform(-0.2, 0.2)))
    rows = min(max(round(height * float(np.sqrt(area * stretch))), 1), height)
    columns = min(max(round(width * float(np.sqrt(area / stretch))), 1), width)
    top, left = int(chance.integers(0, height - rows + 1)), int(chance.integers(0, width - columns + 1))
    return np.ascontiguousarray(picture[top : top + rows, left : left + columns])


def _zoomed(picture: Frame, chance: np.random.Generator, pad: int) -> Frame:
    """Return a picture of the same size that shows a part of it larger, or all of it smaller, somewhere."""
    height, width = picture.shape[:2]
    zoom = float(np.exp(chance.uniform(*np.log(_ZOOM))))
    x, y = chance.uniform(0, 1, 2)
    shift = (1 - zoom) * np.array([width * x, height * y])
    matrix = np.array([[zoom, 0, shift[0]], [0, zoom, shift[1]]])
    moved = cv2.warpAffine(
        picture, matrix, (width, height), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT, borderValue=(pad,) * 3
    )
    return np.asarray(moved, np.uint8)


def _mosaic(pictures: Sequence[Frame], chance: np.random.Generator) -> Frame:
    """Return four pictures that meet at a point near the middle, as large as the first."""
    height, width = pictures[0].shape[:2]
    x, y = (round(side * chance.uniform(0.35, 0.65)) for side in (width, height))
    made = np.empty_like(pictures[0])
    for picture, (top, bottom, left, right) in zip(
        pictures, ((0, y, 0, x), (0, y, x, width), (y, height, 0, x), (y, height, x, width)), strict=True
    ):
        if bottom > top and right > left:
            made[top:bottom, left:right] = cv2.resize(
                picture, (right - left, bottom - top), interpolation=cv2.INTER_AREA
            )
    return made


def _lit(picture: Frame, chance: np.random.Generator) -> Frame:
    """Return a picture in other light."""
    gain = np.exp(chance.uniform(-_LIGHT, _LIGHT) + chance.uniform(-_TINT, _TINT, 3))
    steps = np.arange(256)[:, None, None] * gain + chance.uniform(-_OFFSET, _OFFSET)
    table = np.clip(np.rint(steps), 0, 255).astype(np.uint8)
    return np.asarray(cv2.LUT(picture, table), np.uint8)
