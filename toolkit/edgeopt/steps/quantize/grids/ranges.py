"""Choose the range of an activation from its histogram.

Source: min-max and percentile as in ONNX Runtime's calibrators; entropy: Migacz, 8-bit inference with
TensorRT, 2017;
MSE: the grid that loses least, measured after the following activation where there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edgeopt.steps.quantize.activations import Activation
from edgeopt.steps.quantize.grids.affine import Affine, integer_range, make_affine
from edgeopt.steps.quantize.grids.histogram import Histogram

_SHRINK = 0.96 ** np.arange(64)
"""Fractions of the full range that the MSE search tries at each end, 1 to 0.08."""


class Method(StrEnum):
    """How a range follows from what was seen."""

    MINMAX = "minmax"
    PERCENTILE = "percentile"
    ENTROPY = "entropy"
    MSE = "mse"


FIRST_METHOD: Final = Method.MSE
"""Method with which a search begins."""
NEXT_METHODS: Final = (Method.PERCENTILE, Method.MINMAX)
"""Methods that it tries on its best model, in this order."""
LAST_METHODS: Final = (Method.ENTROPY,)
"""Methods that it tries only where no model agrees with the float model: slow to find, and seldom the best."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A grid, apart from its range."""

    dtype: str
    symmetric: bool
    power_of_two: bool
    percentile: float
    after: Activation | None

    def grid(self, low: float, high: float) -> Affine:
        return make_affine(low, high, self.dtype, symmetric=self.symmetric, power_of_two=self.power_of_two)


def choose_affine(
    histogram: Histogram,
    method: Method = FIRST_METHOD,
    *,
    dtype: str = "uint8",
    symmetric: bool = False,
    power_of_two: bool = False,
    percentile: float = 99.99,
    after: Activation | None = None,
) -> Affine:
    """Return the grid of an activation.

    Args:
        histogram: Of all values seen.
        method: How the range is chosen.
        dtype: The integer type.
        symmetric: Zero in the middle of the integers.
        power_of_two: Only scales that are powers of two; the MSE then chooses among them.
        percentile: Share of the values inside, in percent; only for PERCENTILE.
        after: The activation that follows; the MSE is measured behind it.
    """
    return _GRIDS[method](histogram, _Wanted(dtype, symmetric, power_of_two, percentile, after))


def _whole_range(histogram: Histogram) -> tuple[float, float]:
    return min(histogram.low, 0.0), max(histogram.high, 0.0)


def _minmax(histogram: Histogram, wanted: _Wanted) -> Affine:
    return wanted.grid(*_whole_range(histogram))


def _percentile(histogram: Histogram, wanted: _Wanted) -> Affine:
    return wanted.grid(*percentile_range(histogram, wanted.percentile))


def percentile_range(histogram: Histogram, percentile: float) -> tuple[float, float]:
    """Return the range that holds `percentile` percent of the values, the rest cut equally at both ends.

    Raises:
        ValueError: If `percentile` is not above 50 and at most 100.
    """
    if not 50 < percentile <= 100:
        raise ValueError(f"percentile {percentile} is not above 50 and at most 100")
    cut = histogram.total * (1 - percentile / 100) / 2
    below = np.cumsum(histogram.counts)
    above = np.cumsum(histogram.counts[::-1])[::-1]
    inside = np.flatnonzero((below > cut) & (above > cut))
    if not inside.size:
        return 0.0, 0.0
    low = max((int(inside[0]) + histogram.first) * histogram.width, histogram.low)
    high = min((int(inside[-1]) + histogram.first + 1) * histogram.width, histogram.high)
    return min(low, 0.0), max(high, 0.0)


def _entropy(histogram: Histogram, wanted: _Wanted) -> Affine:
    low, high = _whole_range(histogram)
    limit = entropy_limit(histogram, 128 if low < 0 or wanted.symmetric else 256)
    return wanted.grid(max(low, -limit), min(high, limit))


