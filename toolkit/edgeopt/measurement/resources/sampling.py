"""A light thread that reads one value again and again beside a run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Generic, TypeVar

from edgeopt.measurement.clock import Clock

T = TypeVar("T")


class PeriodicSampler(Generic[T]):
    """Reads when entered, then every `interval_s`, and once more when left.

    A reading costs the run its own time; keep it below a thousandth of the interval.
    """

    def __init__(self, read: Callable[[], T], interval_s: float = 0.1, clock: Clock = time.perf_counter_ns) -> None:
        self._read, self._interval_s, self._clock = read, interval_s, clock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._repeat, name="edgeopt sampler", daemon=True)
        self.taken: list[tuple[int, T]] = []
        """Pairs of the clock's nanoseconds and the value, in order."""
        self.failure: str | None = None
        """Why reading ended before the run did; the values before it are kept."""

    def __enter__(self) -> PeriodicSampler[T]:
        self._take()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._take()

    def _repeat(self) -> None:
        while self.failure is None and not self._stop.wait(self._interval_s):
            self._take()

    def _take(self) -> None:
        if self.failure is not None:
            return
        try:
            value = self._read()
        except (OSError, ValueError) as error:  # a sensor that goes away, or answers nonsense
            self.failure = str(error)
            return
        self.taken.append((self._clock(), value))
