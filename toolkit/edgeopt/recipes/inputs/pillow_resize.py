"""Pictures resized to the byte as Pillow does: weighted sums over a filter as wide as the picture shrinks.

Processors of Hugging Face resize with Pillow, and models are trained behind that. The width comes first; weights are
whole numbers of 1 / 2^22, and sums are rounded to bytes between the axes. Whole numbers give the same sum in whatever
order a processor takes them. Equal to Pillow up to 12; Pillow 13 takes the height first where that shrinks far more
than the width, and rounds between the axes otherwise.

Source: Pillow, src/libImaging/Resample.c.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_BITS = 22
_BLOCK = 64
"""Rows of the result that are summed up together: their rows of the picture take four times the memory meanwhile."""
_BAND = 1024
"""Rows that are laid on their side at once, to be resized along their width."""
_CUBIC = -0.5


class Resample(StrEnum):
    """The filter that a picture is resized with."""

    LANCZOS = "lanczos"
    BICUBIC = "bicubic"
    BILINEAR = "bilinear"


def resized(picture: NDArray[np.uint8], height: int, width: int, resample: Resample) -> NDArray[np.uint8]:
    """Return a picture of another size, as `PIL.Image.resize` makes it.

    Args:
        picture: (height, width, channels).
        height: Of the result.
        width: Of the result.
        resample: The filter.
    """
    if picture.shape[1] != width:
        bands = [
            _along_rows(np.ascontiguousarray(picture[first : first + _BAND].transpose(1, 0, 2)), width, resample)
            for first in range(0, len(picture), _BAND)
        ]
        picture = np.concatenate([band.transpose(1, 0, 2) for band in bands])
    if picture.shape[0] != height:
        picture = _along_rows(picture, height, resample)
    return np.ascontiguousarray(picture)


def _along_rows(picture: NDArray[np.uint8], size: int, resample: Resample) -> NDArray[np.uint8]:
    """Return a picture with so many rows."""
    flat = picture.reshape(len(picture), -1)
    result = np.empty((size, flat.shape[1]), np.uint8)
    sums = _sums_of(len(picture), size, resample)
    for place in range(0, size, _BLOCK):
        block = sums[place : place + _BLOCK]
        first, after = block[0].first, block[-1].first + len(block[-1].weights)
        rows = flat[first:after].astype(np.int32)
        for i, each in enumerate(block, place):
            begin = each.first - first
            total = np.einsum("k,kn->n", each.weights, rows[begin : begin + len(each.weights)])
            total += 1 << (_BITS - 1)
            total >>= _BITS
            result[i] = total.clip(0, 255)
    return result.reshape(size, *picture.shape[1:])


@dataclass(frozen=True, slots=True)
class _WeightedSum:
    """One row of the result: a sum of rows of the picture."""

    first: int
    weights: NDArray[np.int32]


@lru_cache(maxsize=32)
def _sums_of(before: int, size: int, resample: Resample) -> tuple[_WeightedSum, ...]:
    """Return the sums that make `size` rows of `before`; pictures of a camera have one size."""
    kernel, support = _FILTERS[resample]
    scale = before / size
    stretch = max(scale, 1.0)
    reach = support * stretch
    sums = list[_WeightedSum]()
    for row in range(size):
        centre = (row + 0.5) * scale
        low, high = max(int(centre - reach + 0.5), 0), min(int(centre + reach + 0.5), before)
        shares = [kernel((x + low - centre + 0.5) / stretch) for x in range(high - low)]
        total = sum(shares)
        sums.append(_WeightedSum(low, np.array([_whole(share / total) for share in shares], np.int32)))
    return tuple(sums)


def _whole(share: float) -> int:
    """Return a weight in 1 / 2^22, halves away from zero."""
    return int(share * (1 << _BITS) + (0.5 if share >= 0 else -0.5))


def _sinc(x: float) -> float:
    return 1.0 if x == 0 else math.sin(x * math.pi) / (x * math.pi)


def _lanczos(x: float) -> float:
    return _sinc(x) * _sinc(x / 3) if -3.0 <= x < 3.0 else 0.0


def _bicubic(x: float) -> float:
    x = abs(x)
    if x < 1.0:
        return ((_CUBIC + 2.0) * x - (_CUBIC + 3.0)) * x * x + 1
    return (((x - 5) * x + 8) * x - 4) * _CUBIC if x < 2.0 else 0.0


def _bilinear(x: float) -> float:
    return max(1.0 - abs(x), 0.0)


_FILTERS: dict[Resample, tuple[Callable[[float], float], float]] = {
    Resample.LANCZOS: (_lanczos, 3.0),
    Resample.BICUBIC: (_bicubic, 2.0),
    Resample.BILINEAR: (_bilinear, 1.0),
}
