"""Files of texts: `.txt` with one a line, `.csv` and `.jsonl` with a column `text`, and what else their rows hold."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edgeopt.errors import InvalidFileError
from edgeopt.recipes.labels import require_right
from edgeopt.system.disk.files import read_text
from edgeopt.system.text import plural, short

SUFFIXES = frozenset({".txt", ".csv", ".jsonl"})
PAIR = "\t"
"""Between the two halves of a text that is a pair; columns `text` and `text_pair` become one."""
_TEXT, _SECOND = "text", "text_pair"
_MOST_BYTES = 1 << 28
_MOST_CHARACTERS = 1 << 20
"""Most characters of one text: a book has as many."""
_REMEDY = "write UTF-8: one text a line (.txt), or a column text (.csv), or objects with text (.jsonl)"


@dataclass(frozen=True, slots=True)
class TextRow:
    """One text of a file."""

    line: int
    """Line on which it ends, from 1."""
    text: str
    values: Mapping[str, str] = field(default_factory=dict)
    """Values of its row's other columns, by column in lower case."""


def read_rows(path: Path) -> list[TextRow]:
    """Return the texts of a file in their order; blank lines are none.

    Raises:
        InvalidFileError: If it is not UTF-8, holds a NUL, no text or no column `text`, or a text has more than a
            million characters; the first wrong line is named.
    """
    whole = read_text(path, remedy=_REMEDY, most_bytes=_MOST_BYTES)
    if "\0" in whole:
        line = whole.count("\n", 0, whole.index("\0")) + 1
        raise InvalidFileError(f"{path}: line {line} holds a NUL character: it is no text", remedy=_REMEDY)
    rows = list(_READERS[path.suffix.lower()](path, whole))
    long = [
        f"line {row.line}: a text of {len(row.text)} characters, at most {_MOST_CHARACTERS} are taken"
        for row in rows
        if len(row.text) > _MOST_CHARACTERS
    ]
    require_right(path, long, "split it: a model reads a few hundred words at once")
    if not rows:
        raise InvalidFileError(f"{path} holds no text", remedy=_REMEDY)
    return rows


def has_texts(path: Path) -> bool:
    """Return whether a CSV names a column `text` in its first line and no files, or a JSONL has texts."""
    try:
        with path.open("rb") as file:
            first = file.readline(1 << 16).decode("utf-8-sig", "replace")
    except OSError:
        return False
    if path.suffix.lower() == ".jsonl":
        return f'"{_TEXT}"' in first
    head = [cell.strip().strip('"').lower() for cell in first.split(",")]
    return _TEXT in head and "file" not in head


def _of_lines(_: Path, whole: str) -> Iterator[TextRow]:
    return (TextRow(i, line.strip(" \r")) for i, line in enumerate(whole.split("\n"), 1) if line.strip())


def _of_csv(path: Path, whole: str) -> Iterator[TextRow]:
    reader = csv.reader(io.StringIO(whole, newline=""), strict=True)
    try:
        head = [cell.strip().lower() for cell in next(reader, [])]
        if _TEXT not in head:
            raise InvalidFileError(f"{path} has no column {_TEXT} in its first line", remedy=_REMEDY)
        for cells in reader:
            if not any(cells):
                continue
            if len(cells) != len(head):
                text = f"line {reader.line_num}: {plural(len(cells), 'column')} in place of {len(head)}"
                raise InvalidFileError(f"{path}: {text}: {short(','.join(cells))}", remedy="quote texts with commas")
            yield _row(reader.line_num, dict(zip(head, cells, strict=True)))
    except csv.Error as error:
        raise InvalidFileError(f"{path}: line {reader.line_num}: {error}", remedy=_REMEDY) from error


def _of_json(path: Path, whole: str) -> Iterator[TextRow]:
    for i, line in enumerate(whole.split("\n"), 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidFileError(f"{path}: line {i} is no JSON: {short(line)}", remedy=_REMEDY) from error
        if not isinstance(values, dict) or not isinstance(values.get(_TEXT), str):
            raise InvalidFileError(f"{path}: line {i} is no object with a {_TEXT}: {short(line)}", remedy=_REMEDY)
        result = {str(key).lower(): value for key, value in values.items()}
        yield _row(i, {key: entry if isinstance(entry, str) else json.dumps(entry) for key, entry in result.items()})


def _row(line: int, values: dict[str, str]) -> TextRow:
    text, second = values.pop(_TEXT), values.pop(_SECOND, None)
    if second is not None:
        text = PAIR.join(name.replace(PAIR, " ") for name in (text, second))
    return TextRow(line, text.strip(" \r\n"), values)


_READERS = {".txt": _of_lines, ".csv": _of_csv, ".jsonl": _of_json}
