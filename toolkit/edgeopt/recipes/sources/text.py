"""Texts: a `.txt` with one a line, or a `.csv` or `.jsonl` with a column `text`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edgeopt.errors import InvalidFileError, Note, NoteKind
from edgeopt.recipes.inputs.frames import Frames, SourceKind
from edgeopt.recipes.inputs.text_files import PAIR, SUFFIXES, read_rows
from edgeopt.recipes.recipe import Recipe
from edgeopt.system.text import plural

_LETTERS = "etaoinshrdlucmfwypvbgkjqxz"
"""Letters of made-up words: the more frequent ones in English first."""
_SEEN = 64
"""Given texts whose length is looked at."""


def frames_of_texts(texts: Sequence[str], names: Sequence[str], source: Path, *, notes: Sequence[Note] = ()) -> Frames:
    """Return texts as the frames of a file.

    Args:
        texts: One or more.
        names: One a text.
        source: The file.
        notes: What is to know of them.
    """
    held = tuple(texts)
    return Frames(tuple(names), lambda i: held[i], source, notes=tuple(notes), paths=(source,), kind="text")


def _made_up(recipe: Recipe, count: int) -> Frames:
    """Return texts of made-up words, two in one where the recipe takes pairs."""
    return _of_words(count, (4, 24), 2 if recipe.tokenizer.pairs else 1)


def _of_words(count: int, words: Sequence[int], parts: int) -> Frames:
    """Return so many texts, each of so many parts with a number of words from a range."""
    chance, lines = np.random.default_rng(0), list[str]()
    weights = 1 / np.arange(2.0, 2 + len(_LETTERS))
    for _ in range(count * parts):
        lengths = chance.integers(1, 9, int(chance.integers(words[0], words[1] + 1)))
        drawn = (chance.choice([*_LETTERS], int(length), p=weights / weights.sum()) for length in lengths)
        lines.append(" ".join("".join(array.tolist()) for array in drawn))
    held = tuple(PAIR.join(lines[i * parts : (i + 1) * parts]) for i in range(count))
    names = tuple(f"synthetic[{i}]" for i in range(count))
    return Frames(names, lambda i: held[i], Path("synthetic"), kind="text")


def _open(path: Path) -> Frames:
    rows = read_rows(path)
    kept = [row for row in rows if row.text.strip()]
    if not kept:
        raise InvalidFileError(f"{path} holds empty texts only", remedy="write what the model is asked")
    left_out = len(rows) - len(kept)
    note = Note(NoteKind.SKIPPED, f"{plural(left_out, 'text')} of {path} left out, empty")
    names = [f"{path.stem}[{i}]" for i in range(len(kept))]
    return frames_of_texts([row.text for row in kept], names, path, notes=(note,) if left_out else ())


def _like(frames: Frames, count: int) -> Frames:
    """Return made-up texts with about as many words as given ones."""
    texts = [str(frames.read(i)) for i in range(min(len(frames), _SEEN))]
    parts = max(text.count(PAIR) for text in texts) + 1
    lengths = sorted(max(len(text.split()) // parts, 1) for text in texts)
    return _of_words(count, (lengths[len(lengths) // 4], lengths[-1]), parts)


SOURCE = SourceKind("texts (.txt, .csv, .jsonl)", SUFFIXES, _open, _made_up, _like)
