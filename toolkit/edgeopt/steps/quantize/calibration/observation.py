"""Range, histogram and samples of each tensor that was watched, and how those of several chunks add up.

Adding is exact and keeps no value: whole chunks of images may be watched anywhere, at any time, and the sum is
the same to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.files.large_constants import held_outside
from edgeopt.steps.quantize.grids.histogram import Histogram

BLOCKS, POSITIONS = 16, 64
"""Samples kept of a tensor: blocks (one an image) of positions at most."""
_ALIKE_VALUES = 256
NEVER = 2**53
"""The number of an image that does not come."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One pass's observation of one tensor."""

    low: NDArray[np.float32]
    """Minimum of each channel."""
    high: NDArray[np.float32]
    """Maximum of each channel."""
    histogram: Histogram
    samples: NDArray[np.float32]
    """Sampled positions, shape (positions, channels)."""
    axis: int = 1
    """Which axis of the tensor counts the channels; below zero from the end."""
    why_no_grid: str = ""
    """Why no grid fits: it is infinite or NaN, and for which image first; empty: all is finite. The rest counts finite
    numbers."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The values that some images showed of one tensor, and which of its blocks may still be replaced."""

    low: NDArray[np.float32]
    high: NDArray[np.float32]
    histogram: Histogram
    blocks: Mapping[int, NDArray[np.float32]]
    """Slot -> the block of the last image that drew this slot."""
    infinite_from: int = NEVER
    """Number of the first image for which it is infinite somewhere."""
    nan_from: int = NEVER
    """Number of the first image for which it is NaN somewhere."""

    def __add__(self, later: Seen) -> Seen:
        """Return what both showed; the images of `later` come behind all of mine.

        Where they have other numbers of channels, what is counted is no channel but the tokens of a text, say: then
        all is one.
        """
        if len(self.low) != len(later.low):
            return self._as_one_channel() + later._as_one_channel()
        return Seen(
            np.minimum(self.low, later.low),
            np.maximum(self.high, later.high),
            self.histogram + later.histogram,
            {**self.blocks, **later.blocks},
            min(self.infinite_from, later.infinite_from),
            min(self.nan_from, later.nan_from),
        )

    def _as_one_channel(self) -> Seen:
        return replace(self, low=self.low.min(keepdims=True), high=self.high.max(keepdims=True))

    def observation(self, axis: int) -> Observation:
        """Return what was seen; the channels lay along `axis`."""
        blocks = [self.blocks[slot] for slot in sorted(self.blocks)]
        if len(self.low) == 1:
            blocks = [block.reshape(-1, 1) for block in blocks]
        samples = held_outside(np.concatenate(blocks))
        return Observation(self.low, self.high, self.histogram, samples, axis, self._why_no_grid)

    @property
    def _why_no_grid(self) -> str:
        image, word = min((self.nan_from, "NaN"), (self.infinite_from, "infinite"))
        return f"is {word} for calibration image {image + 1}" if image < NEVER else ""


