"""How far texts are from the true ones: lines character by character, what was heard word by word."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Whole = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Spelling:
    """The errors in each line, (lines,) each."""

    errors: Whole
    """Characters to insert, delete or replace."""
    lengths: Whole
    """Characters of the true line."""
    by_chance: float
    """Share of true characters that are the most common one."""
    line_by_chance: float
    """Share of true lines that are the most common one."""


def spelling_of(found: Sequence[str], true: Sequence[str]) -> Spelling:
    """Return how far lines are from the true ones; spaces at their ends are none of a line's, as for jiwer."""
    from rapidfuzz.distance import Levenshtein

    found, true = ([line.strip() for line in lines] for lines in (found, true))
    errors = [Levenshtein.distance(a, b) for a, b in zip(found, true, strict=True)]
    characters, whole_lines = Counter("".join(true)), Counter(true)
    most, whole = max(characters.values(), default=0), max(characters.total(), 1)
    lengths = np.array([len(name) for name in true], np.int64)
    by_line = max(whole_lines.values(), default=0) / max(len(true), 1)
    return Spelling(np.array(errors, np.int64), lengths, most / whole, by_line)


def word_errors(found: str, true: str) -> tuple[int, int]:
    """Return how many words must be inserted, deleted or replaced to make a text the true one, and how many that has.

    Capitals and punctuation are none of a word's, as it is heard.
    """
    from rapidfuzz.distance import Levenshtein

    heard, wanted = _words(found), _words(true)
    return Levenshtein.distance(heard, wanted), len(wanted)


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+(?:'[^\W_]+)*", text.casefold().replace("\u2019", "'"))


def right_characters(spelling: Spelling, counts: Whole) -> NDArray[np.float64]:
    """Return (resamples,) 1 less the errors of all lines over their true characters, at least 0."""
    errors, lengths = (counts @ array for array in (spelling.errors, spelling.lengths))
    return np.asarray(np.clip(1 - errors / np.maximum(lengths, 1), 0.0, 1.0), np.float64)


def right_lines(spelling: Spelling, counts: Whole) -> NDArray[np.float64]:
    """Return (resamples,) the share of lines without an error."""
    return np.asarray(counts @ (spelling.errors == 0) / counts.sum(axis=1), np.float64)
