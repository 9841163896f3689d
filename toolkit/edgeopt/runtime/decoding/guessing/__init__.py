"""Guesses at the next tokens of a text, which the model verifies several in one run: the answer stays the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from edgeopt.errors import Note, NoteKind
from edgeopt.executors.onnxruntime.sums import Sums

MOST_GUESSES = 64
"""Most guesses that may be asked for at once."""


class Guesser(Protocol):
    """Guesses for one text, which only grows."""

    computed_tokens: int
    """Tokens that went through a model for the guesses so far."""

    def guess(self, tokens: Sequence[int], count: int) -> list[int]:
        """Return up to `count` tokens that may follow; fewer, or none, where it has no guess.

        Args:
            tokens: The text so far, which begins with that of the last call.
            count: The most guesses.
        """
        ...

    def restart(self) -> None:
        """Forget the text: the next one begins otherwise."""
        ...

    def close(self) -> None:
        """Give back what it holds; the text is over."""
        ...


def notes_of_guesses(sums: Sums) -> tuple[Note, ...]:
    """Return the warning that guesses may change an answer, where they may.

    Args:
        sums: What the numbers of a token of the model depend on.
    """
    if sums is not Sums.APART:
        return ()
    detail = "guesses may change the answer: the numbers of a token depend on those that run with it"
    return (Note(NoteKind.WARNING, detail, "ask for none (--guesses 0) to be sure"),)
