"""Quantiles as order statistics with intervals that assume no distribution.

A quantile whose two-sided interval cannot exist at this n has no value: 100 frames say nothing about a p99. Over
several processes the interval is Student's t on the logarithm of each one's quantile: layout in memory and placement of
threads differ from start to start, and it needs no independence of frames.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from edgeopt.measurement.statistics.dependence import count_clusters, effective_count
from edgeopt.measurement.statistics.distributions import binomial_cdf, student_quantile
from edgeopt.system.order_statistic import order_statistic
from edgeopt.system.text import format_ms

_EXACT_BELOW = 5000  # frames; above it the normal form of the ranks differs by less than one rank in a hundred
_CLUSTERS_WANTED = 20
"""Fewer separate bursts of slow frames than this make a tail quantile an indication, not a figure."""
_ROUNDS_WANTED = 5


@dataclass(frozen=True, slots=True)
class Quantile:
    """One order statistic; None where the sample is too small to say."""

    p: float
    value_ns: int | None
    low_ns: int | None
    high_ns: int | None
    n: int
    n_effective: float
    note: str = ""
    clusters: int = 0
    """Separate runs of frames on the far side of the value."""

    @property
    def value_ms(self) -> float | None:
        """The value in milliseconds."""
        return None if self.value_ns is None else self.value_ns / 1e6

    def __str__(self) -> str:
        if self.value_ns is None:
            return "n/a"
        return f"{format_ms(self.value_ns)} [{format_ms(self.low_ns)}, {format_ms(self.high_ns)}]"


@dataclass(frozen=True, slots=True)
class StageTime:
    """The times of one stage, as reports and comparisons show them; None where the sample is too small to say."""

    mean_ms: float | None
    p50_ms: float | None
    p99_ms: float | None


@dataclass(frozen=True, slots=True)
class Summary:
    """Head, centre and tail of one series of times; None where there is nothing to say."""

    n: int
    min_ns: int | None
    mean_ns: float | None
    trimmed_mean_ns: float | None
    """Without the lowest and the highest 5 %."""
    max_ns: int | None
    p1: Quantile
    p5: Quantile
    p50: Quantile
    p90: Quantile
    p95: Quantile
    p99: Quantile
    p999: Quantile

    @property
    def stage_time(self) -> StageTime:
        """The part that reports and comparisons show."""
        mean = None if self.mean_ns is None else self.mean_ns / 1e6
        return StageTime(mean, self.p50.value_ms, self.p99.value_ms)


def minimum_n(p: float, confidence: float = 0.95) -> int:
    """Return the least sample whose two-sided interval for the p-quantile exists, 0 < p < 1.

    Source: the interval [x_(1), x_(n)] misses with probability p^n above and (1 - p)^n below.
    """
    return math.ceil(math.log((1 - confidence) / 2) / math.log(max(p, 1 - p)) - 1e-9)


@lru_cache(maxsize=4096)
def interval_ranks(n: int, p: float, confidence: float = 0.95) -> tuple[int, int]:
    """Return the ranks (from 1) of the two-sided interval; below 1 or above n a bound does not exist.

    Args:
        n: Independent samples, at least 1.
        p: The quantile, 0 < p < 1.
        confidence: Of the interval, split evenly.

    Source: the number of samples at or below the quantile is Binomial(n, p); exact below 5000 samples.
    """
    alpha = (1 - confidence) / 2
    if n >= _EXACT_BELOW:
        spread = NormalDist().inv_cdf(1 - alpha) * math.sqrt(n * p * (1 - p))
        return math.floor(n * p - spread), math.ceil(n * p + spread) + 1
    low = _first_rank(n, p, alpha, above=True) - 1  # the largest l with CDF(l - 1) <= alpha
    return low, _first_rank(n, p, 1 - alpha, above=False)


def _first_rank(n: int, p: float, level: float, *, above: bool) -> int:
    """Return the smallest rank r in 1..n+1 with CDF(r - 1) above (or at) the level."""
    low, high = 1, n + 1
    while low < high:
        middle = (low + high) // 2
        reached = binomial_cdf(middle - 1, n, p)
        low, high = (low, middle) if (reached > level if above else reached >= level) else (middle + 1, high)
    return low


def quantile(values_ns: NDArray[np.int64], p: float, confidence: float = 0.95) -> Quantile:
    """Return the p-quantile with its distribution-free interval.

    Args:
        values_ns: (n,) times in order of occurrence, because bursts widen the interval; may be empty.
        p: 0 < p < 1.
        confidence: Of the two-sided interval.
    """
    return _quantile(values_ns, np.sort(values_ns), p, confidence)


def _quantile(values: NDArray[np.int64], ordered: NDArray[np.int64], p: float, confidence: float) -> Quantile:
    n, least = len(values), minimum_n(p, confidence)
    if n < least:
        return Quantile(p, None, None, None, n, float(n), f"needs {least} frames, has {n}")
    value = order_statistic(ordered, p)
    far = values > value if p >= 0.5 else values < value
    worth, clusters = effective_count(far), count_clusters(far)
    low, high = interval_ranks(max(1, round(worth)), p, confidence)
    stretch = n / max(1, round(worth))
    return Quantile(
        p=p,
        value_ns=value,
        low_ns=int(ordered[max(0, math.floor(low * stretch) - 1)]) if low >= 1 else None,
        high_ns=int(ordered[min(n, math.ceil(high * stretch)) - 1]) if high <= round(worth) else None,
        n=n,
        n_effective=worth,
        note=_remark(worth, least, clusters, p),
        clusters=clusters,
    )


def _remark(worth: float, least: int, clusters: int, p: float) -> str:
    if worth < least:
        return f"indicative: frames come in bursts and are worth {worth:.0f} independent ones, {least} wanted"
    if p != 0.5 and clusters < _CLUSTERS_WANTED:
        return f"indicative: {clusters} separate bursts beyond it, {_CLUSTERS_WANTED} wanted"
    return ""


def summarize(values_ns: NDArray[np.int64]) -> Summary:
    """Return head, centre and tail of times in order of occurrence; an empty series gives None everywhere."""
    ordered, n = np.sort(values_ns), len(values_ns)
    cut = n // 20
    quantiles = {p: _quantile(values_ns, ordered, p, 0.95) for p in (0.01, 0.05, 0.5, 0.9, 0.95, 0.99, 0.999)}
    return Summary(
        n=n,
        min_ns=int(ordered[0]) if n else None,
        mean_ns=float(ordered.mean()) if n else None,
        trimmed_mean_ns=float(ordered[cut : n - cut].mean()) if n else None,
        max_ns=int(ordered[-1]) if n else None,
        p1=quantiles[0.01],
        p5=quantiles[0.05],
        p50=quantiles[0.5],
        p90=quantiles[0.9],
        p95=quantiles[0.95],
        p99=quantiles[0.99],
        p999=quantiles[0.999],
    )


@dataclass(frozen=True, slots=True)
class RoundsQuantile:
    """A quantile with the interval between rounds, and the pooled one beside it."""

    p: float
    value_ns: float | None
    """Geometric mean of the rounds' quantiles; None when no round is long enough."""
    low_ns: float | None
    high_ns: float | None
    """`low_ns` to `high_ns` is the 95 % interval; None for fewer than two rounds."""
    rounds_ns: tuple[int, ...]
    """Each round's own quantile."""
    pooled: Quantile
    note: str = ""

    @property
    def spread_ratio(self) -> float | None:
        """The slowest round over the fastest, minus 1; None without two rounds."""
        if len(self.rounds_ns) < 2 or not min(self.rounds_ns):
            return None
        return max(self.rounds_ns) / min(self.rounds_ns) - 1

    def __str__(self) -> str:
        if self.value_ns is None:
            return "n/a"
        return f"{format_ms(self.value_ns)} [{format_ms(self.low_ns)}, {format_ms(self.high_ns)}]"


def combine_rounds(rounds: Sequence[NDArray[np.int64]], p: float) -> RoundsQuantile:
    """Return the p-quantile over rounds.

    Args:
        rounds: One or more; each (n,) times in order, without warm-up. Rounds too short for the quantile are
            left out of the interval and stay in the pooled figure.
        p: 0 < p < 1.
    """
    pooled = quantile(np.concatenate(rounds), p)
    found = [quantile(times, p).value_ns for times in rounds]
    values = tuple(value for value in found if value)
    if not values:
        return RoundsQuantile(p, None, None, None, (), pooled, "no round is long enough")
    logs = np.log(values)
    centre = float(logs.mean())
    if len(values) < 2:
        return RoundsQuantile(p, math.exp(centre), None, None, values, pooled, "one round has no interval")
    reach = student_quantile(0.975, len(values) - 1) * float(logs.std(ddof=1))
    reach /= math.sqrt(len(values))
    note = "" if len(values) >= _ROUNDS_WANTED else f"indicative: {len(values)} rounds, {_ROUNDS_WANTED} wanted"
    low, high = math.exp(centre - reach), math.exp(centre + reach)
    return RoundsQuantile(p, math.exp(centre), low, high, values, pooled, note)
