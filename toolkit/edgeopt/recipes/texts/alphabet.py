"""The characters that a recogniser of text may write, in the order of its scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from edgeopt.system.disk.files import read_text

_MOST_BYTES = 2**20
_MOST_CHARACTERS = 2**18
"""Most characters of a metadata entry; PP-OCRv5's dictionary of 18,383 lines has 37,000."""
_KEY = "character"
"""Metadata key of RapidOCR: the dictionary, one character a line."""
_REMEDY = "one character a line, UTF-8, as PaddleOCR's dictionaries have it"


class Blank(StrEnum):
    """Where the score of no character stands among the scores of a step."""

    FIRST = "first"
    """As in PaddleOCR and PyTorch."""
    LAST = "last"
    """As in TensorFlow and Keras."""


@dataclass(frozen=True, slots=True)
class Alphabet:
    """The characters behind a recogniser's scores; where they are one more than characters and blank, it is a space."""

    file: str = ""
    """Relative to the recipe: one character a line, as PaddleOCR's dictionaries; once it is read, empty."""
    characters: str = ""
    """Characters in the order of the scores; where line ends are among them, one character a line."""
    blank: Blank = Blank.FIRST

    def __post_init__(self) -> None:
        if self.file and self.characters:
            raise ValueError("alphabet names a file and characters, not one of them")

    @property
    def symbols(self) -> tuple[str, ...]:
        """Each character, without blank and space; a line of a dictionary may hold several code points."""
        text = self.characters.removeprefix("\ufeff").removesuffix("\n")
        return tuple(line.removesuffix("\r") for line in text.split("\n")) if "\n" in text else tuple(text)

    def of_scores(self, count: int) -> tuple[str, ...] | None:
        """Return what each score stands for, the blank as an empty text; None where so many scores do not fit.

        Args:
            count: Of the scores of one step: characters and blank, or a space too, which comes behind them.
        """
        symbols = self.symbols
        if not symbols or count - len(symbols) not in (1, 2):
            return None
        spaced = (*symbols, " ") if count - len(symbols) == 2 else symbols
        return ("", *spaced) if self.blank is Blank.FIRST else (*spaced, "")

    @classmethod
    def numbered(cls, count: int) -> Alphabet:
        """Return characters that are named by their places, such as `[12]`, for so many scores and no space."""
        return cls(characters="".join(f"[{i}]\n" for i in range(1, count)))

    def read_in(self, folder: Path) -> Alphabet:
        """Return the alphabet with the characters of its file.

        Raises:
            InvalidFileError: If it cannot be read.
        """
        if not self.file:
            return self
        text = read_text(folder / self.file, remedy=_REMEDY, most_bytes=_MOST_BYTES)
        return replace(self, file="", characters=text)

    def or_of(self, metadata: Mapping[str, str]) -> Alphabet:
        """Return the alphabet, or where it has none the one that RapidOCR writes into a model's metadata."""
        text = metadata.get(_KEY, "")
        if self.characters or len(text) > _MOST_CHARACTERS:
            return self
        return replace(self, characters=text)
