"""How times vary within one run: between blocks and in groups."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from edgeopt.measurement.samples import Samples

_BLOCK = 25
_MOST_BLOCKS = 20
_MIN_REPEATS = 5


def without_inputs(rows: Samples) -> NDArray[np.float64]:
    """Return (n,) times over the median of their own input: a large picture is slow without any noise.

    Args:
        rows: Where an input occurs fewer than five times, the times themselves are returned, in nanoseconds.
    """
    times: NDArray[np.float64] = rows.frame_ns.astype(np.float64)
    if rows.input_id is None or not len(times):
        return times
    _, which, counts = np.unique(rows.input_id, return_inverse=True, return_counts=True)
    if counts.min() < _MIN_REPEATS:
        return times
    medians = np.array([np.median(times[which == one]) for one in range(len(counts))])
    relative: NDArray[np.float64] = times / np.maximum(medians, 1.0)[which]
    return relative


def block_spread(times: NDArray[np.float64]) -> float:
    """Return the largest median of blocks over the smallest, minus 1; 0 for fewer than two blocks of 25."""
    blocks = min(_MOST_BLOCKS, len(times) // _BLOCK)
    if blocks < 2:
        return 0.0
    size = len(times) // blocks
    medians = np.median(times[: blocks * size].reshape(blocks, size), axis=1)
    return float(medians.max() / medians.min() - 1) if medians.min() > 0 else 0.0


def own_spread(times: NDArray[np.float64]) -> float:
    """Return the largest block spread of 19 shufflings: what the frames show without any order in time.

    A block spread above it is, with 95 % confidence, a change over time and not the model's own variation.
    """
    rng = np.random.default_rng(0)
    return max(block_spread(rng.permutation(times)) for _ in range(19))


def mode_gap(times: NDArray[np.float64]) -> float:
    """Return how far apart two groups of times lie, in their own standard deviations; 0 where there are not two.

    The best cut into two groups is the one with the largest variance between them. Groups below a tenth of
    the frames are a tail, not a mode, and groups less than 5 % apart do no harm.

    Source: Otsu 1979 for the cut, Ashman's D (1994) for the distance.
    """
    n, share = len(times), math.ceil(len(times) / 10)
    if n < 2 * _BLOCK or times.min() <= 0:
        return 0.0
    logs = np.sort(np.log(times))
    left = np.arange(1, n)
    sums = np.cumsum(logs)[:-1]
    between = (sums / left - (logs.sum() - sums) / (n - left)) ** 2 * left * (n - left)
    cut = share + int(np.argmax(between[share - 1 : n - share]))
    low, high = logs[:cut], logs[cut:]
    distance = float(high.mean() - low.mean())
    deviation = math.sqrt((float(low.var()) + float(high.var())) / 2)
    if distance < math.log(1.05):
        return 0.0
    return distance / max(deviation, 1e-3)  # identical times in each group: a thousandth is their spread
