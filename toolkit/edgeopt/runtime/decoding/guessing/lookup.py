"""Guesses at the next tokens: what followed the last few when they stood in the text before.

Source: Saxena, 2023, prompt lookup decoding; verified as in Leviathan et al., 2023, arXiv:2211.17192.
"""

from __future__ import annotations

from collections.abc import Sequence

_LENGTHS = (3, 2)
"""Tokens at the end of the text that must have stood there before; the longest first."""


class LookUp:
    """A `Guesser` that knows the text alone."""

    computed_tokens = 0

    def __init__(self) -> None:
        """Begin a text."""
        self._follows: dict[tuple[int, ...], int] = {}
        """Where the text goes on behind the last place of a few tokens."""
        self._next = 1

    def guess(self, tokens: Sequence[int], count: int) -> list[int]:
        """Return up to `count` tokens that followed the last place where the text's end stood before.

        Args:
            tokens: The text so far, which begins with that of the last call.
            count: The most guesses.
        """
        for end in range(self._next, len(tokens)):
            for length in _LENGTHS:
                if length <= end:
                    self._follows[tuple(tokens[end - length : end])] = end
        self._next = max(self._next, len(tokens))
        for length in _LENGTHS:
            if length < len(tokens) and (place := self._follows.get(tuple(tokens[-length:]))) is not None:
                return list(tokens[place : place + count])
        return []

    def restart(self) -> None:
        """Forget the text: the next one begins otherwise."""
        self._follows.clear()
        self._next = 1

    def close(self) -> None:
        """Do nothing: it holds no cache."""