def draw_block(rows: NDArray[np.float32], image: int, seed: int) -> dict[int, NDArray[np.float32]]:
    """Return the slot and the block of sampled positions of one image, or nothing where it draws no slot.

    What is kept depends on the image's number alone, so that images may be watched in any order.

    Args:
        rows: (outer, channels, inner).
        image: Its number, from 0.
        seed: Of the draw.

    Source: Vitter 1985, algorithm R: all images are equally likely to be kept.
    """
    chance = np.random.default_rng((seed, image))
    slot = image if image < BLOCKS else int(chance.integers(image + 1))
    if slot >= BLOCKS:
        return {}
    count = rows.shape[0] * rows.shape[2]
    positions = chance.integers(count, size=POSITIONS) if count > POSITIONS else np.arange(count)
    return {slot: held_outside(rows[positions // rows.shape[2], :, positions % rows.shape[2]].copy())}


@dataclass(frozen=True, slots=True)
class Spread:
    """Spread of a few fixed values between images, against the spread inside one image."""

    count: int
    inside: float
    """Sum over images of the standard deviation inside."""
    mean: NDArray[np.float64]
    squares: NDArray[np.float64]

    @classmethod
    def of(cls, value: NDArray[Any]) -> Spread:
        """Return the spread of one image: none between, its own inside. Texts are alike where they are the same."""
        few = np.ravel(value)[:: max(1, value.size // _ALIKE_VALUES)]
        if few.dtype.kind in "OSU":
            few = np.array([crc32(str(entry).encode()) for entry in few])
        few = few.astype(np.float64)
        few = np.where(np.isfinite(few), few, 0.0)
        return cls(1, float(few.std()), few, np.zeros_like(few))

    def __add__(self, later: Spread) -> Spread:
        """Return the spread of both; images of another shape are left out.

        Source: Chan, Golub and LeVeque 1979.
        """
        if later.mean.shape != self.mean.shape:
            return self
        count, delta = self.count + later.count, later.mean - self.mean
        mean = self.mean + delta * (later.count / count)
        squares = self.squares + later.squares + delta * delta * (self.count * later.count / count)
        return Spread(count, self.inside + later.inside, mean, squares)

    def ratio(self) -> float:
        """Return the spread between images over the mean spread inside; infinite for a single image."""
        if self.count < 2:
            return math.inf
        between = math.sqrt(float((self.squares / (self.count - 1)).mean()))
        if self.inside == 0:
            return math.inf if between else 0.0
        return between / (self.inside / self.count)


@dataclass(frozen=True, slots=True)
class Part:
    """The values that some images in a row showed of all tensors."""

    images: int
    spread: Spread
    seen: Mapping[str, Seen]

    def __add__(self, later: Part) -> Part:
        """Return what both showed; the images of `later` follow mine."""
        seen = {name: other + later.seen[name] for name, other in self.seen.items()}
        return Part(self.images + later.images, self.spread + later.spread, seen)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return plain arrays by name; `Part.from_arrays` reads them back."""
        spread = self.spread
        arrays: dict[str, NDArray[Any]] = {
            "images": np.array([self.images, spread.count]),
            "inside": np.array([spread.inside]),
            "mean": spread.mean,
            "squares": spread.squares,
            "names": np.frombuffer("\0".join(self.seen).encode(), np.uint8),
        }
        for i, seen in enumerate(self.seen.values()):
            histogram = seen.histogram
            slots = sorted(seen.blocks)
            arrays[f"{i}.range"] = np.stack([seen.low, seen.high])
            arrays[f"{i}.place"] = np.array([histogram.exponent, histogram.first])
            arrays[f"{i}.counts"] = histogram.counts.astype(np.min_scalar_type(histogram.counts.max()))
            arrays[f"{i}.ends"] = np.array([histogram.low, histogram.high])
            arrays[f"{i}.not_finite_from"] = np.array([seen.infinite_from, seen.nan_from])
            arrays[f"{i}.slots"] = np.array(slots, np.int64)
            blocks = [seen.blocks[slot] for slot in slots]  # short texts have fewer positions than others
            arrays[f"{i}.shapes"] = np.array([block.shape for block in blocks], np.int64).reshape(-1, 2)
            arrays[f"{i}.blocks"] = np.concatenate([np.zeros(0, np.float32), *map(np.ravel, blocks)])
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Part:
        """Return what `to_arrays` gave."""
        images, count = (int(array) for array in arrays["images"])
        spread = Spread(count, float(arrays["inside"][0]), arrays["mean"], arrays["squares"])
        names = arrays["names"].tobytes().decode().split("\0")
        return cls(images, spread, {name: _seen(arrays, f"{i}.") for i, name in enumerate(names)})


def _seen(arrays: Mapping[str, NDArray[Any]], prefix: str) -> Seen:
    low, high = arrays[f"{prefix}range"]
    exponent, first = (int(array) for array in arrays[f"{prefix}place"])
    smallest, largest = (float(array) for array in arrays[f"{prefix}ends"])
    histogram = Histogram(smallest, largest, exponent, first, arrays[f"{prefix}counts"].astype(np.int64))
    slots, shapes = arrays[f"{prefix}slots"], arrays[f"{prefix}shapes"]
    ends = shapes.prod(axis=1, dtype=np.int64).cumsum()
    blocks = np.split(arrays[f"{prefix}blocks"], ends[:-1]) if len(slots) else []
    drawn = {int(slot): block.reshape(shape) for slot, block, shape in zip(slots, blocks, shapes, strict=True)}
    return Seen(low, high, histogram, drawn, *(int(image) for image in arrays[f"{prefix}not_finite_from"]))
