"""Whether a tokenizer is a model's own: its tokens against the rows that the model has for them.

Models come with rows that no token has: they are filled up to a multiple (399 of 152064 in Qwen2.5 7B, 2385 of 102400
in DeepSeek LLM), and older tokenizers leave tokens out (the 1501 times of Whisper, of 51865).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from edgeopt.errors import Note, NoteKind, UnsupportedError

_USUAL_SHARE, _USUAL_ROWS = 0.03, 128
"""Rows without a token that models come with: so many of all; in a small vocabulary so many rows."""
_FOREIGN_TIMES, _FOREIGN_ROWS = 2, 1000
"""Rows over tokens, and rows without a token, above both of which the tokenizer is another model's."""
_REMEDY = "take the tokenizer.json that the model was trained with"


def require_vocabulary(
    source: str,
    tokens: int,
    rows: int,
    special: Collection[int] = (),
    named: Mapping[str, Sequence[int]] = MappingProxyType({}),
) -> tuple[Note, ...]:
    """Return a warning where a model has more rows without a token than models come with; else nothing.

    Args:
        source: The tokenizer's file, or what else it is called.
        tokens: The largest token that it makes of a text, and one.
        rows: Of the model, one for each token that it knows.
        special: Tokens that stand for no text; those beyond the rows are never asked for.
        named: Tokens that recipe or configuration name, such as those that end an answer, by what they do.

    Raises:
        UnsupportedError: If tokens lie beyond the rows, or the model has so many more that the tokenizer is another's.
    """
    if tokens > rows:
        raise UnsupportedError(f"{source} has {tokens} tokens, the model {rows}", remedy=_REMEDY)
    for what, numbers in named.items():
        if wrong := [number for number in numbers if not 0 <= number < rows]:
            raise UnsupportedError(
                f"the token {wrong[0]} that {what} is none of the model's, 0 to {rows - 1}",
                remedy="correct it in the recipe or the configuration, or copy all files of one export",
            )
    known = max([tokens, *(index + 1 for index in special if index < rows)])
    unused = rows - known
    if rows > _FOREIGN_TIMES * known and unused > _FOREIGN_ROWS:
        raise UnsupportedError(
            f"{source} has {known} tokens, the model {rows}: it is another model's tokenizer", remedy=_REMEDY
        )
    if unused <= max(_USUAL_ROWS, _USUAL_SHARE * rows):
        return ()
    text = f"{source} has {known} tokens, the model {rows}: it may be another model's tokenizer"
    return (Note(NoteKind.WARNING, text, "compare it with the one that the model was trained with"),)
