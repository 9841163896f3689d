"""A result as a reader sees it: tables, values and notes, in sections.

A result's own folder makes the document (`summary.py` there), and every file of `report/formats` can write it.
Texts are as they came from models and files: a format makes them harmless.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from edgeopt.errors import EXIT_INCONCLUSIVE, EXIT_MISSED, EXIT_NOISY, EXIT_PASS, Note
from edgeopt.report.figures import Figure
from edgeopt.report.result import Result

T = TypeVar("T")
LABEL = 10
"""Columns of a label in plain text; a blank follows."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under heads; the first column names the row."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: frozenset[str] = frozenset()
    """Heads of columns that hold words, not numbers: aligned left; the last is folded where a line is too short."""
    less: tuple[str, ...] = ()
    """Heads of columns that a narrow terminal leaves out, the least important first."""
    chosen: int | None = None
    """The row that a reader looks for."""
    is_whole: bool = False
    """Whether the columns that a narrow terminal leaves out follow in a table below: none may be missing."""


def make_table(
    items: Iterable[T],
    columns: Mapping[str, Callable[[T], str]],
    *,
    words: Collection[str] = (),
    less: Sequence[str] = (),
    chosen: int | None = None,
    is_whole: bool = False,
) -> Table:
    """Return one row an item; a column that says nothing of any item, or `n/a` of all, is left out.

    Args:
        items: What the rows are about.
        columns: Head to what a cell says of an item; the first names it.
        words: See `Table.words`.
        less: See `Table.less`.
        chosen: See `Table.chosen`.
        is_whole: See `Table.is_whole`.
    """
    items, (first, *_) = tuple(items), columns
    cells = {head: [cell(other) for other in items] for head, cell in columns.items()}
    table = {head: column for head, column in cells.items() if head == first or not {*column} <= {"", "n/a"}}
    return Table(
        tuple(table), tuple(zip(*table.values(), strict=True)), frozenset(words), tuple(less), chosen, is_whole
    )


@dataclass(frozen=True, slots=True)
class Value:
    """A label and what it says, in a short clause."""

    label: str
    text: str
    is_command: bool = False
    """Whether the text is copied as a whole: it is never folded."""
    more: str = ""
    """Further facts, for a page: a terminal has no room for them."""

    @classmethod
    def of_note(cls, note: Note) -> Value:
        """Return a note beside its kind."""
        return cls(note.kind, str(note), more=note.more)

    @property
    def whole(self) -> str:
        """The text and what else is known."""
        return "; ".join(part for part in (self.text, self.more) if part)

    def __str__(self) -> str:
        return f"{self.label:<{LABEL}} {self.text}"


@dataclass(frozen=True, slots=True)
class KeyFigure:
    """One of the few figures that a manager asks for."""

    label: str
    text: str
    """Figure with its unit, as short as can be: `1.42x`."""
    detail: str = ""
    """The figure's interval or comparison: `95 % interval 1.31 to 1.55`."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a document; what is empty is left out."""

    title: str = ""
    table: Table | None = None
    text: str = ""
    """How to read the table."""
    values: tuple[Value, ...] = ()
    figures: tuple[Figure, ...] = ()
    """Charts and pictures, for formats that draw."""
    notes: tuple[Note, ...] = ()
    is_detail: bool = False
    """Whether it is for a page only: a terminal has no room for it."""
    is_folded: bool = False
    """Whether a page that can fold shows it only when asked: there are many of its kind."""


@dataclass(frozen=True, slots=True)
class JudgedCase:
    """One thing that was judged; a test case, where a format has such."""

    name: str
    verdict: str
    """PASS, FAIL, INCONCLUSIVE or SKIPPED."""
    detail: str
    is_noise: bool = False
    """Whether only the noise of the machine keeps it from a verdict."""

    @classmethod
    def by_exit(cls, name: str, exit_code: int, detail: str) -> JudgedCase:
        """Return what an exit code says of one thing."""
        verdict = {EXIT_PASS: "PASS", EXIT_MISSED: "FAIL"}.get(exit_code, "INCONCLUSIVE")
        return cls(name, verdict, detail, exit_code == EXIT_NOISY)


class CommandOutcome(StrEnum):
    """How a command ended, in one word."""

    PASS = "PASS"
    FAIL = "FAIL"
    NOT_DECIDED = "NOT DECIDED"
    NOISY = "NOISY"
    """The machine was too noisy to decide."""
    DONE = "DONE"
    """Nothing was to be passed."""
    FASTER = "FASTER"
    SLOWER = "SLOWER"
    EQUIVALENT = "EQUIVALENT"

    @classmethod
    def by_exit(cls, exit_code: int) -> CommandOutcome:
        """Return the word of an exit code that a gate gave."""
        known = {EXIT_PASS: cls.PASS, EXIT_MISSED: cls.FAIL, EXIT_INCONCLUSIVE: cls.NOT_DECIDED, EXIT_NOISY: cls.NOISY}
        return known[exit_code]


@dataclass(frozen=True, slots=True)
class VerdictLines:
    """The words for a reader of nothing else: a page begins with them, a terminal ends with them."""

    outcome: CommandOutcome
    sentence: str
    """The result, for somebody who knows no figures of the run."""
    facts: tuple[Value, ...] = ()
    """Grounds and costs of the result, one clause each."""
    bundle: str = ""
    """The folder that was written; empty: none was."""
    next_command: str = ""
    """Command that a reader would run next, as it is typed."""


@dataclass(frozen=True, slots=True)
class Document:
    """One command's result, for a reader and for a program."""

    result: Result
    """The result itself, for other programs."""
    subject: str
    """Name of the model or of another subject."""
    title: str
    sections: tuple[Section, ...] = ()
    verdict: VerdictLines | None = None
    """None: there was nothing to judge."""
    key_figures: tuple[KeyFigure, ...] = ()
    """A page shows them large, above all else."""
    judgements: tuple[JudgedCase, ...] = ()
    seconds: float = 0.0
    """How long it all took; 0: not known."""

    @property
    def command(self) -> str:
        """Command that made it: `optimize`."""
        return self.result.command

    @property
    def data(self) -> dict[str, Any]:
        """The result as plain values, for other programs."""
        return self.result.as_json()
