"""The last line of a terminal, rewritten in place while something runs."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from time import monotonic
from types import TracebackType
from typing import TextIO

from edgeopt.cli._streams import write_if_possible
from edgeopt.system.text import columns, printable, shorten

_INTERRUPT = len("^C")
"""Columns that a terminal puts behind the line when it is interrupted."""
_LEAST_S = 0.05
"""Between two drawings: nobody reads faster, and drawing costs time that is measured."""


class StatusLine:
    """One line on the standard error that is rewritten, and is gone at the end. Where that is no terminal: nothing.

    Nothing redraws itself in the background: a thread that draws would slow the frames that are measured.
    """

    def __init__(
        self, *, quiet: bool = False, stream: TextIO | None = None, clock: Callable[[], float] = monotonic
    ) -> None:
        self._stream = stream or sys.stderr
        self._clock = clock
        self._shown, self._drawn_s = "", -_LEAST_S
        self.is_live = self._stream.isatty() and not quiet

    def __enter__(self) -> StatusLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.clear()

    @property
    def width(self) -> int:
        """Columns that a line may take: in the last one some terminals break the line."""
        return shutil.get_terminal_size().columns - 1 - _INTERRUPT

    def show(self, text: str, *, now: bool = False) -> None:
        """Show a text in place of the last one; soon after another it waits for the next call, unless `now`."""
        if self.is_live and (now or self._clock() - self._drawn_s >= _LEAST_S):
            self._draw(shorten(printable(text), self.width))

    def clear(self) -> None:
        """Take the line away."""
        if self._shown:
            write_if_possible(self._stream, f"\r{' ' * (columns(self._shown) + _INTERRUPT)}\r")
            self._shown = ""

    def _draw(self, text: str) -> None:
        if text == self._shown:
            return
        rest = " " * max(0, columns(self._shown) - columns(text))
        write_if_possible(self._stream, f"\r{text}{rest}")
        self._shown, self._drawn_s = text, self._clock()
