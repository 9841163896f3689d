"""Tokens as pieces of text: whole characters only, and nothing of what a stop string begins with."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from edgeopt.recipes.texts.tokens import Tokens


class Pieces:
    """The text of one answer as it grows."""

    def __init__(self, tokenizer: Tokens, stop: Sequence[str] = (), shows: Sequence[str] = ()) -> None:
        """Begin a text.

        Args:
            tokenizer: Of the model.
            stop: The text ends before the first of these that appears in it.
            shows: Names of special tokens that the text shows; others write nothing.
        """
        self._shown = {tokenizer.special[name]: name for name in shows if name in tokenizer.special}
        self._tokenizer, self._stop = tokenizer, tuple(name for name in stop if name)
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.is_over = False
        """Whether a stop string was met."""

    def add(self, token: int) -> str:
        """Return what may be shown after one more token."""
        written = self._shown.get(token)
        self._held += self._characters.decode(self._tokenizer.token_bytes(token)) if written is None else written
        return self._free()

    def end(self) -> str:
        """Return what was held back, when no token follows."""
        self._held += self._characters.decode(b"", final=True)
        shown = self._free()
        if not self.is_over:
            shown, self._held = shown + self._held, ""
        return shown

    def _free(self) -> str:
        """Return what no stop string can begin in, and keep the rest."""
        if self.is_over:
            return ""
        if not self._stop:
            shown, self._held = self._held, ""
            return shown
        found = [place for name in self._stop if (place := self._held.find(name)) >= 0]
        if found:
            shown, self._held, self.is_over = self._held[: min(found)], "", True
            return shown
        longest = max((overlap(self._held, name) for name in self._stop), default=0)
        shown = self._held[: len(self._held) - longest]
        self._held = self._held[len(shown) :]
        return shown


def overlap(text: str, stop: str) -> int:
    """Return how many letters at the end of a text are the first ones of a stop string."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if stop.startswith(text[-n:])), 0)
