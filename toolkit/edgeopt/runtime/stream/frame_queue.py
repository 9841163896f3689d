"""Where frames wait for a worker. Each one is waiting, on its way, served, dropped or failed, and counted once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from edgeopt.graph.tensors import ReducedPicture, Sample
from edgeopt.runtime.schedule.queueing import Queue, QueueKind, QueuePolicy
from edgeopt.runtime.stats.ring import StageRing
from edgeopt.runtime.stream.clockwork import Clockwork
from edgeopt.runtime.stream.events import Event, EventKind
from edgeopt.runtime.stream.sources import Captured

_EVENTS: Final = 256
"""The last ones are kept."""
_OBJECTS_BYTES: Final = 512
"""Bytes of Python's own objects around a frame."""
WHEN_TAKEN: Final = -1
"""Value in place of an instant: the frame lies in its source until somebody wants it, and is captured when it is
taken."""


@dataclass(slots=True)
class Waiting:
    """A frame that came in."""

    index: int
    name: str
    sample: Sample
    captured_ns: int
    """Or `WHEN_TAKEN`."""
    size_bytes: int
    stream: int = 0
    """See `Captured`."""
    is_on_demand: bool = False
    """Whether it lay in its source until it was taken: it grows old there at nobody's cost."""


class FrameQueue:
    """The state that capture, workers and the reader share. Methods take the lock `changes` unless they say who."""

    def __init__(
        self,
        clockwork: Clockwork,
        policy: QueuePolicy,
        ring: StageRing,
        *,
        budget_ns: int,
        most_bytes: int,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        """Open an empty queue.

        Args:
            clockwork: Time and waiting.
            policy: Which frames wait.
            ring: Counts.
            budget_ns: A frame of the policy `latest` that is older is not begun.
            most_bytes: Memory of the frames that wait.
            on_event: Hears of events, in the thread in which they happen.
        """
        self.clockwork, self.policy, self.ring = clockwork, policy, ring
        self.changes = clockwork.changes()
        self.began_ns = clockwork.now_ns()
        self.is_stopped = self.is_ended = False
        """Ended: the source has no more frames."""
        self.source_error: Exception | None = None
        self.fed = 0
        self.last_fed_ns = self.began_ns
        self.keep_every = 1
        """A degraded stream takes one frame of so many."""
        self.gaps, self.gap_s = 0, 0.0
        self._queue: Queue[Waiting] = Queue(policy)
        self._budget_ns, self._most_bytes = budget_ns, most_bytes
        self._bytes, self._was_full = 0, False
        self._events: deque[Event] = deque(maxlen=_EVENTS)
        self._on_event = on_event

    @property
    def events(self) -> tuple[Event, ...]:
        """The last events."""
        return tuple(self._events)

    @property
    def now_ns(self) -> int:
        """The time."""
        return self.clockwork.now_ns()

    @property
    def has_waiting(self) -> bool:
        """Whether a frame waits; the caller holds the lock."""
        return len(self._queue) > 0

    def tell(self, kind: EventKind, reason: str) -> None:
        """Keep an event; with or without the lock."""
        event = Event(kind, (self.now_ns - self.began_ns) / 1e9, self.fed, reason)
        self._events.append(event)
        if self._on_event is not None:
            self._on_event(event)

    def gap(self, seconds: float, reason: str) -> None:
        """Count a time in which the source was away."""
        self.gaps += 1
        self.gap_s += seconds
        self.tell(EventKind.GAP, reason)

    def pause(self, seconds: float) -> bool:
        """Wait; return False as soon as the stream is stopped."""
        return self.wait_until(self.now_ns + round(seconds * 1e9))

    def wait_until(self, instant_ns: int) -> bool:
        """Wait for an instant; return False as soon as the stream is stopped."""
        with self.changes:
            while not self.is_stopped and self.now_ns < instant_ns:
                self.changes.wait(instant_ns)
            return not self.is_stopped

    def wait_until_wanted(self) -> bool:
        """Wait until no frame waits; return False as soon as the stream is stopped."""
        with self.changes:
            while not self.is_stopped and self.has_waiting:
                self.changes.wait()
            return not self.is_stopped

    def feed(self, captured: Captured, captured_ns: int, *, can_wait: bool) -> None:
        """Let a frame come in.

        Args:
            captured: The frame; it is not copied.
            captured_ns: See `Waiting`.
            can_wait: Whether the source may be kept waiting while memory is full; otherwise the frame is dropped.
        """
        with self.changes:
            sample = captured.sample
            item = Waiting(self.fed, captured.name, sample, captured_ns, size_of(sample), captured.stream)
            self.fed, self.last_fed_ns = self.fed + 1, self.now_ns
            self.ring.feed()
            if item.index % self.keep_every or not self._has_room(item, can_wait):
                self.ring.drop()
                return
            lost = self._queue.offer(item)
            self._bytes += item.size_bytes
            if lost is not None:
                self._bytes -= lost.size_bytes
                self.ring.drop()
            self.changes.notify()

    def _has_room(self, item: Waiting, can_wait: bool) -> bool:
        """Wait for room where the source can; return whether there is."""
        while self.policy.kind is not QueueKind.LATEST and self._is_full(item) and not self.is_stopped:
            if not self._was_full:
                self._was_full = True
                done = "the source waits" if can_wait else "further frames are dropped"
                self.tell(EventKind.FULL, f"{len(self._queue)} frames of {self._bytes >> 20} MiB wait: {done}")
            if not can_wait:
                return False
            self.changes.wait()
        return not self.is_stopped

    def _is_full(self, item: Waiting) -> bool:
        return self.has_waiting and self._bytes + item.size_bytes > self._most_bytes

    def take(self) -> Waiting | None:
        """Return the frame to serve, or None if none waits; the caller holds the lock."""
        while (item := self._queue.take()) is not None:
            self._bytes -= item.size_bytes
            self.changes.notify()
            if item.captured_ns == WHEN_TAKEN:
                item.captured_ns, item.is_on_demand = self.now_ns, True
            if not self.is_stale(item):
                return item
            self.ring.drop()
        return None

    def is_stale(self, item: Waiting) -> bool:
        """Whether a frame would surely be answered too late, where the newest frame is what counts."""
        if item.is_on_demand or self.policy.kind is not QueueKind.LATEST:
            return False
        return self.now_ns - item.captured_ns > self._budget_ns

    def end(self, error: Exception | None) -> None:
        """Say that no further frame comes, and why."""
        with self.changes:
            self.is_ended, self.source_error = True, error
            self.changes.notify()

    def stop(self) -> None:
        """Give up the frames that wait; nothing comes in or goes out any more."""
        with self.changes:
            self.is_stopped = True
            while self._queue.take() is not None:
                self.ring.drop()
            self._bytes = 0
            self.changes.notify()


def size_of(sample: Sample) -> int:
    """Return about what a frame takes in memory."""
    picture = sample.pixels if isinstance(sample, ReducedPicture) else sample
    arrays = picture.values() if isinstance(picture, Mapping) else [picture]
    return _OBJECTS_BYTES + sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))
