"""Columns of the tables of `bench`, the same for every kind of workload: of stages, first tokens and gaps.

A figure of times that every kind shall show is added to `FIGURES` for stages, to `FIRST_TOKEN` or `GAPS` for answers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

from edgeopt.measurement.statistics.quantile import Summary
from edgeopt.report.document import Table, make_table
from edgeopt.system.text import format_ms

Cell = Callable[[Any], str]
_PLAIN = ("min", "mean", "max")
"""Figures of a summary that have no interval."""
FIGURES = ("min", "p1", "p5", "mean", "p50", "p90", "p95", "p99", "max")
"""Figures of a stage's times, in the order of the columns; those for which there are too few samples are left out."""
LESS = (("p1", "p5"), ("min", "p95", "mean", "max", "p90"), ("p99",))
"""Those that a narrow terminal leaves out, the least important first, in three steps: other columns go between them."""


def timed(figure: str, *, interval: bool = False) -> Cell:
    """Return the column of one figure of times, in milliseconds.

    Args:
        figure: Where it is in a row: `ttft.p50`, `all.itl.max`, or `p99` where the row is a summary itself.
        interval: Whether its 95 % interval stands beside it.
    """
    *_, last = figure.split(".")
    if last in _PLAIN:
        plain = attrgetter(f"{figure}_ns")
        return lambda row: format_ms(plain(row))
    quantile = attrgetter(figure)
    return lambda row: str(quantile(row)) if interval else format_ms(quantile(row).value_ns)


def behind(which: Callable[[Any], Any], columns: Mapping[str, Cell]) -> dict[str, Cell]:
    """Return columns that tell of a part of each row."""

    def within(cell: Cell) -> Cell:
        return lambda row: cell(which(row))

    return {head: within(cell) for head, cell in columns.items()}


FIRST_TOKEN: Mapping[str, Cell] = {
    "TTFT p50 ms": timed("ttft.p50", interval=True),
    "TTFT p95": timed("ttft.p95"),
    "TTFT max": timed("ttft.max"),
}
"""Columns of the time to the first token, of rows of `AnswerTimes`."""
_ITL = ("p50", "p95", "p99", "max")
GAPS: Mapping[str, Cell] = {f"ITL {figure}": timed(f"itl.{figure}") for figure in _ITL}
"""Columns of the gaps between tokens, which belong together: they stand below where there is no room."""
GAPS_WITH_INTERVALS: Mapping[str, Cell] = {f"ITL {figure}": timed(f"itl.{figure}", interval=True) for figure in _ITL}


def stage_table(
    stages: Mapping[str, Summary],
    *,
    intervals: Collection[str] = (),
    more: Mapping[str, Callable[[str], str]] | None = None,
    less: Sequence[str] = tuple(chain(*LESS)),
) -> Table:
    """Return a table with a row for each stage and a column for each of `FIGURES`.

    Args:
        stages: Times by name, in order.
        intervals: Figures that stand with their interval.
        more: Further columns, which tell something of a stage's name.
        less: Heads that a narrow terminal leaves out, the least important first.
    """
    columns: dict[str, Cell] = {"stage": lambda pair: pair[0]}
    columns |= behind(lambda pair: pair[1], {name: timed(name, interval=name in intervals) for name in FIGURES})
    columns |= behind(lambda pair: pair[0], more or {})
    return make_table(stages.items(), columns, less=less)
