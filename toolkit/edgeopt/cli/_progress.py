"""How far long work is: lines on the standard error, the last of which is rewritten on a terminal."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Callable
from time import monotonic
from types import TracebackType

from edgeopt.system.text import printable

_TELLING_S = 2.0
"""Before that the pace of a piece of work says little."""

_INDENT = " " * 11


class Progress:
    """Listens to long work.

    Where the output is no terminal only whole lines are printed. Nothing redraws itself in the background: a thread
    that draws would slow the frames that are measured.
    """

    def __init__(self, *, quiet: bool = False, clock: Callable[[], float] = monotonic) -> None:
        self._quiet = quiet
        self._clock = clock
        self._work, self._began_s = "", 0.0
        self._is_terminal = sys.stderr.isatty() and not quiet
        self._shown = ""

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._show("")

    def progress(self, what: str, done: int, of: int) -> None:
        """Show how far a piece of work is, and after a few seconds how long the rest will take at this pace."""
        if what != self._work:
            self._work, self._began_s = what, self._clock()
        took_s = self._clock() - self._began_s
        left = f", {took_s / done * (of - done):.0f} s left" if took_s >= _TELLING_S and 0 < done < of else ""
        self._show(f"{what} {done}/{of}{left}" if of > 1 else what)

    def say(self, text: str) -> None:
        """Print one line."""
        if not self._quiet:
            self._show("")
            for line in self._folded(printable(text)):
                sys.stderr.write(f"{line}\n")
            sys.stderr.flush()

    def _folded(self, text: str) -> list[str]:
        width = shutil.get_terminal_size().columns
        if not self._is_terminal or len(text) <= width:
            return [text]
        return textwrap.wrap(text, width, subsequent_indent=_INDENT, break_long_words=False, break_on_hyphens=False)

    def _show(self, text: str) -> None:
        text = printable(text)[: shutil.get_terminal_size().columns - 1]
        if self._is_terminal and text != self._shown:
            sys.stderr.write(f"\r{text.ljust(len(self._shown))}{'' if text else chr(13)}")
            sys.stderr.flush()
            self._shown = text
