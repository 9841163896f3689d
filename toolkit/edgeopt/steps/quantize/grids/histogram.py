"""A histogram whose range grows while values stream in.

Bin k holds the values of [k w, (k + 1) w) with w = 2^exponent. When the range outgrows the capacity, w
doubles and neighbours k = 2 j and 2 j + 1 become j. As w is a power of two and zero is always an edge,
merging is exact: the result depends neither on the order of the values nor on how they were split (a number
too small to be told from zero in bins counts as zero).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CAPACITY = 2048
_SMALLEST_EXPONENT = -100
_CHUNK = 1 << 16
"""Values at a time, so that the temporaries stay in the L2 cache."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts over equal bins, zero always inside."""

    low: float
    """Smallest value, exact."""
    high: float
    """Largest value, exact."""
    exponent: int
    first: int
    counts: NDArray[np.int64]

    @property
    def width(self) -> float:
        """Width of one bin, a power of two."""
        return math.ldexp(1.0, self.exponent)

    @property
    def centres(self) -> NDArray[np.float64]:
        """Middle of each bin."""
        return (np.arange(len(self.counts), dtype=np.float64) + self.first + 0.5) * self.width

    @property
    def total(self) -> int:
        """How many values were counted."""
        return int(self.counts.sum())

    def __add__(self, other: Histogram) -> Histogram:
        """Return the histogram of both sets of values."""
        first, second = self.coarsened(other.exponent), other.coarsened(self.exponent)
        low = min(first.first, second.first)
        high = max(first.first + len(first.counts), second.first + len(second.counts))
        counts = np.zeros(high - low, np.int64)
        for histogram in (first, second):
            counts[histogram.first - low : histogram.first - low + len(histogram.counts)] += histogram.counts
        smallest, largest = min(self.low, other.low), max(self.high, other.high)
        return Histogram(smallest, largest, first.exponent, low, counts).fitted()

    def fitted(self) -> Histogram:
        """Return the finest histogram that has at most CAPACITY bins."""
        result = self
        while len(result.counts) > CAPACITY:
            result = result.coarsened(result.exponent + 1)
        return result

    def coarsened(self, exponent: int) -> Histogram:
        """Return the same counts with bins of at least 2^exponent."""
        times = exponent - self.exponent
        if times <= 0:
            return self
        bins = (np.arange(len(self.counts)) + self.first) >> times
        counts = np.bincount(bins - bins[0], weights=self.counts).astype(np.int64)
        return Histogram(self.low, self.high, exponent, int(bins[0]), counts)


def count_values(values: NDArray[np.float32], low: float, high: float) -> Histogram:
    """Return the histogram of `values`.

    Args:
        values: Finite numbers, any shape.
        low: Their minimum.
        high: Their maximum.
    """
    exponent = _exponent(min(low, 0.0), max(high, 0.0))
    first = math.floor(math.ldexp(min(low, 0.0), -exponent))
    bins = math.floor(math.ldexp(max(high, 0.0), -exponent)) - first + 1
    counts = np.zeros(bins, np.int64)
    flat, per_unit = np.ravel(values), np.float32(math.ldexp(1.0, -exponent))
    for start in range(0, flat.size, _CHUNK):
        steps = flat[start : start + _CHUNK] * per_unit  # exact: a power of two
        np.floor(steps, out=steps)
        steps -= first
        counts += np.bincount(steps.astype(np.intp), minlength=bins)
    return Histogram(low, high, exponent, first, counts)


def _exponent(low: float, high: float) -> int:
    """Return the smallest exponent with at most CAPACITY bins from `low` to `high`."""
    exponent = max(math.frexp(high - low)[1] - CAPACITY.bit_length(), _SMALLEST_EXPONENT)
    while math.floor(math.ldexp(high, -exponent)) - math.floor(math.ldexp(low, -exponent)) >= CAPACITY:
        exponent += 1
    return exponent
