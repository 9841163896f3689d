"""A fixed piece of work whose time shows whether the machine itself changed.

Hashing runs on one core, in registers and the nearest caches, and allocates nothing: what changes its time
is the core's frequency, or somebody else on the core.
"""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from edgeopt.measurement.clock import Clock

_WORK = bytes(256 * 1024)  # 0.2 ms with SHA instructions, about 1 ms without


@dataclass(frozen=True, slots=True)
class AnchorTimes:
    """The times of the fixed work at one moment of a run."""

    times_ns: tuple[int, ...]

    @property
    def p50_ns(self) -> float:
        """The median."""
        return statistics.median(self.times_ns)


def measure_anchor(repeats: int = 50, clock: Clock = time.perf_counter_ns) -> AnchorTimes:
    """Do the fixed work `repeats` times, at least once."""
    times = []
    for _ in range(repeats):
        before = clock()
        hashlib.sha256(_WORK).digest()
        times.append(clock() - before)
    return AnchorTimes(tuple(times))


def drift_ratio(anchors: Sequence[AnchorTimes]) -> float:
    """Return the slowest median over the fastest, minus 1; 0 for fewer than two anchors."""
    medians = [anchor.p50_ns for anchor in anchors]
    return max(medians) / min(medians) - 1 if len(medians) > 1 and min(medians) > 0 else 0.0
