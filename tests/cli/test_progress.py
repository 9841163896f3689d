"""Progress: how far, how long yet, and nothing that runs backwards."""

from __future__ import annotations

import io
import re

import pytest
from still_clock import StillClock

from edgeopt.cli._progress import Progress
from edgeopt.cli._status import StatusLine
from edgeopt.system.amounts import Percent, Tenths
from edgeopt.system.text import columns


class Terminal(io.StringIO):
    """A standard error that is a terminal, or none."""

    encoding = "utf-8"

    def __init__(self, *, is_terminal: bool = True) -> None:
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal


@pytest.fixture
def terminal(monkeypatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", "80")
    return Terminal()


def lines_of(terminal: Terminal) -> list[str]:
    return [one.strip() for one in terminal.getvalue().split("\r") if one.strip()]


def follow(progress: Progress, clock: StillClock, what: str, told: list[tuple[float, int]], of: int) -> None:
    for at_s, done in told:
        clock.now = 100 + at_s
        progress.progress(what, done, of)


def test_a_bar_fills_and_after_a_few_seconds_the_time_left_is_told(terminal):
    clock = StillClock()
    with Progress(stream=terminal, clock=clock) as progress:
        follow(progress, clock, "calibrate", [(0, 0), (1, 2), (10, 10), (20, 20)], 20)
        follow(progress, clock, "evaluate", [(21, 1)], 2)
    shown = lines_of(terminal)
    assert shown[0] == f"{'─' * 24}   0/20  calibrate"
    assert shown[2] == f"{'━' * 12}{'─' * 12}  10/20  calibrate  10 s left"
    assert shown[3] == f"{'━' * 24}  20/20  calibrate"
    assert shown[4].endswith("evaluate")
    assert terminal.getvalue().endswith(f"\r{' ' * (columns(shown[4]) + 2)}\r"), "nothing is left of it"


def test_a_bar_never_runs_backwards_and_time_that_was_wrong_is_not_told(terminal):
    clock = StillClock()
    with Progress(stream=terminal, clock=clock) as progress:
        follow(progress, clock, "evaluate", [(0, 0), (5, 50), (6, 40), (7, 45), (9, 60), (30, 60)], 100)
    shown = lines_of(terminal)
    done = [int(re.search(r"(\d+)/100", one)[1]) for one in shown]
    assert done == sorted(done)
    assert shown[1].endswith(" 50/100  evaluate  5 s left")
    assert shown[2].endswith(" 50/100  evaluate  4 s left"), "the same work: what is left grows less with the clock"
    assert shown[-1].endswith(" 60/100  evaluate"), "it should have been over by now"


def test_the_same_work_done_again_begins_at_nothing(terminal):
    clock = StillClock()
    with Progress(stream=terminal, clock=clock) as progress:
        follow(progress, clock, "calibrate", [(0, 1), (1, 2), (2, 1)], 2)
    assert lines_of(terminal)[-1].endswith("1/2  calibrate")


def test_work_that_is_told_of_late_is_judged_by_its_pace_since_then(terminal):
    clock = StillClock()
    with Progress(stream=terminal, clock=clock) as progress:
        follow(progress, clock, "search", [(0, 13), (4, 17)], 24)
    assert lines_of(terminal)[-1].endswith("17/24  search  7 s left")


def test_many_calls_draw_no_more_than_twenty_lines_a_second(terminal):
    clock = StillClock()
    with Progress(stream=terminal, clock=clock) as progress:
        follow(progress, clock, "evaluate", [(i / 1000, i) for i in range(1000)], 2000)
    assert len(lines_of(terminal)) <= 21


def test_a_line_keeps_the_width_and_a_name_its_ends(terminal, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    with Progress(stream=terminal) as progress:
        progress.progress(f"confirm {'quantize, ' * 9}fuse in fresh processes", 3, 12)
    (line,) = lines_of(terminal)
    assert columns(line) <= 57
    assert line.startswith("━━━━━━──────────────────   3/12  confirm")
    assert line.endswith("processes")


def test_a_bar_has_one_length_and_one_place_whatever_the_work_is_called(terminal):
    clock = StillClock()
    with Progress(stream=terminal, clock=clock) as progress:
        follow(progress, clock, "evaluate", [(0, 0), (5, 5), (9, 9)], 100)
        follow(progress, clock, f"confirm {'quantize, ' * 9}", [(20, 1), (30, 2)], 12)
    assert {one[24:26] for one in lines_of(terminal)} == {"  "}
    assert all(set(one[:24]) <= {"━", "─"} for one in lines_of(terminal))


@pytest.mark.parametrize(
    ("done", "of", "shown"), [(40, Percent(100), " 40 %"), (53, Tenths(200), " 5 of 20 s"), (3, 20, " 3/20")]
)
def test_time_and_shares_are_not_told_as_pieces(done, of, shown, terminal):
    with Progress(stream=terminal) as progress:
        progress.progress("measure", done, of)
    assert lines_of(terminal)[0][24:] == f"  {shown}  measure"
    pipe, clock = Terminal(is_terminal=False), StillClock()
    with Progress(stream=pipe, clock=clock) as progress:
        follow(progress, clock, "measure", [(0, 0), (40, done)], of)
    assert pipe.getvalue().startswith(f"measure {shown.strip()}")


def test_elsewhere_lines_stay_and_are_few():
    pipe = Terminal(is_terminal=False)
    clock = StillClock()
    with Progress(stream=pipe, clock=clock) as progress:
        follow(progress, clock, "evaluate", [(i, i) for i in range(100)], 120)
    assert pipe.getvalue().splitlines() == [
        "evaluate 30/120  1 min 30 s left",
        "evaluate 60/120  1 min 00 s left",
        "evaluate 90/120  30 s left",
    ]


@pytest.mark.parametrize(("asked", "width"), [("100", 100), ("50", 50)])
def test_in_a_pipe_lines_fit_the_columns_that_are_asked_for(asked, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", asked)
    pipe, clock, path = Terminal(is_terminal=False), StillClock(), f"/data/{'folder/' * 20}pictures"
    with Progress(stream=pipe, clock=clock) as progress:
        progress.say(f"calib      {path}")
        progress.say(f"quantize   {'word ' * 40}end")
        follow(progress, clock, f"confirm {'quantize, ' * 12}fuse in fresh processes", [(0, 1), (40, 2)], 9)
    whole, *words, last = pipe.getvalue().splitlines()
    assert whole == f"calib      {path}"
    assert " ".join(one.strip() for one in words) == f"quantize   {'word ' * 40}end"
    assert width // 2 < max(map(columns, words)) <= width
    assert width - 2 <= columns(last) <= width
    assert re.fullmatch(r"confirm quant.*\.\.\..*processes 2/9  4 min 40 s left", last)


@pytest.mark.parametrize("asked", [None, "none", ""])
def test_in_a_pipe_lines_stay_whole_where_no_columns_are_asked_for(asked, monkeypatch):
    """So that a search in the log of a CI finds them."""
    monkeypatch.delenv("COLUMNS", raising=False)
    if asked is not None:
        monkeypatch.setenv("COLUMNS", asked)
    pipe, clock, work = Terminal(is_terminal=False), StillClock(), f"confirm {'quantize, ' * 12}fuse in fresh processes"
    with Progress(stream=pipe, clock=clock) as progress:
        progress.say(f"quantize   {'word ' * 40}end")
        follow(progress, clock, work, [(0, 1), (40, 2)], 9)
    assert pipe.getvalue().splitlines() == [f"quantize   {'word ' * 40}end", f"{work} 2/9  4 min 40 s left"]


def test_a_terminal_folds_long_lines_under_their_text(terminal):
    with Progress(stream=terminal) as progress:
        progress.progress("evaluate", 1, 2)
        progress.say(f"quantize   {'word ' * 30}end")
    lines = terminal.getvalue().split("\r")[-1].rstrip().splitlines()
    assert lines[0].startswith("quantize   word")
    assert all(one.startswith(" " * 11 + "word") for one in lines[1:])
    assert all(len(one) <= 80 for one in lines)


def test_a_terminal_without_such_characters_gets_plain_ones(terminal):
    terminal.encoding = "ascii"
    with Progress(stream=terminal) as progress:
        progress.progress("evaluate", 1, 2)
    assert f"{'#' * 12}{'-' * 12}" in terminal.getvalue()


def test_an_interrupt_leaves_a_clean_line(terminal):
    status = StatusLine(stream=terminal)

    def interrupted() -> None:
        with status:
            status.show("fps 30")
            terminal.write("^C")  # as a terminal does
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert terminal.getvalue() == "\rfps 30^C\r        \r"


def test_a_bar_of_the_whole_tells_what_is_ahead_of_all_parts_and_never_runs_backwards(terminal):
    clock = StillClock()
    with Progress(stream=terminal, clock=clock, is_whole=True) as progress:
        follow(progress, clock, "evaluate baseline", [(0, 0), (5, 5)], 10)
        clock.now = 110
        progress.ahead("quantize", 60.0, 30.0)
        follow(progress, clock, "calibrate", [(10, 0), (20, 10), (30, 128)], 128)
        follow(progress, clock, "search at most", [(40, 300), (90, 800)], Tenths(1800))
        clock.now = 195
        progress.ahead("measure in turns", 20.0, 10.0)
        clock.now = 205
        progress.ahead("confirm", 15.0, 0.0)
        follow(progress, clock, "confirm", [(106, 0), (124, 3), (131, 3)], 6)
    shown = lines_of(terminal)
    assert shown == [
        f"{'─' * 24}  0:00                    evaluate baseline 0/10",
        f"{'─' * 24}  0:05                    evaluate baseline 5/10",
        f"{'━' * 2}{'─' * 22}  0:10, about 1:30 left   quantize",
        f"{'━' * 2}{'─' * 22}  0:10, about 1:30 left   calibrate 0/128",
        f"{'━' * 2}{'─' * 22}  0:20, about 2:30 left   calibrate 10/128",
        f"{'━' * 7}{'─' * 17}  0:30, about 1:10 left   calibrate 128/128",
        f"{'━' * 9}{'─' * 15}  0:40, about 1:00 left   search at most 30 of 180 s",
        f"{'━' * 18}{'─' * 6}  1:30, about 0:30 left   search at most 80 of 180 s",
        f"{'━' * 18}{'─' * 6}  1:35, about 0:30 left   measure in turns",
        f"{'━' * 21}{'─' * 3}  1:45, about 0:15 left   confirm",
        f"{'━' * 21}{'─' * 3}  1:46, about 0:15 left   confirm 0/6",
        f"{'━' * 21}{'─' * 3}  2:04, about 0:20 left   confirm 3/6",
        f"{'━' * 22}{'─' * 2}  2:11, about 0:15 left   confirm 3/6",
    ]
    assert max(map(columns, shown)) <= 76


def test_with_a_limit_the_bar_of_the_whole_says_when_it_ends_and_elsewhere_lines_stay_few(terminal):
    clock, pipe = StillClock(), Terminal(is_terminal=False)
    with Progress(stream=terminal, clock=clock, limit_s=120.0, began_s=97.0) as progress:
        follow(progress, clock, "calibrate", [(0, 1), (57, 100)], 128)
    assert lines_of(terminal) == [
        f"{'─' * 24}  0:03, ends within 1:57  calibrate 1/128",
        f"{'━' * 12}{'─' * 12}  1:00, ends within 1:00  calibrate 100/128",
    ]
    with Progress(stream=pipe, clock=clock, is_whole=True) as progress:
        progress.ahead("quantize", 60.0, 30.0)
        follow(progress, clock, "calibrate", [(57, 0), (100, 64)], 128)
    assert pipe.getvalue() == "calibrate 64/128  43 s left\n"
