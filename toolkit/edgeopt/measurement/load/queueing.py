"""Frames that wait: which one is served next, and which one is given up."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from edgeopt.errors import EdgeoptError
from edgeopt.measurement.load.arrivals import Arrivals


class QueueKind(StrEnum):
    """What happens to a frame that arrives while all workers are busy."""

    FIFO = "fifo"
    """It waits, however long."""
    BOUNDED = "bounded"
    """It waits if there is room, else it is refused."""
    LATEST = "latest"
    """It takes the place of the older frame of its stream, which is given up."""


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """The kind of queue, and the room of a bounded one."""

    kind: QueueKind
    depth: int = 0
    """Bounded: frames of all streams that may wait."""

    def __post_init__(self) -> None:
        if (self.depth > 0) != (self.kind is QueueKind.BOUNDED):
            raise ValueError(f"a {self.kind} queue has no depth {self.depth}")

    def __str__(self) -> str:
        return f"{self.kind}:{self.depth}" if self.depth else self.kind.value


FIFO = QueuePolicy(QueueKind.FIFO)
LATEST = QueuePolicy(QueueKind.LATEST)


def parse_queue(text: str) -> QueuePolicy:
    """Return the policy for `fifo`, `bounded:8` or `latest`.

    Raises:
        EdgeoptError: If the text is none of these, or the depth is not above zero.
    """
    if text.strip() in ("fifo", "latest"):
        return QueuePolicy(QueueKind(text.strip()))
    match = re.fullmatch(r"bounded:([0-9]+)", text.strip())
    if match and int(match[1]) > 0:
        return QueuePolicy(QueueKind.BOUNDED, int(match[1]))
    raise EdgeoptError(f"{text!r} is not a queue", remedy="write fifo, bounded:8 or latest")


class Queue:
    """Waiting rows under one policy."""

    def __init__(self, policy: QueuePolicy) -> None:
        self._policy = policy
        self._waiting: deque[int] = deque()
        self._newest: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def offer(self, row: int, stream: int) -> int | None:
        """Let a row wait; return the row that is given up for it (perhaps itself), or None."""
        policy = self._policy
        if policy.kind is QueueKind.LATEST:
            older, self._newest[stream] = self._newest.get(stream), row
            if older is None:
                self._waiting.append(stream)  # a newer frame keeps the place, so no stream starves another
            return older
        if policy.depth and len(self._waiting) >= policy.depth:
            return row
        self._waiting.append(row)
        return None

    def take(self) -> int | None:
        """Return the row that has waited longest (latest: the newest of that stream), or None."""
        if not self._waiting:
            return None
        first = self._waiting.popleft()
        return self._newest.pop(first) if self._policy.kind is QueueKind.LATEST else first


class Line:
    """A timetable meets a queue; the time is told by whoever takes from it.

    Between two takes no worker is free, so that arrivals may be replayed at the next take: what is given up is
    the same as if each had been offered at its own instant.
    """

    def __init__(self, arrivals: Arrivals, policy: QueuePolicy) -> None:
        self._due: list[int] = arrivals.intended_ns.tolist()
        self._stream: list[int] = arrivals.stream.tolist()
        self._queue, self._next = Queue(policy), 0
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
