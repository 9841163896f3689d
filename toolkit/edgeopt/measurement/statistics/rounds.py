"""A quantile over several processes, because memory layout and thread placement differ from start to start.

The interval is Student's t on the logarithm of each round's quantile: it needs no independence of frames,
only of rounds. It starts no process.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeopt.measurement.statistics.binomial import student_quantile
from edgeopt.measurement.statistics.quantile import Quantile, quantile
from edgeopt.system.text import format_ms

_ROUNDS_WANTED = 5


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


def combine_rounds(rounds: Sequence[NDArray[np.int64]], p: float, confidence: float = 0.95) -> RoundsQuantile:
    """Return the p-quantile over rounds.

    Args:
        rounds: One or more; each (n,) times in order, without warm-up. Rounds too short for the quantile are
            left out of the interval and stay in the pooled figure.
        p: 0 < p < 1.
        confidence: Of the two-sided interval.
    """
    pooled = quantile(np.concatenate(rounds), p, confidence)
    found = [quantile(times, p, confidence).value_ns for times in rounds]
    values = tuple(value for value in found if value)
    if not values:
        return RoundsQuantile(p, None, None, None, (), pooled, "no round is long enough")
    logs = np.log(values)
    centre = float(logs.mean())
    if len(values) < 2:
        return RoundsQuantile(p, math.exp(centre), None, None, values, pooled, "one round has no interval")
    reach = student_quantile((1 + confidence) / 2, len(values) - 1) * float(logs.std(ddof=1))
    reach /= math.sqrt(len(values))
    note = "" if len(values) >= _ROUNDS_WANTED else f"indicative: {len(values)} rounds, {_ROUNDS_WANTED} wanted"
    low, high = math.exp(centre - reach), math.exp(centre + reach)
    return RoundsQuantile(p, math.exp(centre), low, high, values, pooled, note)
