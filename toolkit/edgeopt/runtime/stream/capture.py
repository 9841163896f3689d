"""The thread that reads the source: when the next frame is read, and when it counts as captured."""

from __future__ import annotations

from dataclasses import dataclass

from edgeopt.runtime.schedule.queueing import QueueKind
from edgeopt.runtime.stream.frame_queue import WHEN_TAKEN, FrameQueue
from edgeopt.runtime.stream.sources import Captured, Source


@dataclass(slots=True)
class Capture:
    """Brings frames from a source to a queue: at a rate, as they come, or when they are wanted."""

    source: Source
    desk: FrameQueue
    fps: float | None
    """Frames a second of a source that has no rate of its own; None: as they come, or when they are wanted."""
    _due_ns: float = -1.0

    @property
    def is_on_demand(self) -> bool:
        """Whether a frame is read only when the one before was taken, so that none is lost."""
        return self.fps is None and not self.source.is_paced

    @property
    def is_timed(self) -> bool:
        """Whether frames come in by a timetable of our own."""
        return self.fps is not None and not self.source.is_live

    def run(self) -> None:
        """Read until the source ends or the stream is stopped."""
        error: Exception | None = None
        try:
            while (captured := self._next()) is not None:
                self._feed(captured)
        except Exception as problem:  # whatever an app's own iterator raises goes to the reader
            error = problem
        finally:
            try:
                self.source.close()
            except Exception as problem:
                error = error or problem
            self.desk.end(error)

    def _next(self) -> Captured | None:
        if self.desk.is_stopped or (self.is_on_demand and not self.desk.wait_until_wanted()):
            return None
        return self.source.read(self.desk)

    def _feed(self, captured: Captured) -> None:
        instant = self.desk.now_ns
        if self.is_on_demand:
            instant = WHEN_TAKEN
        elif self.is_timed:
            instant = self._wait_for_turn()
        if not self.desk.is_stopped:
            self.desk.feed(captured, instant, can_wait=not self.source.is_live)

    def _wait_for_turn(self) -> int:
        """Wait for the instant at which the timetable has the frame, and return it.

        Of a source that cannot keep the rate the timetable gives way, but for `fifo`, whose frames wait from the
        instant at which they should have come.
        """
        assert self.fps
        period_ns = 1e9 / self.fps
        now = self.desk.now_ns
        if self._due_ns < 0 or (self.desk.policy.kind is not QueueKind.FIFO and now > self._due_ns + period_ns):
            self._due_ns = now
        due = round(self._due_ns)
        self._due_ns += period_ns
        self.desk.wait_until(due)
        return due
