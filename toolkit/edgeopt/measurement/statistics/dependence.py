"""How much independent evidence a series holds: slow frames come in bursts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray


def effective_count(indicator: NDArray[np.bool_]) -> float:
    """Return how many independent frames the series is worth, at most its length.

    The ratio n / n_effective is B * var(means of B frames) / var(frames) with B = 2 sqrt(n). A ratio within
    one standard error of 1 is taken as 1, otherwise chance alone would discard many independent samples.

    Args:
        indicator: (n,) in order of time; True where a frame is slow, late, or otherwise marked.
    """
    n = len(indicator)
    variance = float(indicator.var()) if n else 0.0
    size = math.isqrt(4 * n)
    batches = n // size if size else 0
    if variance == 0 or batches < 3:
        return float(n)
    means = indicator[: batches * size].reshape(batches, size).mean(axis=1)
    ratio = size * float(means.var(ddof=1)) / variance
    return n / ratio if ratio > 1 + math.sqrt(2 / (batches - 1)) else float(n)


def count_clusters(indicator: NDArray[np.bool_]) -> int:
    """Return how many unbroken runs of True the series has."""
    return int(np.count_nonzero(np.diff(indicator.astype(np.int8), prepend=0) == 1))


def longest_run(indicator: NDArray[np.bool_]) -> int:
    """Return the length of the longest unbroken run of True."""
    edges = np.flatnonzero(np.diff(indicator.astype(np.int8), prepend=0, append=0))
    return int((edges[1::2] - edges[::2]).max()) if len(edges) else 0


def autocorrelation(values: NDArray[Any]) -> float:
    """Return the lag-1 autocorrelation of the ranks, -1..1; 0 for fewer than 3 values or a constant series.

    Ranks, so that one stall of a second does not hide a drift of a millisecond.
    """
    if len(values) < 3:
        return 0.0
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - counts / 2)[inverse] - len(values) / 2  # ties share their middle rank
    spread = float(ranks @ ranks)
    return float(ranks[1:] @ ranks[:-1]) / spread if spread else 0.0
