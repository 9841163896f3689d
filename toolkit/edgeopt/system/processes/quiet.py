"""Keep what other packages print on their way from the terminal, and nothing else."""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
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


_capturing = threading.Lock()


@contextmanager
def captured_natives(chatter: tuple[str, ...] = ()) -> Iterator[list[str]]:
    """Hold back what is printed to the standard output by its number, in C too; yield its lines, which come at the end.

    Args:
        chatter: How lines begin that are dropped; what is printed beside them, by other threads too, is printed again.
            Without any, nothing is.
    """
    lines = list[str]()
    with _capturing, ExitStack() as stack:
        try:
            file, shown = stack.enter_context(tempfile.TemporaryFile()), os.dup(1)
        except OSError:  # a closed output, or a full disk: what is printed is shown
            yield lines
            return
        stack.callback(os.close, shown)
        _flush_natives()
        os.dup2(file.fileno(), 1)
        try:
            yield lines
        finally:
            _flush_natives()
            os.dup2(shown, 1)
            file.seek(0)
            pieces = file.readlines()  # a line ends at a newline alone, and the last one may have none
            lines += b"".join(pieces).decode("utf-8", "replace").splitlines()
            if chatter:
                starts = tuple(start.encode() for start in chatter)
                _write(b"".join(piece for piece in pieces if not (piece.startswith(starts) and piece.endswith(b"\n"))))


def _write(data: bytes) -> None:
    """Write all to the standard output by its number; a pipe takes a part at a time."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(1, rest) :]


def _flush_natives() -> None:
    """Write out what libraries in C have printed so far: they keep it where the standard output is no terminal.

    No other stream is touched: a thread that waits for input holds the lock of the standard input.
    """
    with suppress(OSError, AttributeError, ValueError):
        if os.name == "nt":
            library = ctypes.CDLL("ucrtbase")
            library.__acrt_iob_func.restype = ctypes.c_void_p
            stream = ctypes.c_void_p(library.__acrt_iob_func(1))
        else:
            library = ctypes.CDLL(None)
            stream = ctypes.c_void_p.in_dll(library, "__stdoutp" if sys.platform == "darwin" else "stdout")
        if stream:  # of none, all would be written out
            library.fflush(stream)
