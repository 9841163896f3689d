"""A timetable meets a queue."""

from __future__ import annotations

import numpy as np

from edgeopt.measurement.load.arrivals import Arrivals
from edgeopt.runtime.schedule.queueing import Queue, QueuePolicy


class QueueLine:
    """A timetable meets a queue; the time is told by whoever takes from it.

    Between two takes no worker is free, so that arrivals may be replayed at the next take: what is given up is
    the same as if each had been offered at its own instant.
    """

    def __init__(self, arrivals: Arrivals, policy: QueuePolicy) -> None:
        self._due: list[int] = arrivals.intended_ns.tolist()
        self._stream: list[int] = arrivals.stream.tolist()
        self._queue, self._next = Queue[int](policy), 0
        self.dropped = np.zeros(len(arrivals), np.bool_)
        """(n,) rows that were given up so far."""

    @property
    def next_ns(self) -> int | None:
        """When the next row arrives; None after the last."""
        return self._due[self._next] if self._next < len(self._due) else None

    def take(self, now_ns: int) -> int | None:
        """Let all arrivals up to now wait; return the row to serve, or None if none waits."""
        while self._next < len(self._due) and self._due[self._next] <= now_ns:
            self._admit()
        return self._queue.take()

    def take_next(self) -> int | None:
        """Hand the next arrival alone to a worker that waited for it; None after the last."""
        if self._next < len(self._due):
            self._admit()
        return self._queue.take()

    def _admit(self) -> None:
        lost = self._queue.offer(self._next, self._stream[self._next])
        self._next += 1
        if lost is not None:
            self.dropped[lost] = True
