"""A clock is a function that returns nanoseconds: the machine's, or one that a test moves."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

Clock: TypeAlias = Callable[[], int]
"""Nanoseconds that never go back, like `time.perf_counter_ns`."""


@dataclass(slots=True)
class ScriptedClock:
    """A clock that moves only when told, so that the arithmetic of time is tested without waiting."""

    now_ns: int = 0
    reading_costs_ns: int = 0
    """Nanoseconds by which each reading itself moves the clock."""

    def __call__(self) -> int:
        """Return the time, then let the cost of the reading pass."""
        now = self.now_ns
        self.now_ns += self.reading_costs_ns
        return now

    def advance(self, duration_ns: int) -> None:
        """Let time pass.

        Raises:
            ValueError: If time would go back.
        """
        if duration_ns < 0:
            raise ValueError(f"time cannot go back by {-duration_ns} ns")
        self.now_ns += duration_ns


def cost_of_reading_ns(clock: Clock = time.perf_counter_ns, repeats: int = 200) -> int:
    """Return the median time between two readings; it is reported and never subtracted."""
    gaps = []
    for _ in range(repeats):
        before = clock()
        gaps.append(clock() - before)
    return sorted(gaps)[repeats // 2]
