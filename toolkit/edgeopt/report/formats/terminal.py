"""Plain text for a terminal; in a pipe, lines that are never cut or folded, unless the variable `COLUMNS` is set.

A table fits the terminal: it leaves columns out, the least important first, and never a digit. Those of a table whose
figures must all be shown follow below it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from edgeopt.report.document import LABEL, CommandOutcome, Document, Section, Table, Value, VerdictLines
from edgeopt.report.formats import Format, Paper
from edgeopt.system.text import columns, fold, shorten

_NAME_RATIO = 3
"""A row's name takes this part of the width where columns would go for a longer one; it keeps its two ends."""
_SHORT_NAME = 16
"""Columns of a name where leaving columns out is not enough."""
_LEAST_WORDS = 30
"""Columns of the words at the end of a row, below which columns are left out instead."""
_MOST_WORDS = 60
"""The same where a column that the table itself calls less important may go."""
_GAP = "  "
_MARK = "* "
"""Mark before the row that a reader looks for: colours say it too, where there are any."""
_BOLD, _DIM, _GREEN, _RED, _YELLOW, _PLAIN = (f"\x1b[{code}m" for code in (1, 2, 32, 31, 33, 0))
_TONES = {
    CommandOutcome.PASS: 42,
    CommandOutcome.DONE: 42,
    CommandOutcome.FASTER: 42,
    CommandOutcome.FAIL: 41,
    CommandOutcome.SLOWER: 41,
    CommandOutcome.NOT_DECIDED: 43,
    CommandOutcome.NOISY: 43,
    CommandOutcome.EQUIVALENT: 46,
}
"""The background of a verdict's word."""
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
    blocks = [list(_section(section, paper)) for section in document.sections if not section.is_detail]
    blocks += [list(_verdict(document.verdict, paper))] if document.verdict else []
    return "\n".join("".join(f"{line}\n" for line in block) for block in blocks if block)


def _section(section: Section, paper: Paper) -> Iterator[str]:
    if section.title:
        yield _styled(section.title, _BOLD, paper)
    if section.table and section.table.rows:
        yield from _table(section.table, paper)
    if section.text:
        yield from fold(section.text, paper.width)
    lines = (*section.values, *map(Value.of_note, section.notes))
    yield from _values(lines, paper, max(LABEL, *(len(line.label) for line in lines)) if lines else LABEL)


def _verdict(verdict: VerdictLines, paper: Paper) -> Iterator[str]:
    """Yield the verdict's word and sentence, then what it rests on, all under one another."""
    where = (Value("bundle", verdict.bundle, is_command=True), Value("next", verdict.next_command, is_command=True))
    facts = [fact for fact in (*verdict.facts, *where) if fact.text]
    size = max(len(verdict.outcome), *(len(fact.label) for fact in facts), LABEL) if facts else LABEL
    first, *others = fold(verdict.sentence, paper.width, f"{verdict.outcome:<{size}} ")
    if paper.is_coloured:
        word = f"\x1b[1;30;{_TONES[verdict.outcome]}m{verdict.outcome}{_PLAIN}"
        first = f"{word}{_styled(first[len(verdict.outcome) :], _BOLD, paper)}"
        others = [_styled(line, _BOLD, paper) for line in others]
    yield from (first, *others)
    yield from _values(facts, paper, size)


def _values(values: Sequence[Value], paper: Paper, size: int) -> Iterator[str]:
    """Yield each value beside its label; a label that stands above itself is told once."""
    before = ""
    for value in values:
        label = "" if value.label == before else value.label
        before = value.label
        lines = fold(value.text, 0 if value.is_command else paper.width, f"{label:<{size}} ")
        first = lines[0]
        yield f"{_styled(first[: len(label)], _DIM, paper)}{_highlighted(first[len(label) :], paper)}"
        yield from (_highlighted(line, paper) for line in lines[1:])


