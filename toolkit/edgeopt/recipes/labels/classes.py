"""One class a picture: CSV."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from edgeopt.errors import InvalidFileError
from edgeopt.recipes.labels import LabelFormat, Labels, is_file_like, require_right, why_seen, why_wrong_file
from edgeopt.recipes.labels.intervals import is_intervals
from edgeopt.recipes.labels.transcripts import holds_texts
from edgeopt.recipes.text_files import has_texts
from edgeopt.system.files import read_text
from edgeopt.system.text import plural, short

_MOST_BYTES = 1 << 30
_MOST_CLASS = 2**31 - 1
_COLUMNS = ("file", "class_index")
_REMEDY = "write one line an image: file,class_index (from 0), each file once"


@dataclass(frozen=True, slots=True)
class ClassLabels(Labels):
    """The class of each picture."""

    classes: tuple[int, ...] = ()
    """One index a picture, from 0."""
    names: tuple[str, ...] = ()
    """Of the classes, where the labels name them."""

    def select(self, kept: Sequence[int]) -> Self:
        """Return the labels of the pictures at these positions only."""
        return replace(self, files=tuple(self.files[i] for i in kept), classes=tuple(self.classes[i] for i in kept))


def read_classes(path: Path) -> ClassLabels:
    """Read a CSV with the columns `file` and `class_index`, or of two columns without a head.

    Raises:
        InvalidFileError: If it is none; the first wrong line is named, and how many there are.
    """
    text = read_text(path, remedy=_REMEDY, most_bytes=_MOST_BYTES)
    try:
        rows = [(i + 1, row) for i, row in enumerate(csv.reader(text.splitlines(), strict=True)) if any(row)]
    except csv.Error as error:
        raise InvalidFileError(f"{path} is no CSV: {error}", remedy=_REMEDY) from error
    file, index = 0, 1
    if rows and set(_COLUMNS) <= set(head := [cell.strip().lower() for cell in rows[0][1]]):
        file, index = (head.index(column) for column in _COLUMNS)
        width, rows = len(head), rows[1:]
    else:
        width = 2
    seen: set[Any] = set()
    wrong = [f"line {i}: {reason}" for i, row in rows if (reason := _why_wrong_row(row, file, index, width, seen))]
    require_right(path, wrong, _REMEDY)
    if not rows:
        raise InvalidFileError(f"{path} labels no image", remedy=_REMEDY)
    return ClassLabels(
        files=tuple(row[file].strip() for _, row in rows),
        classes=tuple(int(row[index]) for _, row in rows),
        source=path,
    )


def _why_wrong_row(row: Sequence[str], file: int, index: int, width: int, seen: set[Any]) -> str:
    if len(row) != width:
        return f"{plural(len(row), 'column')} in place of {width}: {short(','.join(row))}"
    word, name = row[index].strip(), row[file].strip()
    if not (word.isascii() and word.isdigit() and len(word) <= 10 and int(word) <= _MOST_CLASS):
        return f"{short(word)} is no class index"
    return why_wrong_file(name) or why_seen(name, seen, f"file {short(name)}")


def _holds_classes(path: Path) -> bool:
    other = holds_texts(path) or has_texts(path) or is_intervals(path)
    return is_file_like(path, ".csv") and not other


FORMAT = LabelFormat("a CSV of labels (.csv)", _holds_classes, read_classes)
