"""Keep what other packages print on their way from the terminal, and nothing else."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, TextIO


class _Muffled:
    """A stream that drops what one thread writes, until it is told to stop; others write as ever."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._thread, self.drops = stream, threading.get_ident(), True

    def write(self, text: str) -> int:
        if self.drops and threading.get_ident() == self._thread:
            return len(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def quiet_thread() -> Iterator[None]:
    """Drop what this thread prints to standard output and standard error; what other threads print is shown."""
    out, err = _Muffled(sys.stdout), _Muffled(sys.stderr)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            yield
    finally:
        out.drops = err.drops = False  # a thread that ended later may have put this one back
