"""How far long work is: a bar with the time left on a terminal, lines elsewhere; both on the standard error."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from time import monotonic
from types import TracebackType
from typing import TextIO

from edgeopt.cli._status import StatusLine
from edgeopt.cli._streams import write_if_possible
from edgeopt.system.amounts import Tenths, shown_amount
from edgeopt.system.text import fold, printable, shorten

_TELLING_S = 2.0
"""Before that the pace of a piece of work says little."""
_EVERY_S = 30.0
"""Between two lines about long work where there is no terminal."""
_BAR = 24
"""Columns of the bar."""
_CLOCK = 22
"""Columns of the time beside a bar of the whole; of half an hour it takes more."""
_CLOSE_S = 60
"""Seconds above which the time left is shown in steps of ten seconds, below in steps of five: it is a forecast."""
_INDENT = 11
"""Indent of the lines that go on: under the text beside a label."""


@dataclass
class _Work:
    """One piece of work, as far as it was told."""

    what: str
    of: int
    began_s: float
    first: int
    """Units already done at the first report; nobody saw how long they took, so the pace leaves them out."""
    done: int = 0
    at_s: float = 0.0
    """When `done` last grew."""

    def left_s(self, now_s: float) -> float | None:
        """Return how long the rest takes at the pace so far; None where it says nothing, or was wrong."""
        took_s = self.at_s - self.began_s
        if took_s < _TELLING_S or not self.first < self.done < self.of:
            return None
        left_s = took_s / (self.done - self.first) * (self.of - self.done) - (now_s - self.at_s)
        return left_s if left_s > 0 else None


@dataclass
class _Ahead:
    """The expected parts of the whole command, with their seconds."""

    part_ends_s: float
    rest_s: float

    def left_s(self, now_s: float, work: _Work) -> float:
        """Return how long the whole takes yet: this part as expected, or longer at its work's pace, then all else.

        Work that counts time tells its limit and no pace.
        """
        pace_s = 0.0 if isinstance(work.of, Tenths) else work.left_s(now_s) or 0.0
        return max(self.part_ends_s - now_s, pace_s, 0.0) + self.rest_s


class Progress:
    """Listens to long work.

    A bar stands at the beginning of its line, whatever the work is called, and never runs backwards: work that tells
    less than before keeps its bar. It is of the whole command where that has a time limit or tells what is ahead, else
    of the work that is done now. Where the standard error is no terminal lines are printed that stay, about the work
    itself no more than two a minute.
    """

    def __init__(
        self,
        *,
        quiet: bool = False,
        stream: TextIO | None = None,
        clock: Callable[[], float] = monotonic,
        limit_s: float | None = None,
        is_whole: bool = False,
        began_s: float | None = None,
    ) -> None:
        """Begin to listen.

        Args:
            quiet: Whether nothing is shown.
            stream: Where it is shown; None: the standard error.
            clock: Seconds that never go back.
            limit_s: How long the whole command may take: the bar is then of the whole, and says when it ends.
            is_whole: Whether the bar is of the whole command without a limit too, as far as `ahead` tells of it.
            began_s: When the command began, by the clock; None: now.
        """
        self._quiet, self._clock, self._stream = quiet, clock, stream or sys.stderr
        self._limit_s, self.began_s = limit_s, clock() if began_s is None else began_s
        self._is_whole, self._filled_most = is_whole or limit_s is not None, 0
        self._ahead: _Ahead | None = None
        self._status = StatusLine(quiet=quiet, stream=self._stream, clock=clock)
        self._work = _Work("", 0, 0.0, 0)
        self._told_s = clock()
        self._has_said = False
        filled, empty = ("━", "─") if _can_print("━─", self._stream) else ("#", "-")
        self._filled, self._empty = filled * _BAR, empty * _BAR

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._status.clear()
        if self._has_said and self._status.is_live:
            self.say("")  # apart from what the command prints next

    def progress(self, what: str, done: int, of: int) -> None:
        """Show how far a piece of work is, and after a few seconds how long the rest will take at this pace."""
        now_s, work = self._clock(), self._work
        is_new = what != work.what or of < work.of or (work.done >= work.of and done < of)
        if is_new:
            work = self._work = _Work(what, of, now_s, done, at_s=now_s)
        if done > work.done or of > work.of:
            work.done, work.of, work.at_s = max(done, work.done), of, now_s
        left = self._left(now_s)
        if self._status.is_live:
            self._status.show(self._line(work, left), now=is_new or work.done >= work.of)
        elif not is_new and now_s - self._told_s >= _EVERY_S:
            rest = f" {shown_amount(work.done, work.of).strip()}{left}"
            self.say(f"{shorten(what, self._width - len(rest)) if self._width else what}{rest}")

    def line_now(self) -> str:
        """Return the line of the work that was told last, with the time that is left now; empty before any was."""
        return self._line(self._work, self._left(self._clock())) if self._work.what else ""

    def _left(self, now_s: float) -> str:
        left_s = self._work.left_s(now_s)
        return "" if left_s is None else f"  {_duration(left_s)} left"

    def say(self, text: str) -> None:
        """Print one line, folded where it is wider than the terminal, or in a pipe than `COLUMNS`, if that is set.

        A word that is wider, a path, stays whole: somebody copies it.
        """
        if self._quiet:
            return
        self._status.clear()
        head, _, rest = (text[:_INDENT], "", text[_INDENT:]) if text[_INDENT - 1 : _INDENT] == " " else ("", "", text)
        for line in fold(printable(rest), self._width, printable(head)):
            write_if_possible(self._stream, f"{line}\n")
        self._told_s, self._has_said = self._clock(), True

    @property
    def _width(self) -> int:
        is_asked = self._status.is_live or os.environ.get("COLUMNS", "").isdecimal()
        return shutil.get_terminal_size().columns if is_asked else 0

    def ahead(self, part: str, part_s: float, rest_s: float) -> None:
        """Take what is expected of the whole from here: seconds of the part that begins now, and of all behind it."""
        now_s = self._clock()
        self._ahead = _Ahead(now_s + part_s, rest_s)
        if self._is_whole:
            self._work = _Work(part, 0, now_s, 0, at_s=now_s)
            self._status.show(self._line(self._work, ""), now=True)

    def _whole(self, work: _Work) -> str:
        """Return the line of a whole command: a bar, the time so far, what is left, and the work that is done now."""
        now_s = self._clock()
        spent_s = now_s - self.began_s
        if self._limit_s:
            whole_s, text = self._limit_s, f", ends within {clock_time(max(self._limit_s - spent_s, 1.0))}"
        else:
            left_s = self._ahead.left_s(now_s, work) if self._ahead else 0.0
            whole_s, text = spent_s + left_s if left_s else 0.0, _about(left_s)
        share = min(int(_BAR * spent_s / whole_s), _BAR) if whole_s else 0
        filled = self._filled_most = max(share, self._filled_most)
        amount = shown_amount(work.done, work.of).strip() if work.of > 1 else ""
        what = f"{work.what} {amount}".strip()
        bar = f"{self._filled[:filled]}{self._empty[filled:]}  {f'{clock_time(spent_s)}{text}':<{_CLOCK}}  "
        return f"{bar}{shorten(what, self._status.width - len(bar))}"

    def _line(self, work: _Work, left: str) -> str:
        if self._is_whole:
            return self._whole(work)
        if work.of < 2:
            return work.what
        filled = _BAR * work.done // work.of
        bar = f"{self._filled[:filled]}{self._empty[filled:]}  {shown_amount(work.done, work.of)}  "
        return f"{bar}{shorten(work.what, self._status.width - len(bar) - len(left))}{left}"


def _duration(seconds: float) -> str:
    """Return whole seconds, or minutes and seconds; never less than will pass."""
    whole = ceil(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60:02d} s"


def clock_time(seconds: float) -> str:
    """Return minutes and seconds as a clock shows them."""
    whole = ceil(seconds)
    return f"{whole // 60}:{whole % 60:02d}"


def _about(left_s: float) -> str:
    """Return what is left, no closer than it is known; nothing where nothing is expected."""
    step_s = 10 if left_s > _CLOSE_S else 5
    return f", about {clock_time(step_s * ceil(left_s / step_s))} left" if left_s else ""


def _can_print(text: str, stream: TextIO) -> bool:
    try:
        text.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
