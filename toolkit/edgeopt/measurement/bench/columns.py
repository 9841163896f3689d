"""Columns of tables of times, named by what they tell: `ttft.p50`, `max`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from operator import attrgetter
from typing import Any

from edgeopt.measurement.statistics.quantile import Summary
from edgeopt.report.document import Table, make_table
from edgeopt.system.text import format_ms

Cell = Callable[[Any], str]
_PLAIN = ("min", "mean", "max")
"""Figures of a summary that have no interval."""
GAPS = {"ITL p50": "itl.p50", "ITL p95": "itl.p95", "ITL p99": "itl.p99", "ITL max": "itl.max"}
"""Columns of the gaps between tokens, which belong together: they stand below where there is no room."""


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


def stage_table(
    stages: Mapping[str, Summary],
    figures: Sequence[str],
    *,
    intervals: Collection[str] = (),
    more: Mapping[str, Callable[[str], str]] | None = None,
    less: Sequence[str] = (),
) -> Table:
    """Return a table with a row for each stage and a column for each figure of its times.

    Args:
        stages: Times by name, in order.
        figures: Such as `p50`, `max`.
        intervals: Those of them that stand with their interval.
        more: Further columns, which tell something of a stage's name.
        less: Heads that a narrow terminal leaves out, the least important first.
    """
    columns: dict[str, Cell] = {"stage": lambda pair: pair[0]}
    columns |= behind(lambda pair: pair[1], {name: timed(name, interval=name in intervals) for name in figures})
    columns |= behind(lambda pair: pair[0], more or {})
    return make_table(stages.items(), columns, less=less)
