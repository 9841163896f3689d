"""The slope of a series against time, with an interval that assumes no distribution."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

_BLOCKS = 40
"""Medians that stand for the series: pairs grow with the square, and neighbouring samples depend on each other."""
_MIN_BLOCKS = 8


@dataclass(frozen=True, slots=True)
class Slope:
    """Change of y per unit of x, with its two-sided interval."""

    value: float
    low: float
    high: float
    n: int
    """Block medians that were paired."""

    @property
    def is_rising(self) -> bool:
        """Whether the interval lies above zero."""
        return self.low > 0

    def scaled(self, factor: float) -> Slope:
        """Return the slope in another unit; `factor` is above zero."""
        return Slope(self.value * factor, self.low * factor, self.high * factor, self.n)


def theil_sen(x: NDArray[np.float64], y: NDArray[np.float64], confidence: float = 0.95) -> Slope | None:
    """Return the median slope of all pairs; None for fewer than 8 points.

    Long series are first reduced to 40 block medians.

    Args:
        x: (n,) rising.
        y: (n,)
        confidence: Of the two-sided interval.

    Source: Sen 1968; the interval from the variance of Kendall's S, corrected for ties.
    """
    size = max(1, math.ceil(len(x) / _BLOCKS))
    k = len(x) // size
    if k < _MIN_BLOCKS:
        return None
    xs, ys = (np.median(series[: k * size].reshape(k, size), axis=1) for series in (x, y))
    left, right = np.triu_indices(k, 1)
    apart = xs[right] > xs[left]
    slopes = np.sort((ys[right] - ys[left])[apart] / (xs[right] - xs[left])[apart])
    if not len(slopes):
        return None
    reach = NormalDist().inv_cdf((1 + confidence) / 2) * math.sqrt(_variance_of_s(ys)) / 2
    middle = len(slopes) / 2
    low, high = max(0, math.floor(middle - reach)), min(len(slopes) - 1, math.ceil(middle + reach))
    return Slope(float(np.median(slopes)), float(slopes[low]), float(slopes[high]), k)


def _variance_of_s(ys: NDArray[np.float64]) -> float:
    k, ties = len(ys), np.unique(ys, return_counts=True)[1]
    return float(k * (k - 1) * (2 * k + 5) - (ties * (ties - 1) * (2 * ties + 5)).sum()) / 18
