"""Ctrl-C and SIGTERM: both end a command alike, and can be held back until what is being done is whole."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType

_ENDING = (signal.SIGINT, signal.SIGTERM)


_RETRY_S = 0.02
"""Until a signal that came during an import is raised again; imports take a second at most."""


class Terminated(KeyboardInterrupt):
    """SIGTERM came: unlike Ctrl-C in a conversation it ends all, as nobody is there to go on."""


def hear_termination() -> None:
    """Treat SIGTERM (docker stop, systemd, a CI's limit) as Ctrl-C from now on: it raises `Terminated`.

    A program that ignores SIGTERM, or hears it itself, keeps its own way.
    """
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, end_after_imports)


def end_after_imports(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, of SIGTERM `Terminated`, as soon as no module is being imported.

    An exception while a dataclass or a native module is made is another one by the time it is seen: CPython turns it
    into RuntimeError, nanobind ends the process.

    Raises:
        KeyboardInterrupt: Now, or when the signal comes again.
    """
    if not _is_importing(frame):
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt
    # to the process, so that what the main thread waits for is interrupted; on Windows that would end it at once
    again = partial(signal.raise_signal, number) if os.name == "nt" else partial(os.kill, os.getpid(), number)
    retry = threading.Timer(_RETRY_S, again)
    retry.daemon = True
    retry.start()


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


@contextmanager
def held_interrupts() -> Iterator[Callable[[], bool]]:
    """Hold Ctrl-C and SIGTERM back inside the `with`; a second one ends at once, as it would without.

    Yields:
        A function that says whether there was one. Outside the main thread, which alone hears signals, there is none.
    """
    heard = False
    if threading.current_thread() is not threading.main_thread():
        yield lambda: heard
        return
    before = {number: signal.getsignal(number) for number in _ENDING}

    def hear(number: int, frame: FrameType | None) -> None:
        nonlocal heard
        handler = before[signal.Signals(number)]
        if heard and callable(handler):
            handler(number, frame)
        heard = True

    # one that is ignored, or has the system's own handler, stays: a shell ignores SIGINT for jobs in its background
    ours = [number for number, handler in before.items() if callable(handler)]
    for number in ours:
        signal.signal(number, hear)
    try:
        yield lambda: heard
    finally:
        for number in ours:
            signal.signal(number, before[number])


@contextmanager
def deaf_children() -> Iterator[None]:
    """Start children inside the `with` that hear neither Ctrl-C nor SIGTERM: their parent decides when they end.

    Both reach a whole group of processes, and a child that dies of it would be told as a crash.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
