"""The text of each picture: PaddleOCR's `rec_gt.txt`, a path, a tab and the text a line; or a CSV of file,text."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from edgeopt.errors import InvalidFileError
from edgeopt.recipes.labels import LabelFormat, Labels, is_file_like, require_right, why_seen, why_wrong_file
from edgeopt.system.disk.files import read_text
from edgeopt.system.text import plural, short

_MOST_BYTES = 1 << 30
_MOST_LENGTH = 10_000
"""Characters of a line."""
_COLUMNS = ("file", "text")
_HEAD_BYTES = 4096
_REMEDY = "write one picture a line: its file, a tab, its text; or a CSV with the columns file and text"


@dataclass(frozen=True, slots=True)
class Transcripts(Labels):
    """The text of each picture."""

    lines: tuple[str, ...] = ()

    def select(self, kept: Sequence[int]) -> Self:
        """Return the labels of the pictures at these positions only."""
        return replace(self, files=tuple(self.files[i] for i in kept), lines=tuple(self.lines[i] for i in kept))


def read_transcripts(path: Path) -> Transcripts:
    """Read a text file of lines with a tab, or a CSV whose head has `file` and `text`.

    Raises:
        InvalidFileError: If it is none; the first wrong line is named, and how many there are.
    """
    text = read_text(path, remedy=_REMEDY, most_bytes=_MOST_BYTES).removeprefix("\ufeff")
    rows = _rows_of_csv(path, text) if path.suffix.lower() == ".csv" else _rows_of_lines(text)
    seen: set[Any] = set()
    wrong = [f"line {i}: {reason}" for i, row in rows if (reason := _why_wrong(row, seen))]
    require_right(path, wrong, _REMEDY)
    if not rows:
        raise InvalidFileError(f"{path} labels no picture", remedy=_REMEDY)
    return Transcripts(tuple(row[0].strip() for _, row in rows), path, tuple(row[1] for _, row in rows))


def _rows_of_lines(text: str) -> list[tuple[int, list[str]]]:
    lines = (line.removesuffix("\r") for line in text.split("\n"))
    return [(i, line.split("\t", 1)) for i, line in enumerate(lines, start=1) if line.strip()]


def _rows_of_csv(path: Path, text: str) -> list[tuple[int, list[str]]]:
    try:
        head, *rows = [(i, row) for i, row in enumerate(csv.reader(text.splitlines(), strict=True), 1) if any(row)]
    except csv.Error as error:
        raise InvalidFileError(f"{path} is no CSV: {error}", remedy=_REMEDY) from error
    names = _names(head[1])
    places = [names.index(column) for column in _COLUMNS]
    return [(i, [row[place] for place in places] if len(row) == len(names) else row[:1]) for i, row in rows]


def _why_wrong(row: Sequence[str], seen: set[Any]) -> str:
    name = row[0].strip()
    if len(row) != 2:
        return f"no file and text: {short(row[0])}"
    if len(row[1]) > _MOST_LENGTH:
        return f"its text has {plural(len(row[1]), 'character')}, more than {_MOST_LENGTH}"
    return why_wrong_file(name) or why_seen(name, seen, f"file {short(name)}")


def _names(head: Sequence[str]) -> list[str]:
    return [cell.strip().lower() for cell in head]


def holds_texts(path: Path) -> bool:
    """Return whether a CSV's first line names the columns `file` and `text`."""
    try:
        with path.open("rb") as file:
            head = file.readline(_HEAD_BYTES).decode("utf-8-sig", "replace")
    except OSError:
        return False
    return set(_COLUMNS) <= set(_names(head.split(",")))


def _holds_transcripts(path: Path) -> bool:
    return is_file_like(path, ".txt") or (is_file_like(path, ".csv") and holds_texts(path))


FORMAT = LabelFormat("a list of file, tab, text (.txt)", _holds_transcripts, read_transcripts)
