"""Comparisons and checks on a terminal; without one, plain lines."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from edgeopt.measurement.check.result import CHECK_HEADS, CheckReport, check_rows
from edgeopt.measurement.compare.run import RATIO_HEADS, Comparison, ratio_rows, subject_heads, subject_rows
from edgeopt.system.text import printable

_PLAIN_WIDTH = 240  # columns of a pipe or a file: nothing is cut there
_COLOURS = {"FASTER": "green", "SLOWER": "red", "PASS": "green", "FAIL": "red", "INCONCLUSIVE": "yellow"}


def _console() -> Console:
    return Console(soft_wrap=True, width=None if sys.stdout.isatty() else _PLAIN_WIDTH)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], right: range) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, head in enumerate(heads):
        table.add_column(Text(printable(head)), justify="right" if i in right else "left", no_wrap=True)
    for row in rows:
        table.add_row(
            *(Text(printable(cell)) for cell in row),
            style=next((_COLOURS[cell] for cell in row if cell in _COLOURS), ""),
        )
    return table


def show_comparison(result: Comparison) -> None:
    """Print what was compared, the ratios, and how far to believe them."""
    out = _console()

    def plain(text: str) -> None:
        out.print(printable(text), highlight=False, markup=False)

    heads = subject_heads(result)
    out.print(_table(heads, subject_rows(result), range(1, len(heads) - 1)))
    plain("")
    out.print(_table(RATIO_HEADS, ratio_rows(result), range(2, 4)))
    plain("")
    first = result.rows[0].label
    plain(f"times in ms, p50 / p99 of single frames; speed: as a multiple of {first}'s; front over {result.front_axes}")
    if result.null:
        plain(f"in turns {result.seconds:.0f} s on {result.source}; equal within {result.margin:.1%}")
        null = "; ".join(f"{part} {x.speedup:.3f}x [{x.low:.3f}, {x.high:.3f}]" for part, x in result.null.items())
        plain(f"null     {first} against itself: {null}")
    if result.trust:
        plain(f"machine  {result.trust}")
    for note in result.notes:
        plain(f"{note.kind}: {note}")


def show_check(report: CheckReport) -> None:
    """Print one line a check, the machine and the verdict."""
    out = _console()

    def plain(text: str) -> None:
        out.print(printable(text), highlight=False, markup=False)

    if report.results:
        out.print(_table(CHECK_HEADS, check_rows(report), range(2, 4)))
        plain("")
    plain(f"machine  {report.trust}")
    for note in report.notes:
        plain(f"{note.kind}: {note}")
    plain(f"baseline {report.baseline}{' written' if report.updated else ''}")
    plain(f"verdict  {report.shown_verdict}")