def entropy_limit(histogram: Histogram, levels: int) -> float:
    """Return the |x| at which to saturate so that the Kullback-Leibler divergence is least.

    Args:
        histogram: Of all values seen.
        levels: Integers available for |x|.
    """
    magnitudes = _fold(histogram)
    if len(magnitudes) <= levels or not magnitudes[1:].any():
        return max(-histogram.low, histogram.high)
    stops = np.unique(np.linspace(levels, len(magnitudes), 96).astype(int))
    divergences = [_divergence(magnitudes, int(stop), levels) for stop in stops]
    stop = int(stops[int(np.argmin(divergences))])
    return min(stop * histogram.width, max(-histogram.low, histogram.high))


def _fold(histogram: Histogram) -> NDArray[np.float64]:
    """Return the counts of |x|, bin k for [k w, (k + 1) w)."""
    negative, positive = histogram.counts[: -histogram.first or None], histogram.counts[-histogram.first :]
    if histogram.first == 0:
        negative = negative[:0]
    counts = np.zeros(max(len(negative), len(positive)))
    counts[: len(positive)] += positive
    counts[: len(negative)] += negative[::-1]
    return counts


def _divergence(counts: NDArray[np.float64], stop: int, levels: int) -> float:
    """Return KL(P || Q): P the first `stop` bins with the rest put in the last, Q the same in `levels` steps."""
    reference = counts[:stop].copy()
    reference[-1] += counts[stop:].sum()
    level = np.arange(stop) * levels // stop
    used = counts[:stop] > 0
    mass = np.bincount(level, weights=counts[:stop], minlength=levels)
    bins = np.bincount(level, weights=used, minlength=levels)
    quantized = np.where(used, (mass / np.maximum(bins, 1))[level], 0.0)
    total = max(quantized.sum(), 1.0)
    p, q = reference / reference.sum(), np.maximum(quantized / total, 1e-12)
    return float((p[p > 0] * np.log(p[p > 0] / q[p > 0])).sum())


def _least_squares(histogram: Histogram, wanted: _Wanted) -> Affine:
    """Search both ends in turn; each round tries every fraction of the full range."""
    low, high = _whole_range(histogram)
    if not low < high:
        return wanted.grid(low, high)
    seen = histogram.counts > 0
    values, weights = histogram.centres[seen].astype(np.float32), histogram.counts[seen].astype(np.float64)
    target = values if wanted.after is None else wanted.after(values)
    best, end_low, end_high = np.inf, low, high
    for _round in range(2):
        for side in ("high", "low"):
            lows = _SHRINK * low if side == "low" else np.full(len(_SHRINK), end_low)
            highs = _SHRINK * high if side == "high" else np.full(len(_SHRINK), end_high)
            grids = [wanted.grid(float(a), float(b)) for a, b in zip(lows, highs, strict=True)]
            errors = _squared_errors(values, weights, target, grids, wanted.after)
            index = int(np.argmin(errors))
            if errors[index] < best:
                best, end_low, end_high = float(errors[index]), float(lows[index]), float(highs[index])
    return wanted.grid(end_low, end_high)


def _squared_errors(
    values: NDArray[np.float32],
    weights: NDArray[np.float64],
    target: NDArray[Any],
    grids: list[Affine],
    after: Activation | None,
) -> NDArray[np.float64]:
    """Return the weighted squared error of each grid."""
    smallest, largest = integer_range(grids[0].dtype)
    scales = np.array([grid.scale for grid in grids], np.float32)[:, None]
    zeros = np.array([grid.zero_point for grid in grids], np.float32)[:, None]
    seen = np.clip(np.rint(values / scales), smallest - zeros, largest - zeros) * scales
    error = (seen if after is None else after(seen)) - target
    result: NDArray[np.float64] = np.square(error, dtype=np.float64) @ weights
    return result


_GRIDS: Final[Mapping[Method, Callable[[Histogram, _Wanted], Affine]]] = {
    Method.MINMAX: _minmax,
    Method.PERCENTILE: _percentile,
    Method.ENTROPY: _entropy,
    Method.MSE: _least_squares,
}
