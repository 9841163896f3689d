"""The texts of an `optimize` call for a language model: one calibrates roundings, another judges what they lose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.measurement.generation.perplexity import WINDOW_TOKENS, windows_of
from edgeopt.recipes.recipe import Recipe
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.system.disk.files import read_text
from edgeopt.system.text import plural

_MOST_TEXT_BYTES = 16 << 20
_LEAST_JUDGING, _LEAST_CALIBRATING = 6, 2
_PART = 3
"""Where one text does both, so much of it calibrates: a third."""


@dataclass(frozen=True, slots=True)
class TokenWindows:
    """Windows of tokens of both texts; no window is in both."""

    judging: str
    """Name of the text."""
    windows: Sequence[Sequence[int]]
    calibrating: str
    """Name of the text."""
    calibration: Sequence[Sequence[int]]
    short: Note | None = None
    """Why the windows that judge are shorter than prompt and answer together; None: they are not."""

    def prompt(self, first: int, count: int) -> list[int]:
        """Return so many tokens of the judging text, from one window on; after the last one the text begins again."""
        tokens = list[int]()
        while len(tokens) < count:
            tokens += self.windows[first % len(self.windows)]
            first += 1
        return tokens[:count]


def no_text() -> EdgeoptError:
    """Return that no text tells what a form loses."""
    remedy = "pass --eval TEXT: a file of text that the model did not learn"
    return EdgeoptError("no text judges what a form loses", remedy=remedy)


def read_texts(
    recipe: Recipe, opened: LanguageModel, judge: str, calibrate: str, length: int = WINDOW_TOKENS
) -> TokenWindows:
    """Return the windows of both texts.

    What judges is as long as a prompt and its answer together, where that is more than a usual window and the text
    reaches: a form, and a cache in 8 bits above all, may lose more the longer a text is.

    Args:
        recipe: Names a text of its own, perhaps.
        opened: Whose tokens they become.
        judge: File that judges; empty: the recipe's own.
        calibrate: File that calibrates; empty: the recipe's own where another one judges, else the first third of
            the one that judges.
        length: Tokens of a prompt and its answer.

    Raises:
        EdgeoptError: If there is none, one is too short, or one file is to do both.
    """
    own = recipe.path_of(recipe.evaluation.calib)
    judging = Path(judge) if judge else own
    if judging is None:
        raise no_text()
    calibrating = Path(calibrate) if calibrate else own or judging
    is_same = calibrating.exists() and judging.exists() and calibrating.samefile(judging)
    if is_same and calibrate and judge:
        raise EdgeoptError(
            f"{calibrating} is to calibrate and to judge: a form would be judged by what it is fitted to",
            remedy="pass two texts, or leave --calib out: then the first third calibrates",
        )
    tokens = _tokens(judging, opened)
    windows = windows_of(tokens, opened.context)
    least = _LEAST_JUDGING + (_LEAST_CALIBRATING if is_same else 0)
    if len(windows) < least:
        raise _too_short(judging, windows, least)
    if is_same:
        first = min(max(len(windows) // _PART, _LEAST_CALIBRATING), len(windows) - _LEAST_JUDGING)
        seen, windows, text = windows[:first], windows[first:], f"the beginning of {judging.name}"
        tokens = tokens[len(tokens) * first // (first + len(windows)) + len(windows[0]) :]
    else:
        seen, text = windows_of(_tokens(calibrating, opened), opened.context), calibrating.name
        if len(seen) < _LEAST_CALIBRATING:
            raise _too_short(calibrating, seen, _LEAST_CALIBRATING)
    reached = min(length, opened.context, len(tokens) // _LEAST_JUDGING)
    if reached > len(windows[0]):
        windows = windows_of(tokens, opened.context, reached)
    short = _told_short(judging, len(windows[0]), length, is_same=is_same) if len(windows[0]) < length else None
    return TokenWindows(judging.name, windows, text, seen, short)


def _told_short(file: Path, reached: int, length: int, *, is_same: bool) -> Note:
    """Return that no form is judged at the lengths asked for: the text does not reach."""
    text = f"forms are judged by windows of {reached:,} tokens, not of the {length:,} of a prompt and its answer: "
    text += f"{file.name} has no {_LEAST_JUDGING} of those"
    other = "--calib with another text, and " if is_same else ""  # else a third of it calibrates
    return Note(NoteKind.WARNING, text, f"{other}--eval with a text of {_LEAST_JUDGING * length:,} tokens or more")


def _tokens(file: Path, opened: LanguageModel) -> Sequence[int]:
    text = read_text(file, remedy="pass a text in UTF-8", most_bytes=_MOST_TEXT_BYTES)
    return opened.tokenizer.encode(text)


def _too_short(file: Path, windows: Sequence[Sequence[int]], least: int) -> EdgeoptError:
    tokens = sum(len(window) for window in windows)
    length = len(windows[0]) if windows else 0
    return EdgeoptError(
        f"{file} has about {plural(tokens, 'token')}: {plural(len(windows), 'window')} of {length} tokens",
        remedy=f"pass a text of {least} windows or more",
    )
