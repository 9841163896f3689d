"""Guesses at the next tokens: what followed the last few when they stood in the text before.

Source: Saxena, 2023, prompt lookup decoding; verified as in Leviathan et al., 2023, arXiv:2211.17192.
"""

from __future__ import annotations

from collections.abc import Sequence

_LONGEST, _SHORTEST = 3, 2
"""Tokens at the end of the text that must have stood there before."""


def guessed(tokens: Sequence[int], count: int) -> list[int]:
    """Return up to `count` tokens that followed the last place where the text's end stood before; none: no such place.

    Args:
        tokens: The text so far.
        count: The most guesses.
    """
    for length in range(min(_LONGEST, len(tokens) - 1), _SHORTEST - 1, -1):
        end = list(tokens[-length:])
        for start in range(len(tokens) - length - 1, -1, -1):
            if list(tokens[start : start + length]) == end:
                return list(tokens[start + length : start + length + count])
    return []
