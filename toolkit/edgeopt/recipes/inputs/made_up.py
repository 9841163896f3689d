"""Made-up samples, from a fixed seed: they show that a model runs, not how accurate it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.tensors import Frame, Tensors, TensorSpec
from edgeopt.recipes.inputs.frames import Frames, find_kind
from edgeopt.system.machine.memory import SMALLER_SAMPLES, require_bytes
from edgeopt.system.text import plural

_SHAPES = 40
"""Shapes on a made-up picture."""
_MOST_BYTES = 1 << 30
"""Most bytes of made-up samples that are held at the same time."""


def synthetic_frames(size: Sequence[int], count: int = 16) -> Frames:
    """Return pictures of smooth random colour: they show that a model runs, not how accurate it is.

    Args:
        size: Height and width in pixels.
        count: How many.
    """
    height, width = size[0], size[1]

    def read(index: int) -> Frame:
        coarse = np.random.default_rng(index).integers(0, 256, (8, 8, 3), np.uint8)
        return np.asarray(cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC), np.uint8)

    return Frames(tuple(f"synthetic[{i}]" for i in range(count)), read, Path("synthetic"))


def synthetic_tensors(inputs: Sequence[TensorSpec], shapes: Mapping[str, tuple[int, ...]], count: int = 16) -> Frames:
    """Return random inputs: numbers from 0 to 1, for whole numbers and truth values 0 or 1.

    Args:
        inputs: What the model takes.
        shapes: The static shape of each.
        count: How many; those beyond 1 GiB repeat the first.

    Raises:
        EdgeoptError: If they do not fit in memory.
    """
    chance = np.random.default_rng(0)
    size_bytes = sum(np.dtype(spec.dtype).itemsize * math.prod(shapes[spec.name]) for spec in inputs)
    distinct = max(1, min(count, _MOST_BYTES // max(1, size_bytes)))
    require_bytes(distinct * size_bytes, plural(distinct, "made-up sample"), SMALLER_SAMPLES)
    drawn = [{spec.name: _drawn(chance, spec.dtype, shapes[spec.name]) for spec in inputs} for _ in range(distinct)]

    def take(index: int) -> Tensors:
        return drawn[index % distinct]

    return Frames(tuple(f"synthetic[{i}]" for i in range(count)), take, Path("synthetic"), tensors=take, kind="sample")


def synthetic_like(frames: Frames, size: Sequence[int], count: int = 16) -> Frames:
    """Return made-up frames in place of given ones: of arrays, only shapes, types and ranges are taken over.

    What is neither picture nor tensors is made up by its kind in `sources/`.

    Pictures have shapes drawn on smooth colour: without edges, the parts of a model that look for objects stay silent.

    Args:
        frames: Pictures, or tensors by name.
        size: Height and width of made-up pictures.
        count: How many.
    """
    if not frames.holds_pictures and frames.tensors is None:
        return find_kind(frames.kind).like(frames, count)
    if frames.tensors is None:
        smooth = synthetic_frames(size, count)
        return replace(smooth, read=lambda i: _with_shapes(smooth.picture(i), np.random.default_rng([1, i])))
    given = [frames.tensors(i) for i in range(min(len(frames), count))]
    chance = np.random.default_rng(0)
    drawn = [{name: _drawn_like(chance, [arrays[name] for arrays in given]) for name in given[0]} for _ in range(count)]

    def take(index: int) -> Tensors:
        return drawn[index]

    return Frames(tuple(f"synthetic[{i}]" for i in range(count)), take, Path("synthetic"), tensors=take, kind="sample")


def _with_shapes(picture: Frame, chance: np.random.Generator) -> Frame:
    """Draw filled and hollow ellipses and boxes of random colour on a picture."""
    height, width = picture.shape[:2]
    for _ in range(_SHAPES):
        colour = tuple(map(int, chance.integers(0, 256, 3)))
        x, y = map(int, chance.integers(0, (width, height)))
        across, down = map(int, chance.integers(2, (max(3, width // 4), max(3, height // 4))))
        line = int(chance.choice([cv2.FILLED, 2, 4]))
        if chance.random() < 0.5:
            cv2.ellipse(picture, (x, y), (across, down), float(chance.integers(180)), 0, 360, colour, line)
        else:
            cv2.rectangle(picture, (x, y), (x + across, y + down), colour, line)
    return picture


def _drawn_like(chance: np.random.Generator, arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return an array of the first one's shape and type whose numbers lie evenly in the range of all."""
    first = arrays[0]
    if first.dtype.kind not in "fiub" or not first.size:
        return np.zeros_like(first)
    numbers = np.concatenate([array[np.isfinite(array)] for array in arrays])
    low, high = (numbers.min(), numbers.max()) if numbers.size else (0, 0)
    if first.dtype.kind == "f":
        return np.asarray(chance.uniform(float(low), float(high), first.shape), first.dtype)
    return np.asarray(chance.integers(int(low), int(high), first.shape, np.int64, endpoint=True), first.dtype)


def _drawn(chance: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    values = chance.random(shape) if np.dtype(dtype).kind == "f" else chance.integers(0, 2, shape)
    return np.asarray(values, dtype)


def with_nothing(picture: Frame) -> tuple[Frame, Frame]:
    """Return pictures of the same size and colours with nothing in them: their mean, and noise of their deviation."""
    mean, deviation = picture.mean(axis=(0, 1)), picture.std(axis=(0, 1))
    noise = np.random.default_rng(0).normal(mean, deviation, picture.shape)
    blank = np.broadcast_to(mean, picture.shape)
    return blank.round().astype(np.uint8), noise.round().clip(0, 255).astype(np.uint8)
