"""Ctrl-C, held back until what is being done is whole."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def held_interrupts() -> Iterator[Callable[[], bool]]:
    """Hold Ctrl-C back inside the `with`; a second one ends at once, as it would without.

    Yields:
        A function that says whether there was one. Outside the main thread, which alone hears Ctrl-C, there is none.
    """
    heard = False
    if threading.current_thread() is not threading.main_thread():
        yield lambda: heard
        return
    before = signal.getsignal(signal.SIGINT)

    def hear(number: int, frame: FrameType | None) -> None:
        nonlocal heard
        if heard and callable(before):
            before(number, frame)
        heard = True

    if not callable(before):  # ignored, or another program's handler: it stays
        yield lambda: heard
        return
    signal.signal(signal.SIGINT, hear)
    try:
        yield lambda: heard
    finally:
        signal.signal(signal.SIGINT, before)
