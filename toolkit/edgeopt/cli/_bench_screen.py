"""The report of `bench` on a terminal; in a pipe, plain lines that are never cut."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from types import TracebackType

from rich.console import Console
from rich.text import Text

from edgeopt.measurement.bench.result import BenchResult
from edgeopt.measurement.bench.summary import Section, make_sections
from edgeopt.system.text import printable

_WORD = 11
_COMMANDS = ("first", "then")
_STYLES = {"PASS": "bold green", "FAIL": "bold red", "INCONCLUSIVE": "bold yellow", "NOISY": "yellow", "INVALID": "red"}


class ProgressLine:
    """One line on a terminal, rewritten when something changes: a bar that redraws itself would slow frames."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._is_shown, self._text = sys.stderr.isatty() and not quiet, ""

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._write("")

    def tell(self, what: str, done: int, of: int) -> None:
        """Show how far a piece of work is."""
        self._write(printable(f"{what} {done}/{of}" if of > 1 else what))

    def _write(self, text: str) -> None:
        if self._is_shown and text != self._text:
            sys.stderr.write(f"\r{text.ljust(len(self._text))}{'' if text else chr(13)}")
            sys.stderr.flush()
            self._text = text


def show_bench(result: BenchResult) -> None:
    """Print the report."""
    out = Console(soft_wrap=True, highlight=False)
    for section in make_sections(result):
        for line, is_head in section_lines(section, out.width if out.is_terminal else 0):
            text = Text(printable(line), style="bold" if is_head else "")
            for word, style in _STYLES.items():
                text.highlight_regex(rf"\b{word}\b", style)
            out.print(text)


def section_lines(section: Section, width: int) -> Iterator[tuple[str, bool]]:
    """Yield each line and whether it is a head.

    Args:
        section: What to show.
        width: Where lines (tables are as wide as they are) are folded; 0: nowhere.
    """
    if section.title:
        yield from (("", False), (section.title, True))
    if section.rows:
        table = (section.columns, *section.rows)
        sizes = [max(map(len, column)) for column in zip(*table, strict=True)]
        for number, row in enumerate(table):
            first, *others = (cell.rjust(size) for cell, size in zip(row, sizes, strict=True))
            yield "  ".join([first.strip().ljust(sizes[0]), *others]).rstrip(), number == 0
    for word, text in section.lines:
        yield from ((line, False) for line in _fold(word, text, width))


def _fold(word: str, text: str, width: int) -> list[str]:
    head = word.ljust(_WORD)
    if not width or word in _COMMANDS:  # a command is copied whole
        return [f"{head}{text}"]
    folded = textwrap.wrap(text, max(40, width - _WORD), break_long_words=False, break_on_hyphens=False)
    return [f"{head if i == 0 else ' ' * _WORD}{line}" for i, line in enumerate(folded or [""])]
