"""The affine grid of one tensor: value = scale * (integer - zero_point).

Source: ONNX QuantizeLinear and DequantizeLinear, opset 13: round half to even, then saturate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

SMALLEST_SCALE = 2.0**-60
"""A bias has the product of two scales, and 2^-120 is still a normal float32."""

_SCALE_OF_NOTHING = 2.0**-8
"""Every scale holds zero, but a bias is stored in steps of it times the weights', which must not be coarse."""


@dataclass(frozen=True, slots=True)
class Affine:
    """Scale and zero point of a tensor with one scale for all its values."""

    scale: float
    zero_point: int
    dtype: str = "uint8"

    def __post_init__(self) -> None:
        low, high = integer_range(self.dtype)
        if not SMALLEST_SCALE <= self.scale < math.inf or not low <= self.zero_point <= high:
            raise ValueError(f"scale {self.scale} or zero point {self.zero_point} is no {self.dtype} grid")

    @property
    def low(self) -> float:
        """Smallest value on the grid."""
        return self.scale * (integer_range(self.dtype)[0] - self.zero_point)

    @property
    def high(self) -> float:
        """Largest value on the grid."""
        return self.scale * (integer_range(self.dtype)[1] - self.zero_point)

    def quantize(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the integers nearest to `values`, saturated."""
        low, high = integer_range(self.dtype)
        steps = np.rint(np.asarray(values, np.float32) / np.float32(self.scale)) + self.zero_point
        integers: NDArray[Any] = np.clip(steps, low, high).astype(self.dtype)
        return integers

    def round_trip(self, values: NDArray[Any]) -> NDArray[np.float32]:
        """Return `values` after quantizing and dequantizing."""
        low, high = integer_range(self.dtype)
        scale = np.float32(self.scale)
        steps = np.rint(np.asarray(values, np.float32) / scale)
        clipped: NDArray[np.float32] = np.clip(steps, low - self.zero_point, high - self.zero_point) * scale
        return clipped


def integer_range(dtype: str) -> tuple[int, int]:
    """Return the smallest and the largest integer of a type."""
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def make_affine(
    low: float, high: float, dtype: str = "uint8", *, symmetric: bool = False, power_of_two: bool = False
) -> Affine:
    """Return the grid that covers low..high and zero.

    Zero is always on the grid, so that padding and ReLU are exact. A range of one value, of zero or of
    subnormal numbers gives a grid too.

    Args:
        low: Smallest value.
        high: Largest value, not below `low`.
        dtype: The integer type.
        symmetric: Put zero in the middle.
        power_of_two: Take the next power of two as the scale.

    Raises:
        ValueError: If the range is not finite or is reversed.
    """
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise ValueError(f"{low}..{high} is no range")
    low, high = min(low, 0.0), max(high, 0.0)
    smallest, largest = integer_range(dtype)
    if low == high:
        return Affine(_SCALE_OF_NOTHING, (smallest + largest + 1) // 2 if symmetric else max(smallest, 0), dtype)
    middle = (smallest + largest + 1) // 2
    scale = _scale(max(-low, high), largest - middle) if symmetric else _scale(high - low, largest - smallest)
    if power_of_two:
        scale = float(next_power_of_two(scale))
    if symmetric:
        return Affine(scale, middle, dtype)
    zero_point = round(smallest - low / scale)
    return Affine(scale, min(max(zero_point, smallest), largest), dtype)


def next_power_of_two(scale: NDArray[np.float32] | float) -> NDArray[np.float32]:
    """Return the smallest powers of two that are not below scales above zero."""
    fraction, exponent = np.frexp(np.asarray(scale, np.float32))
    powers: NDArray[np.float32] = np.ldexp(np.float32(1), exponent - (fraction == 0.5))
    return powers


def _scale(span: float, steps: int) -> float:
    """Return a float32 step, never subnormal."""
    return max(float(np.float32(span / steps)), SMALLEST_SCALE)
