"""A server in a thread of a program, which stops it: `edgeopt.serve` from Python."""

from __future__ import annotations

import atexit
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from types import TracebackType

from edgeopt.running.serving import Begun, Served

_LOOK_S = 0.2
"""Between two looks at Ctrl-C: Windows interrupts no wait without an end."""
Serving = Callable[[Callable[[Begun], None]], Served]
"""Serves until it is stopped; a function hears where, and gets what stops it."""


class RunningServer:
    """Models that answer over HTTP until the `with` ends, or `stop` or `wait` is called."""

    def __init__(self, serving: Serving) -> None:
        """Begin to serve, and return when it listens.

        Raises:
            EdgeoptError: If it does not begin.
        """
        self._served: Served | None = None
        self._stopping, self._is_stopped = threading.Lock(), False
        self._error: BaseException | None = None
        begun: SimpleQueue[Begun | None] = SimpleQueue()

        def work() -> None:
            try:
                self._served = serving(begun.put)
            except BaseException as error:  # whoever waits for the thread raises it
                self._error = error
            begun.put(None)

        self._thread = threading.Thread(target=work, name="edgeopt-serve", daemon=True)
        self._thread.start()
        try:
            first = begun.get()
        except BaseException:  # an interrupt: nobody else could stop what begins to listen after it
            threading.Thread(target=_stop_begun, args=(begun,), daemon=True).start()
            raise
        if first is None:
            raise self._error or RuntimeError("the server ended before it began")
        self._begun = first
        atexit.register(self._end)

    @property
    def address(self) -> str:
        """The address that clients call: `http://127.0.0.1:8000`; paths begin behind it."""
        return self._begun.address

    @property
    def names(self) -> tuple[str, ...]:
        """The names under which clients ask for the models, in the order in which these were named."""
        return self._begun.names

    def stop(self) -> Served:
        """End it, finish answers on their way, and return what it did; a second call returns the same.

        Raises:
            EdgeoptError: If something else has ended it.
        """
        with self._stopping:
            is_first, self._is_stopped = not self._is_stopped, True
        if is_first:  # a second one would cut answers off
            self._begun.stop()
        return self._result()

    def wait(self) -> Served:
        """Serve until Ctrl-C, SIGTERM or a `stop` of another thread, and return what it did.

        Answers on their way are finished first; a second Ctrl-C ends them. Only the main thread hears these signals.

        Raises:
            EdgeoptError: If something else has ended it.
        """
        with _ending(self._begun.stop):
            return self._result()

    def _result(self) -> Served:
        while self._thread.is_alive():
            self._thread.join(_LOOK_S)
        atexit.unregister(self._end)
        if self._error is not None:
            raise self._error
        assert self._served is not None
        return self._served

    def _end(self) -> None:
        """End it with the program that has forgotten it."""
        self._begun.stop()
        self._thread.join()

    def __enter__(self) -> RunningServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"RunningServer({self.address!r}, {', '.join(map(repr, self.names))})"


def _stop_begun(begun: SimpleQueue[Begun | None]) -> None:
    if (first := begun.get()) is not None:
        first.stop()


@contextmanager
def _ending(stop: Callable[[], None]) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM stop a server inside the `with`, each time one comes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}
    # one that is ignored stays so: a shell ignores SIGINT for jobs in its background
    ours = [number for number in numbers if before[number] not in (signal.SIG_IGN, None)]
    for number in ours:
        signal.signal(number, lambda *_: stop())
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])
