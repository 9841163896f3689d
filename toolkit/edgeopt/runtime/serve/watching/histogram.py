"""Times of answers as a Prometheus histogram: how many took at most so long, which adds up over servers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from threading import Lock
from typing import Any


class TimeHistogram:
    """One series of times; any number of threads may write and read."""

    def __init__(self, name: str, told: str, limits_s: Sequence[float]) -> None:
        """Begin at zero.

        Args:
            name: Of the metric, with its unit.
            told: What it is, for a reader of the page.
            limits_s: Of its buckets, rising; one more takes what is longer.
        """
        self.name, self.told, self._limits_s = name, told, tuple(limits_s)
        self._counts, self._sum_s, self._turn = [0] * (len(self._limits_s) + 1), 0.0, Lock()

    def add(self, seconds: float) -> None:
        """Count one time."""
        with self._turn:
            self._counts[bisect_left(self._limits_s, seconds)] += 1
            self._sum_s += seconds

    def family(self, core: Any, name: str) -> Any:
        """Return it as `prometheus_client.core` takes it, of a model."""
        with self._turn:
            counts, sum_s = list(self._counts), self._sum_s
        sums = [sum(counts[: i + 1]) for i in range(len(counts))]
        limits = [*map(str, self._limits_s), "+Inf"]
        family = core.HistogramMetricFamily(self.name, self.told, labels=["name"])
        family.add_metric([name], list(zip(limits, sums, strict=True)), sum_s)
        return family
