"""How much a figure must have moved before a watch says so: at a stated rate of false alarms, for any distribution.

A figure of a frame is ranked among the n calibration frames, and its rank becomes a normal score. A CUSUM (Page 1954)
adds the scores above a tolerance; it alarms above a limit. Where frames are drawn as the calibration frames were, their
shares of the n + 1 gaps between these are Dirichlet(1, ..., 1), whatever the figure's distribution. For each draw of
shares the number t > 0 with E[exp(t (score - tolerance))] = 1 bounds the rate: at most exp(-t limit) false alarms a
look (Lorden 1971, theorem 2). The mean of this bound over the draws is what the limit keeps at the wanted rate, so that
a calibration set that is small, or lies badly by chance, is allowed for.
"""

from __future__ import annotations

import math
from functools import cache
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

_DRAWS: Final = 2000
_SEED: Final = 20261127
_LARGEST_EXPONENT: Final = 50.0
LARGEST_LIMIT: Final = 60.0
"""A chart with a higher limit would need a minute of frames at least, and is left out."""
_HALVINGS: Final = 40


def normal_scores(count: int) -> NDArray[np.float64]:
    """Return (count + 1,) the score of a frame by how many of the calibration frames lie below it."""
    inverse = NormalDist().inv_cdf
    return np.array([inverse((below + 0.5) / (count + 1)) for below in range(count + 1)])


@cache
def limit_of(count: int, tolerance: float, rate_per_look: float) -> float | None:
    """Return the limit of a one-sided CUSUM of normal scores.

    Args:
        count: Calibration frames.
        tolerance: Of a score, in standard deviations: what is added is the score less the tolerance.
        rate_per_look: False alarms a look, on average over calibration sets of this size.

    Returns:
        None where too few calibration frames allow none below 60.
    """
    exponents = _exponents(normal_scores(count) - tolerance)
    low, high = 0.0, LARGEST_LIMIT
    if np.exp(-exponents * high).mean() > rate_per_look:
        return None
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if np.exp(-exponents * middle).mean() > rate_per_look:
            low = middle
        else:
            high = middle
    return high


def _exponents(steps: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (draws,) t for each draw of shares; 0 where a chart would rise without any drift."""
    generator = np.random.default_rng(_SEED)
    shares = generator.exponential(size=(_DRAWS, len(steps)))
    shares /= shares.sum(axis=1, keepdims=True)
    low, high = np.zeros(_DRAWS), np.full(_DRAWS, _LARGEST_EXPONENT)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        is_above = (shares * np.exp(middle[:, None] * steps)).sum(axis=1) > 1
        high = np.where(is_above, middle, high)
        low = np.where(is_above, low, middle)
    return np.where(shares @ steps < 0, low, 0.0)


def looks_per_week(fps: float, every: int) -> float:
    """Return how often a watch looks in a week."""
    return fps * 7 * 24 * 3600 / every


def is_rate(value: float) -> bool:
    """Return whether a number can be a rate."""
    return math.isfinite(value) and value > 0