def _table(table: Table, paper: Paper) -> Iterator[str]:
    kept, name = _fitting(table, paper.width)
    rows = [[shorten(row[0], name) if name else row[0], *(row[i] for i in kept[1:])] for row in _cells(table)]
    sizes = [max(map(columns, column)) for column in zip(*rows, strict=True)]
    words = [table.heads[i] in table.words for i in kept]
    for place, row in enumerate(rows):
        is_chosen = table.chosen is not None and place == table.chosen + 1
        mark = "" if table.chosen is None else _MARK if is_chosen else " " * len(_MARK)
        cells = [
            f"{_blank(cell, size)}{cell}" if number and not is_words else f"{cell}{_blank(cell, size)}"
            for number, (cell, size, is_words) in enumerate(zip(row, sizes, words, strict=True))
        ]
        head, last = f"{mark}{_GAP.join([*cells[:-1], ''])}", cells[-1].rstrip() if words[-1] else cells[-1]
        style = _BOLD if not place else _GREEN if is_chosen else ""
        for line in fold(last, paper.width if words[-1] else 0, head):
            yield _styled(line, style, paper) if style else _highlighted(line, paper)
    if table.is_whole and len(kept) < len(table.heads):
        rest = [0, *(i for i in range(len(table.heads)) if i not in kept)]
        below = (tuple(row[i] for i in rest) for row in _cells(table))
        yield from _table(replace(table, heads=next(below), rows=tuple(below)), paper)


def _fitting(table: Table, width: int) -> tuple[list[int], int]:
    """Return the columns that fit beside each other, and the most columns of a name; 0: as long as it is.

    What the table itself calls less important is left out before the words at the end are folded, the rest after.
    """
    kept = list(range(len(table.heads)))
    if not width:
        return kept, 0
    named = [table.heads.index(name) for name in table.less if name in table.heads[1:]]
    others = [i for i in reversed(kept[1:]) if i not in named]
    kept = _fewer(table, kept, named, width, _MOST_WORDS)
    kept = _fewer(table, kept, sorted(others, key=lambda i: table.heads[i] in table.words), width, _LEAST_WORDS)
    longest = max(columns(row[0]) for row in _cells(table))
    rest = _width(table, kept, longest, _LEAST_WORDS) - longest
    return kept, max(_SHORT_NAME, width - rest)


def _fewer(table: Table, kept: list[int], least_first: Sequence[int], width: int, words: int) -> list[int]:
    """Return the columns without as many of the less important ones as it takes; a name and one more stay."""
    left = list[int]()
    for i in least_first:
        if _width(table, kept, width // _NAME_RATIO, words) <= width or len(kept) == 2:
            break
        kept = [number for number in kept if number != i]
        left.append(i)
    for i in reversed(left):  # a wide column may have made room for narrow ones
        if _width(table, more := sorted([*kept, i]), width // _NAME_RATIO, words) <= width:
            kept = more
    return kept


def _width(table: Table, kept: Sequence[int], name: int, words: int) -> int:
    """Return the columns of the widest row, its name shortened and the words at its end folded."""
    sizes = [max(columns(row[i]) for row in _cells(table)) for i in kept]
    sizes[0] = min(sizes[0], name)
    if table.heads[kept[-1]] in table.words:
        sizes[-1] = min(sizes[-1], words)
    return sum(sizes) + len(_GAP) * (len(sizes) - 1) + (len(_MARK) if table.chosen is not None else 0)


def _cells(table: Table) -> tuple[tuple[str, ...], ...]:
    return (table.heads, *table.rows)


def _blank(text: str, size: int) -> str:
    return " " * (size - columns(text))


def _styled(text: str, style: str, paper: Paper) -> str:
    return f"{style}{text}{_PLAIN}" if paper.is_coloured and style and text else text


def _highlighted(line: str, paper: Paper) -> str:
    return _VERDICT.sub(lambda one: f"{_COLOURS[one[0]]}{one[0]}{_PLAIN}", line) if paper.is_coloured else line


FORMAT = Format(_render)
