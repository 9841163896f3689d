"""One class a text: CSV or JSONL with `text` and `label`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from edgeopt.errors import InvalidFileError
from edgeopt.recipes.inputs.text_files import has_texts, read_rows
from edgeopt.recipes.labels import LabelFormat, Labels, is_file_like, require_right
from edgeopt.system.text import short

_COLUMN = "label"
_REMEDY = "write a column text and a column label, a class name or an index from 0 (.csv, .jsonl)"


@dataclass(frozen=True, slots=True)
class TextLabels(Labels):
    """Texts and the class of each, as the file writes it: a name or an index."""

    texts: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()

    def select(self, kept: Sequence[int]) -> Self:
        """Return the labels of the texts at these positions only."""
        files, texts, classes = (tuple(one[i] for i in kept) for one in (self.files, self.texts, self.classes))
        return replace(self, files=files, texts=texts, classes=classes)


def read_text_labels(path: Path) -> TextLabels:
    """Read a CSV or JSONL with the columns `text` and `label`.

    Raises:
        InvalidFileError: If it is none; the first wrong line is named, and how many there are.
    """
    rows = read_rows(path)
    if not any(_COLUMN in row.values for row in rows):
        raise InvalidFileError(f"{path} has texts and no column {_COLUMN}", remedy=_REMEDY)
    wrong = [f"line {row.line}: no text" for row in rows if not row.text.strip()]
    wrong += [
        f"line {row.line}: no label for {short(row.text)}" for row in rows if not row.values.get(_COLUMN, "").strip()
    ]
    require_right(path, wrong, _REMEDY)
    return TextLabels(
        files=tuple(f"{path.stem}[{i}]" for i in range(len(rows))),
        source=path,
        texts=tuple(row.text for row in rows),
        classes=tuple(row.values[_COLUMN].strip() for row in rows),
    )


def _reads(path: Path) -> bool:
    return is_file_like(path, ".jsonl") or (is_file_like(path, ".csv") and has_texts(path))


FORMAT = LabelFormat("a CSV or JSONL of texts (.csv, .jsonl)", _reads, read_text_labels)
