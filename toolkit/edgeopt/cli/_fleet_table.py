"""The table of a fleet that runs: a row a device above the bar on a terminal, lines elsewhere."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event, RLock, Thread
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

import click

from edgeopt.cli._progress import Progress, clock_time
from edgeopt.cli._status import StatusLine
from edgeopt.cli._streams import give_up
from edgeopt.system.text import columns, plural, printable, shorten

if TYPE_CHECKING:
    from edgeopt.verbs.fleet.news import CellNews

_MOST_ROWS = 12
"""Devices that have a row of their own."""
_AROUND = 4
"""Lines of a terminal that stay for the bar, the line of the rest, and what was said last."""
_REDRAWN_S = 1.0
"""Between two drawings while nothing is told: the times go on. It costs less than Dask's own heartbeats."""
_GAP = "  "
_DEVICE, _CELL, _TOOK = 12, 26, 6
"""Columns at most; what a command printed last takes the rest."""


@dataclass
class _Row:
    """A device, as far as its cells were told of."""

    cells: int = 0
    over: int = 0
    running: dict[str, tuple[float, str]] = field(default_factory=dict)
    """Cells that began, with when that was and what their command printed last."""

    @property
    def state(self) -> str:
        """In one word what it does."""
        return "runs" if self.running else "waits" if self.over < self.cells else "is through"


class FleetTable:
    """Keeps what was told of a fleet's cells, and draws it."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._rows: dict[str, _Row] = {}
        self._over = set[str]()

    def begin(self, devices: Sequence[str]) -> None:
        """Take the device of each cell that will run."""
        for device in devices:
            self._rows.setdefault(device, _Row()).cells += 1

    def take(self, news: CellNews) -> None:
        """Take what is told of a cell; lines that come after its end count for nothing."""
        row = self._rows.setdefault(news.device, _Row())
        if news.cell in self._over:
            return
        if news.is_over:
            self._over.add(news.cell)
            row.over += 1
            row.running.pop(news.cell, None)
        elif news.line and news.cell in row.running:
            row.running[news.cell] = row.running[news.cell][0], news.line
        else:
            row.running[news.cell] = self._clock(), news.line

    def lines(self, width: int, most: int) -> list[str]:
        """Return the lines: devices that run first, then those that wait; nothing once all are through.

        Args:
            width: Columns of each.
            most: Devices that have a line of their own; the others share one.
        """
        if all(row.state == "is through" for row in self._rows.values()):
            return []
        order = ("runs", "waits", "is through")
        sorted_rows = sorted(self._rows.items(), key=lambda item: order.index(item[1].state))
        shown = len(sorted_rows) if len(sorted_rows) <= most else most - 1
        names = [columns(printable(name)) for name, _ in sorted_rows[:shown]]
        cells = [columns(printable(cell)) for _, row in sorted_rows[:shown] for cell in row.running]
        sizes = min(max(names), _DEVICE), min(max(cells, default=0), _CELL)
        lines = [_line(name, row, self._clock(), sizes, width) for name, row in sorted_rows[:shown]]
        if rest := sorted_rows[shown:]:
            counts = {state: sum(row.state == state for _, row in rest) for state in order}
            words = {"runs": "run", "waits": "wait", "is through": "through"}
            text = ", ".join(f"{count} {words[state]}" for state, count in counts.items() if count)
            lines.append(shorten(f"{plural(len(rest), 'more device')}: {text}", width))
        return lines


def _line(name: str, row: _Row, now_s: float, sizes: tuple[int, int], width: int) -> str:
    """Return the line of a device: its cell, since when, and what the command printed last."""
    if not row.running:
        return f"{_cut(name, sizes[0])}{_GAP}{row.state}, {row.over} of {row.cells} done"
    cell, (began_s, text) = next(reversed(row.running.items()))
    parts = (_cut(name, sizes[0]), _cut(cell, sizes[1]), f"{clock_time(now_s - began_s):>{_TOOK}}")
    head = _GAP.join(parts)
    room = width - columns(head) - len(_GAP)
    return f"{head}{_GAP}{shorten(' '.join(printable(text).split()), room)}" if room > 0 else shorten(head, width)


def _cut(name: str, width: int) -> str:
    """Return a name in exactly so many columns."""
    text = shorten(printable(name), width)
    return text + " " * (width - columns(text))


class StatusBlock(StatusLine):
    """Lines that stand above the line that is rewritten, and are rewritten with it."""

    def __init__(
        self,
        above: Callable[[int, int], list[str]],
        *,
        quiet: bool,
        stream: TextIO,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Begin with nothing.

        Args:
            above: Returns the lines, given the columns and how many lines there may be.
            quiet: As of the line.
            stream: As of the line.
            clock: As of the line.
        """
        super().__init__(quiet=quiet, stream=stream, clock=clock)
        self.is_live = self.is_live and os.environ.get("TERM") != "dumb"
        self._above, self._height = above, 0

    def clear(self) -> None:
        """Take all lines away."""
        if self._height:
            self._write(f"{self._home()}\x1b[J")
            self._shown, self._height = "", 0

    def _draw(self, text: str) -> None:
        most = min(_MOST_ROWS, max(1, shutil.get_terminal_size().lines - _AROUND))
        lines = [*self._above(self.width, most), text]
        drawn = "\n".join(f"{line}\x1b[K" for line in lines)
        self._write(f"{self._home()}{drawn}\x1b[J")
        self._shown, self._height, self._drawn_s = text, len(lines), self._clock()

    def _home(self) -> str:
        return f"\r\x1b[{self._height - 1}A" if self._height > 1 else "\r"

    def _write(self, text: str) -> None:
        try:
            click.echo(text, file=self._stream, nl=False)  # it knows the consoles of Windows
        except OSError:
            give_up(self._stream)


