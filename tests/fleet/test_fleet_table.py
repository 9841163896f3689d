"""The table of a fleet that runs, on a terminal of 80 columns, and the lines in a pipe."""

from __future__ import annotations

import io
import re

import pytest
from still_clock import StillClock

from edgeopt.cli._fleet_table import FleetProgress
from edgeopt.system.text import columns
from edgeopt.verbs.fleet.news import CellNews


class Screen(io.StringIO):
    """A standard error that is a terminal of 80 columns, or none."""

    encoding = "utf-8"

    def __init__(self, *, is_terminal: bool = True) -> None:
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal

    def lines(self) -> list[str]:
        """Return what stands on it, as a terminal carries out what was written."""
        rows, row, column = [""], 0, 0
        for part in re.findall(r"\x1b\[\d*[AJK]|[\r\n]|[^\x1b\r\n]+", self.getvalue()):
            if part.endswith("A") and part.startswith("\x1b"):
                row -= int(part[2:-1])
                assert row >= 0, "above what was written"
            elif part == "\x1b[K":
                rows[row] = rows[row][:column]
            elif part == "\x1b[J":
                rows[row:] = [rows[row][:column]]
            elif part == "\r":
                column = 0
            elif part == "\n":
                row, column = row + 1, 0
                rows += [""] * (row + 1 - len(rows))
            else:
                rows[row] = rows[row][:column].ljust(column) + part + rows[row][column + len(part) :]
                column += len(part)
        return [line.rstrip() for line in rows]


@pytest.fixture
def screen(monkeypatch) -> Screen:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    monkeypatch.setenv("TERM", "xterm")
    return Screen()


def listener(screen: Screen, clock: StillClock) -> FleetProgress:
    """Return one that draws when it is told something, and not by itself."""
    return FleetProgress(stream=screen, clock=clock)


def test_a_terminal_shows_a_row_a_device_and_the_bar_below(screen):
    clock = StillClock()
    progress = listener(screen, clock)
    progress.begins(["pi5", "pi5", "kiosk"])
    progress.progress("cells", 0, 3)
    progress.cell_news(CellNews("net0-pi5-cpu", "pi5", "tcp://board:1"))
    clock.now += 65
    progress.cell_news(CellNews("net0-pi5-cpu", "pi5", "tcp://board:1", "quantize \x1b[2J  1.04 MiB " + "x" * 99))
    first, second, bar = screen.lines()
    assert re.fullmatch(r"pi5 +net0-pi5-cpu +1:05  quantize .*x", first)
    assert "\x1b" not in first
    assert columns(first) == 77, "in the last columns a terminal breaks the line, and prints ^C"
    assert re.fullmatch(r"kiosk +waits, 0 of 1 done", second)
    assert bar == f"{'─' * 24}  0/3  cells"
    clock.now += 5
    progress.cell_news(CellNews("net0-pi5-cpu", "pi5", is_over=True))
    progress.say("net0-pi5-cpu: PASS")
    clock.now += 1
    progress.progress("cells", 1, 3)
    progress.cell_news(CellNews("net0-pi5-cpu", "pi5", "tcp://board:1", "a line that comes late"))
    said, first, second, bar = screen.lines()
    assert said == "net0-pi5-cpu: PASS"
    assert re.fullmatch(r"pi5 +waits, 1 of 2 done", first)
    assert second.startswith("kiosk")
    assert bar == f"{'━' * 8}{'─' * 16}  1/3  cells  2 min 22 s left"
    clock.now += 1
    for cell, device in (("net1-pi5-cpu", "pi5"), ("net0-kiosk-cpu", "kiosk")):
        progress.cell_news(CellNews(cell, device, is_over=True))
    progress.progress("cells", 3, 3)
    assert screen.lines() == ["net0-pi5-cpu: PASS", f"{'━' * 24}  3/3  cells"]
    progress.__exit__(None, None, None)
    assert screen.lines() == ["net0-pi5-cpu: PASS", "", ""]


def test_of_many_devices_some_have_a_row_and_one_line_counts_the_rest(screen, monkeypatch):
    clock = StillClock()
    progress = listener(screen, clock)
    progress.begins([f"d{i}" for i in range(500)])
    progress.progress("cells", 0, 500)
    for i in range(400, 500):
        progress.cell_news(CellNews(f"net-d{i}-cpu", f"d{i}", "tcp://w:1"))
    clock.now += 1
    progress.cell_news(CellNews("net-d0-cpu", "d0", is_over=True))
    *rows, rest, bar = screen.lines()
    assert [row.split()[0] for row in rows] == [f"d{i}" for i in range(400, 411)]
    assert rest == "489 more devices: 89 run, 399 wait, 1 through"
    assert bar.endswith("cells")
    monkeypatch.setenv("LINES", "8")
    progress.say("a line")
    assert [line.split()[0] for line in screen.lines()[1:-1]] == ["d400", "d401", "d402", "497"]


def test_a_cell_that_is_taken_up_by_another_worker_begins_again(screen):
    clock = StillClock()
    progress = listener(screen, clock)
    progress.begins(["pi5"])
    progress.progress("cells", 0, 1)
    for at_s, line in ((0, ""), (10, "baseline"), (50, ""), (57, "prune")):
        clock.now = 100.0 + at_s
        progress.cell_news(CellNews("net0-pi5-cpu", "pi5", "tcp://w:1", line))
    assert screen.lines()[0].split() == ["pi5", "net0-pi5-cpu", "0:07", "prune"]


def test_times_go_on_while_nothing_is_told(screen, monkeypatch):
    monkeypatch.setattr("edgeopt.cli._fleet_table._REDRAWN_S", 0.01)
    clock = StillClock()
    with listener(screen, clock) as progress:
        progress.begins(["pi5"])
        progress.progress("cells", 0, 1)
        progress.cell_news(CellNews("net0-pi5-cpu", "pi5", "tcp://w:1"))
        clock.now += 3
        while "0:03" not in screen.getvalue():
            progress._is_closed.wait(0.01)
    assert screen.lines()[-1] == "", "nothing is left of it"


@pytest.mark.parametrize("is_dumb", [True, False])
def test_without_a_terminal_that_moves_its_cursor_there_are_lines(screen, monkeypatch, is_dumb):
    monkeypatch.setenv("TERM", "dumb" if is_dumb else "xterm")
    pipe = Screen(is_terminal=is_dumb)
    with listener(pipe, StillClock()) as progress:
        progress.begins(["pi5"])
        progress.progress("cells", 0, 1)
        progress.cell_news(CellNews("net0-pi5-cpu", "pi5", "tcp://w:1"))
        progress.cell_news(CellNews("net0-pi5-cpu", "pi5", "tcp://w:1", "quantize"))
        progress.cell_news(CellNews("net0-pi5-cpu", "pi5", is_over=True))
        progress.say("net0-pi5-cpu: PASS")
    assert pipe.getvalue() == "net0-pi5-cpu began on tcp://w:1\nnet0-pi5-cpu: PASS\n"
