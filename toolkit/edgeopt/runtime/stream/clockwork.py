"""Time, waiting and threads of a stream: the machine's, or a script's in tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Protocol

_LONGEST_WAIT_S: Final = 0.5
"""A wait is cut here and asked again, so that Ctrl-C is heard on every system."""


class Changes(Protocol):
    """One lock, and a way to wait until somebody else has changed what it guards."""

    def __enter__(self) -> object: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def wait(self, until_ns: int | None = None) -> None:
        """Let the lock go until notified, or until an instant; may return earlier, so that callers ask again."""
        ...

    def notify(self) -> None:
        """Wake everybody who waits."""
        ...


class Running(Protocol):
    """A thread."""

    def join(self, seconds: float) -> bool:
        """Wait for its end; return whether it has ended."""
        ...


class Clockwork(Protocol):
    """Where a stream gets its time and its threads from."""

    def now_ns(self) -> int:
        """Return nanoseconds that never go back."""
        ...

    def changes(self) -> Changes:
        """Return a new lock with its waiting."""
        ...

    def start(self, work: Callable[[], None], name: str) -> Running:
        """Run work in a thread of its own, which does not keep the process alive."""
        ...


class _Changes:
    def __init__(self) -> None:
        self._condition = threading.Condition()

    def __enter__(self) -> object:
        return self._condition.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._condition.__exit__(kind, error, trace)

    def wait(self, until_ns: int | None = None) -> None:
        left_s = _LONGEST_WAIT_S if until_ns is None else (until_ns - time.perf_counter_ns()) / 1e9
        if left_s > 0:
            self._condition.wait(min(left_s, _LONGEST_WAIT_S))

    def notify(self) -> None:
        self._condition.notify_all()


class _Thread:
    def __init__(self, work: Callable[[], None], name: str) -> None:
        self._thread = threading.Thread(target=work, name=name, daemon=True)
        self._thread.start()

    def join(self, seconds: float) -> bool:
        if self._thread is not threading.current_thread():
            self._thread.join(seconds)
        return not self._thread.is_alive()


class Machine:
    """The machine's own clock and threads."""

    def now_ns(self) -> int:
        """Return `time.perf_counter_ns()`."""
        return time.perf_counter_ns()

    def changes(self) -> Changes:
        """Return a condition."""
        return _Changes()

    def start(self, work: Callable[[], None], name: str) -> Running:
        """Start a daemon thread."""
        return _Thread(work, name)