class FleetProgress(Progress):
    """Listens to a fleet. Cells are told of by one of Dask's threads, and times go on by one of our own."""

    def __init__(
        self, *, quiet: bool = False, stream: TextIO | None = None, clock: Callable[[], float] = monotonic
    ) -> None:
        """Begin to listen; as `Progress`."""
        super().__init__(quiet=quiet, stream=stream, clock=clock)
        self._table, self._lock, self._is_closed = FleetTable(clock), RLock(), Event()
        self._status = StatusBlock(self._table.lines, quiet=quiet, stream=self._stream, clock=clock)
        self._redraws = Thread(target=self._redraw, daemon=True)

    def __enter__(self) -> FleetProgress:
        if self._status.is_live:
            self._redraws.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_closed.set()
        if self._redraws.is_alive():
            self._redraws.join()
        with self._lock:
            super().__exit__(kind, error, traceback)

    def progress(self, what: str, done: int, of: int) -> None:
        """Show how far a piece of work is."""
        with self._lock:
            super().progress(what, done, of)

    def say(self, text: str) -> None:
        """Print one line, above the table where there is one."""
        with self._lock:
            super().say(text)
            self._show_again(now=True)

    def begins(self, devices: Sequence[str]) -> None:
        """Take the device of each cell that will run."""
        with self._lock:
            self._table.begin(devices)

    def cell_news(self, news: CellNews) -> None:
        """Draw what is told of a cell; where there is no terminal say where it began."""
        with self._lock:
            self._table.take(news)
            if self._status.is_live:
                self._show_again()
            elif not news.line and not news.is_over:
                self.say(f"{news.cell} began on {news.worker}")

    def _redraw(self) -> None:
        while not self._is_closed.wait(_REDRAWN_S):
            with suppress(ValueError), self._lock:  # the stream may be closed
                self._show_again(now=True)

    def _show_again(self, *, now: bool = False) -> None:
        """Draw bar and table as they are now."""
        if not self._is_closed.is_set() and (line := self.line_now()):
            self._status.show(line, now=now)
