"""The times of the last frames, in memory that is reserved once: `record` costs about a microsecond.

ring = StageRing(("preprocess", "execute", "postprocess"))
ring.feed()
ring.record((110_000, 2_400_000, 90_000), latency_ns=2_600_000)
ring.stats().frame.p99_ms
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from threading import Lock
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edgeopt.runtime.stats import Stats, Times
from edgeopt.system.order_statistic import order_statistic

NOT_RUN: Final = -1
"""Value in place of a time: this frame had no such stage, or its capture is not known."""


class StageRing:
    """The times of the last frames, and the fate of all; any number of threads may write and read."""

    def __init__(self, stages: Sequence[str], length: int = 1024) -> None:
        """Reserve the memory.

        Args:
            stages: Their names, each once, in the order of the times that are recorded.
            length: How many frames the percentiles tell of, 1 or more.

        Raises:
            ValueError: If a name comes twice, or the length is below 1.
        """
        if length < 1 or len(set(stages)) < len(stages):
            raise ValueError(f"a ring has a length of 1 or more and names that differ, not {length} and {list(stages)}")
        self.stages, self.length = tuple(stages), length
        columns = len(self.stages) + 2
        self._rows = np.full((length, columns), NOT_RUN, np.int64)
        self._memory = self._rows.data.cast("B")
        row = Struct(f"={columns}q")
        self._write, self._row_bytes = row.pack_into, row.size
        self._totals, self._counts = np.zeros(columns, np.int64), np.zeros(columns, np.int64)
        self._fed = self._served = self._dropped = self._failed = self._missed = self._next = 0
        self._turn = Lock()

    def feed(self, frames: int = 1) -> None:
        """Count frames that come in."""
        with self._turn:
            self._fed += frames

    def drop(self, frames: int = 1) -> None:
        """Count frames that give way to others."""
        with self._turn:
            self._dropped += frames

    def fail(self, frames: int = 1) -> None:
        """Count frames whose run ended in an error."""
        with self._turn:
            self._failed += frames

    def record(
        self, times_ns: Sequence[int], latency_ns: int, age_ns: int = NOT_RUN, *, is_missed: bool = False
    ) -> None:
        """Keep the times of a frame that was served.

        Args:
            times_ns: One whole number a stage; `NOT_RUN` where the frame had no such stage.
            latency_ns: From the first stage's begin to the answer.
            age_ns: From capture to answer; `NOT_RUN`: the capture is not known.
            is_missed: Whether the answer came after the budget.

        Raises:
            struct.error: If there is not one whole number a stage; the frame is not counted then.
        """
        with self._turn:
            place = self._next
            self._write(self._memory, place * self._row_bytes, *times_ns, latency_ns, age_ns)
            self._served += 1
            self._missed += is_missed
            self._next = place + 1
            if self._next == self.length:
                self._fold()

    def _fold(self) -> None:
        """Add a full ring to the totals, and begin it anew."""
        _add(self._rows, self._totals, self._counts)
        self._next = 0

    def stats(self) -> Stats:
        """Return counts since the start, and percentiles of the last `length` frames."""
        with self._turn:
            seen = self._rows[: min(self._served, self.length)].copy()
            place, totals, counts = self._next, self._totals.copy(), self._counts.copy()
            fed, served, dropped = self._fed, self._served, self._dropped
            failed, missed = self._failed, self._missed
        _add(seen[:place], totals, counts)
        times = [_times(column, *total) for column, *total in zip(seen.T, totals, counts, strict=True)]
        last = int(seen[place - 1, -1]) if served else NOT_RUN
        return Stats(
            fed,
            served,
            dropped,
            failed,
            missed,
            frame=times[-2],
            stages=dict(zip(self.stages, times, strict=False)),
            age=times[-1],
            last_age_ms=None if last < 0 else last / 1e6,
            drift=None,
        )


def _add(rows: NDArray[np.int64], totals: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
    totals += np.maximum(rows, 0).sum(axis=0)
    counts += (rows >= 0).sum(axis=0)


def _times(column: NDArray[np.int64], total_ns: np.int64, count: np.int64) -> Times:
    ordered = np.sort(column[column >= 0])
    p50, p90, p99 = (order_statistic(ordered, p) / 1e6 if len(ordered) else None for p in (0.5, 0.9, 0.99))
    return Times(p50, p90, p99, len(ordered), int(total_ns) / 1e6, int(count))
