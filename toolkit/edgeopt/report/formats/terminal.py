"""Plain text for a terminal; in a pipe, lines that are never cut or folded."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from unicodedata import east_asian_width

from edgeopt.report.document import Document, Section, Table, Value, Verdict
from edgeopt.report.formats import Format, Paper

_LABEL = 10
"""Columns of a label; a blank follows."""
_NAME = 36
"""Columns of a row's name, where width is short; a longer one keeps its two ends."""
_LEAST = 30
"""Columns of words that are folded, whatever the terminal's width."""
_BOLD, _GREEN, _RED, _YELLOW, _PLAIN = (f"\x1b[{code}m" for code in (1, 32, 31, 33, 0))
_COLOURS = {
    "PASS": _GREEN,
    "FASTER": _GREEN,
    "FAIL": _RED,
    "SLOWER": _RED,
    "INVALID": _RED,
    "INCONCLUSIVE": _YELLOW,
    "UNCONFIRMED": _YELLOW,
    "NOISY": _YELLOW,
}
_VERDICT = re.compile(rf"\b({'|'.join(_COLOURS)})\b")


def _render(document: Document, paper: Paper) -> str:
    sections = [one for one in document.sections if not one.is_detail]
    blocks = [list(_section(one, paper)) for one in sections]
    blocks += [list(_verdict(document.verdict, paper))] if document.verdict else []
    return "".join(f"{line}\n" for number, block in enumerate(filter(None, blocks)) for line in _apart(number, block))


def _apart(number: int, block: list[str]) -> list[str]:
    return ["", *block] if number else block


def _section(section: Section, paper: Paper) -> Iterator[str]:
    if section.title:
        yield _styled(section.title, _BOLD, paper)
    if section.table and section.table.rows:
        yield from _tables(section.table, paper)
    if section.text:
        yield from _folded(section.text, paper.width)
    for one in (*section.values, *(Value(note.kind, str(note)) for note in section.notes)):
        yield from _value(one, paper)


def _verdict(verdict: Verdict, paper: Paper) -> Iterator[str]:
    values = (
        *verdict.facts,
        Value("bundle", verdict.bundle, is_command=True),
        Value("next", verdict.next_command, is_command=True),
    )
    for one in (Value(str(verdict.outcome), verdict.sentence), *(one for one in values if one.text)):
        yield from _value(one, paper)


def _value(value: Value, paper: Paper) -> Iterator[str]:
    width = 0 if value.is_command else paper.width
    label = f"{value.label:<{_LABEL}} "
    for line in _folded(value.text, width, label):
        yield _highlighted(line, paper)


def _folded(text: str, width: int, head: str = "") -> list[str]:
    """Return lines of at most `width`, blanks under the head; words and names are never broken."""
    if not width or len(head) + len(text) <= width:
        return [f"{head}{text}".rstrip()]
    lines = textwrap.wrap(text, max(_LEAST, width - len(head)), break_long_words=False, break_on_hyphens=False)
    return [f"{' ' * len(head) if number else head}{line}" for number, line in enumerate(lines or [""])]


def _tables(table: Table, paper: Paper) -> Iterator[str]:
    """Yield the table; one that is too wide is cut into several, each with the first column."""
    rows = [(_name(first, paper.width), *others) for first, *others in (table.heads, *table.rows)]
    sizes = [max(map(_columns, column)) for column in zip(*rows, strict=True)]
    least = [*sizes[:-1], min(sizes[-1], _LEAST)] if table.heads[-1] in table.words else sizes
    is_right = [i > 0 and head not in table.words for i, head in enumerate(table.heads)]
    for number, part in enumerate(_parts(least, paper.width)):
        if number:
            yield ""
        gap = "  " if _fits([least[i] for i in part], 2, paper.width) else " "
        for place, row in enumerate(rows):
            cells = [f"{_blank(row[i], sizes[i])}{row[i]}" if is_right[i] else row[i] for i in part]
            padded = [f"{cell}{_blank(cell, sizes[i])}" for i, cell in zip(part[:-1], cells, strict=False)]
            width = paper.width if table.heads[part[-1]] in table.words else 0
            style = _GREEN if place - 1 == table.chosen else "" if place else _BOLD
            for line in _folded(cells[-1], width, gap.join([*padded, ""])):
                yield _styled(line, style, paper) if style else _highlighted(line, paper)


def _name(text: str, width: int) -> str:
    return text if not width or len(text) <= _NAME else f"{text[: _NAME // 2 - 2]}...{text[1 - _NAME // 2 :]}"


def _parts(sizes: Sequence[int], width: int) -> list[list[int]]:
    """Return the columns of each part: as many as fit beside the first one, a blank between them."""
    parts = [[0]]
    for i in range(1, len(sizes)):
        if len(parts[-1]) > 1 and not _fits([sizes[j] for j in (*parts[-1], i)], 1, width):
            parts.append([0])
        parts[-1].append(i)
    return parts


def _fits(sizes: Sequence[int], gap: int, width: int) -> bool:
    return not width or sum(sizes) + gap * (len(sizes) - 1) <= width


def _blank(text: str, size: int) -> str:
    return " " * (size - _columns(text))


def _columns(text: str) -> int:
    """Return how many columns a terminal takes for a text."""
    return len(text) + sum(east_asian_width(one) in "WF" for one in text)


def _styled(text: str, style: str, paper: Paper) -> str:
    return f"{style}{text}{_PLAIN}" if paper.is_coloured and style else text


def _highlighted(line: str, paper: Paper) -> str:
    return _VERDICT.sub(lambda one: f"{_COLOURS[one[0]]}{one[0]}{_PLAIN}", line) if paper.is_coloured else line


FORMAT = Format(_render)
