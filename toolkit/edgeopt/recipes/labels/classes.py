"""One class a picture: CSV."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from edgeopt.errors import InvalidFileError, Note, NoteKind
from edgeopt.recipes.inputs.text_files import has_texts
from edgeopt.recipes.labels import LabelFormat, Labels, is_file_like, require_right, why_seen, why_wrong_file
from edgeopt.recipes.labels.intervals import is_intervals
from edgeopt.recipes.labels.transcripts import holds_texts
from edgeopt.system.disk.files import read_text
from edgeopt.system.text import plural, short

_MOST_BYTES = 1 << 30
_MOST_CLASS = 2**31 - 1
_FILES = (
    *("file", "filename", "file_name", "image", "img", "picture", "path", "filepath", "file_path", "image_path"),
    *("image_id", "image_name", "img_name", "filenames", "name", "id"),
)
_CLASSES = ("class_index", "class", "label", "class_id", "label_id", "category", "target", "class_name", "label_name")
"""Heads of the two columns, as tools write them; where several are there the first one counts."""
_BETWEEN = (",", ";", "\t")
_NAMED = 5
"""Classes in a note."""
_REMEDY = "write one line an image: file,class_index (from 0) or a class name, each file once"


@dataclass(frozen=True, slots=True)
class ClassLabels(Labels):
    """The class of each picture."""

    classes: tuple[int, ...] = ()
    """One index a picture, from 0."""
    names: tuple[str, ...] = ()
    """Names of the classes, where the labels name them."""

    def select(self, kept: Sequence[int]) -> Self:
        """Return the labels of the pictures at these positions only."""
        return replace(self, files=tuple(self.files[i] for i in kept), classes=tuple(self.classes[i] for i in kept))

    def indices_of(self, class_names: Sequence[str], count: int = 0) -> tuple[int, ...]:
        """Return which class of a model each of `names` is.

        By name where the model's classes have names, whatever their case and with `_` for a space. Numbers stand for
        themselves. Else by their order, which is that of a training on class folders.

        Args:
            class_names: Of the model; empty: not known.
            count: Classes of the model; 0: not known.

        Raises:
            InvalidFileError: If names are known on both sides and one is no class of the model, or there are not as
                many as the model has classes, so that their order tells nothing.
        """
        places = {_plain(name): i for i, name in reversed(list(enumerate(class_names)))}
        result = [places.get(_plain(name)) for name in self.names]
        if all(place is not None for place in result):
            return tuple(place for place in result if place is not None)
        if not any(place is not None for place in result):
            if all(name.isascii() and name.isdigit() and len(name) < 10 for name in self.names):
                return tuple(map(int, self.names))
            if len(self.names) == (len(class_names) or count or len(self.names)):
                return tuple(range(len(self.names)))
        if not class_names:
            raise InvalidFileError(
                f"{self.source} has {plural(len(self.names), 'class name')}, the model {count} classes, and its recipe "
                "names none of them",
                remedy='write labels = "labels.txt" into the recipe: one name a line, in the order of the model',
            )
        strange = self.names[result.index(None)]
        raise InvalidFileError(
            f"{self.source}: {short(strange)} is no class of the recipe: {', '.join(map(short, class_names[:12]))}",
            remedy="name classes in the labels as in the recipe's labels",
        )

    def check_classes(self, class_names: Sequence[str]) -> tuple[Note, ...]:
        """Return a note of which class each name is taken for, where the names do not say it themselves.

        Raises:
            InvalidFileError: As `indices_of`.
        """
        indices = self.indices_of(class_names)
        known = {_plain(name) for name in class_names}
        if all(_plain(name) in known or name.isdigit() for name in self.names):
            return ()
        parts = [f"{i} {name}" for i, name in zip(indices, self.names, strict=True)]
        why = "none of the names is a class of the recipe" if class_names else "the recipe names no classes"
        detail = f"{why}, so they are taken in their order: {', '.join(parts[:_NAMED])}"
        kind = NoteKind.WARNING if class_names else NoteKind.INFO
        detail += ", ..." if len(parts) > _NAMED else ""
        return (Note(kind, detail, 'write labels = "labels.txt", one name a line, into the recipe'),)


def _plain(name: str) -> str:
    return " ".join(name.replace("_", " ").replace("-", " ").casefold().split())


def read_classes(path: Path) -> ClassLabels:
    """Read a CSV with a column of files and one of classes, or of these two columns without a head.

    Commas, semicolons or tabs stand between them. Classes are indices from 0, or names.

    Raises:
        InvalidFileError: If it is none; the first wrong line is named, and how many there are.
    """
    text = read_text(path, remedy=_REMEDY, most_bytes=_MOST_BYTES)
    between = _between(text)
    try:
        lines = csv.reader(text.splitlines(), strict=True, delimiter=between)
        rows = [(i + 1, row) for i, row in enumerate(lines) if any(row)]
    except csv.Error as error:
        raise InvalidFileError(f"{path} is no CSV: {error}", remedy=_REMEDY) from error
    file, index, width = 0, 1, 2
    head = [cell.strip().lower() for cell in rows[0][1]] if rows else []
    named = next((one for one in _FILES if one in head), ""), next((one for one in _CLASSES if one in head), "")
    if all(named):
        file, index = map(head.index, named)
        width, rows = len(head), rows[1:]
    words = [row[index].strip() for _, row in rows if len(row) == width]
    are_names = bool(words) and all(any(map(str.isalpha, word)) for word in words)
    seen: set[Any] = set()
    wrong = [f"line {i}: {why}" for i, row in rows if (why := _why_wrong_row(row, file, index, width, seen, are_names))]
    require_right(path, wrong, _REMEDY)
    if not rows:
        raise InvalidFileError(f"{path} labels no image", remedy=_REMEDY)
    names = sorted(set(words)) if are_names else []
    return ClassLabels(
        files=tuple(row[file].strip() for _, row in rows),
        classes=tuple(names.index(word) if are_names else int(word) for word in words),
        names=tuple(names),
        source=path,
    )


def _between(text: str) -> str:
    """Return what stands between columns: what the first line has most of, a comma where it has none."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    return "," if "," in first else max(_BETWEEN, key=first.count)


def _why_wrong_row(row: Sequence[str], file: int, index: int, width: int, seen: set[Any], are_names: bool) -> str:
    if len(row) != width:
        return f"{plural(len(row), 'column')} in place of {width}: {short(','.join(row))}"
    word, name = row[index].strip(), row[file].strip()
    if not are_names and not (word.isascii() and word.isdigit() and len(word) <= 10 and int(word) <= _MOST_CLASS):
        return f"{short(word)} is no class index"
    return why_wrong_file(name) or why_seen(name, seen, f"file {short(name)}")


def _holds_classes(path: Path) -> bool:
    other = holds_texts(path) or has_texts(path) or is_intervals(path)
    return is_file_like(path, ".csv") and not other


FORMAT = LabelFormat("a CSV of labels (.csv)", _holds_classes, read_classes)
