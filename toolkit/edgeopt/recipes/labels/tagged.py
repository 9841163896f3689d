"""One tag a word, as CoNLL writes them: a word and its tag on a line, a blank line between sentences."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from edgeopt.errors import InvalidFileError
from edgeopt.recipes.labels import LabelFormat, Labels, is_file_like, require_right
from edgeopt.system.disk.files import read_text
from edgeopt.system.text import short

_SUFFIXES = (".conll", ".bio", ".iob", ".iob2")
_MOST_BYTES = 1 << 28
_REMEDY = "write a word and, behind a space or tab, its tag such as B-PER on a line; a blank line between sentences"
_BETWEEN = re.compile(r"[ \t]+")


@dataclass(frozen=True, slots=True)
class TaggedLabels(Labels):
    """Sentences as words, and the tag of each word."""

    words: tuple[tuple[str, ...], ...] = ()
    tags: tuple[tuple[str, ...], ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        """The sentences, their words with one space between."""
        return tuple(" ".join(word) for word in self.words)

    def select(self, kept: Sequence[int]) -> Self:
        """Return the labels of the sentences at these positions only."""
        return replace(
            self,
            files=tuple(self.files[i] for i in kept),
            words=tuple(self.words[i] for i in kept),
            tags=tuple(self.tags[i] for i in kept),
        )


def read_tagged(path: Path) -> TaggedLabels:
    """Read sentences; the first column is the word, the last its tag, `-DOCSTART-` and lines of `# ` are left out.

    Raises:
        InvalidFileError: If it holds something else; the first wrong line is named, and how many there are.
    """
    whole = read_text(path, remedy=_REMEDY, most_bytes=_MOST_BYTES)
    sentences, current, wrong = list[list[tuple[str, str]]](), list[tuple[str, str]](), list[str]()
    for number, line in enumerate([*whole.split("\n"), ""], 1):
        cells = _BETWEEN.split(line.strip(" \t\r"))
        if line.startswith("# ") or cells[0] == "-DOCSTART-":
            continue
        if cells != [""]:
            if len(cells) < 2 or "\0" in line:
                wrong.append(f"line {number}: no word with a tag: {short(line)}")
            current.append((cells[0], cells[-1]))
        elif current:
            sentences.append(current)
            current = []
    require_right(path, wrong, _REMEDY)
    if not sentences:
        raise InvalidFileError(f"{path} holds no sentence", remedy=_REMEDY)
    return TaggedLabels(
        files=tuple(f"{path.stem}[{i}]" for i in range(len(sentences))),
        source=path,
        words=tuple(tuple(word for word, _ in sentence) for sentence in sentences),
        tags=tuple(tuple(tag for _, tag in sentence) for sentence in sentences),
    )


FORMAT = LabelFormat(
    "tagged words (.conll, .bio, .iob)",
    lambda path: any(is_file_like(path, suffix) for suffix in _SUFFIXES),
    read_tagged,
)
