"""Keep what other packages print on their way from the terminal, and nothing else."""

from __future__ import annotations

import os
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


class _Natives:
    """The standard error of C libraries: libjpeg and libpng warn there of each damaged picture."""

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0
        self._shown, self._nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)

    def enter(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                os.dup2(self._nowhere, 2)

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                os.dup2(self._shown, 2)


_natives: _Natives | None = None
"""None: this process is somebody's app, whose standard error is its own."""


def take_standard_error() -> None:
    """Let `quiet_natives` work in this process: Python prints to the standard error by a number of its own."""
    global _natives
    if os.name != "posix" or _natives is not None:
        return
    _natives = _Natives()
    encoding, errors = sys.stderr.encoding, sys.stderr.errors
    sys.stderr = open(os.dup(2), "w", buffering=1, encoding=encoding, errors=errors)  # noqa: SIM115, for the whole life


@contextmanager
def quiet_natives() -> Iterator[None]:
    """Drop what libraries in C print to the standard error, in edgeopt's own process; it takes a microsecond."""
    natives = _natives
    if natives is None:
        yield
        return
    natives.enter()
    try:
        yield
    finally:
        natives.leave()
