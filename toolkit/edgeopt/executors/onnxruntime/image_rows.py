"""Rows of pictures in a text: an encoder's output for a picture stands where tokens of the prompt do.

A decoder that sees takes two inputs beside its tokens: `image_rows`, (rows, width) float32, the encoder's rows of the
pictures of a run, and `image_places`, (batch, tokens) int64, the row that stands in place of each token, -1 where its
own embedding does. A text without pictures gives one row that nobody reads, and the place -1 for all tokens.

A row of a picture is a token of the text like others: a number beyond every vocabulary that is the same for the same
row of the same picture alone. So caches, prefixes and slots know pictures without a word about them: a prompt with
another picture at the same place is another prompt.

A decoder whose positions turn on three axes takes a third input, `image_shifts`, (3, batch, tokens) int64: how far the
position of a token on each axis lies from its place in the text. A picture's rows have the time of its begin, and rows
and columns counted from there; the text goes on behind the largest of them. Without pictures all shifts are 0.

Source: Wang et al., 2024, arXiv:2409.12191 (M-RoPE).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

IMAGE_ROWS, IMAGE_PLACES, IMAGE_SHIFTS = "image_rows", "image_places", "image_shifts"
AXES = 3
"""Time, row and column: the axes of `image_shifts`."""
WITH_IMAGES = "embedded_with_images"
"""The value of a graph in which rows of pictures stand among those of tokens."""
_FIRST = 1 << 62
"""Numbers from here on are rows of pictures; a vocabulary has some hundred thousand tokens."""
_ROW_BITS = 20
"""Rows of one picture at most: 2^20."""
_NUMBERS = count()
"""A picture that was forgotten and comes again has another number, so that no number ever means two pictures."""


@dataclass(frozen=True, eq=False)
class EncodedPicture:
    """An encoder's output for one picture."""

    rows: NDArray[np.float32]
    """(rows, width), as the decoder's embedding is wide."""
    stands_for: int
    """The token of the vocabulary at whose places they stand."""
    grid: tuple[int, int] = (0, 0)
    """Lines and columns in which the rows lie, for positions on three axes; 0 and 0: they lie in none."""
    number: int = field(default_factory=lambda: next(_NUMBERS))
    """Its own in this process."""

    def tokens(self) -> list[ImageToken]:
        """Return a token for each row, in their order."""
        first = _FIRST | self.number << _ROW_BITS
        return [ImageToken.of(first + row, self) for row in range(len(self.rows))]


class ImageToken(int):
    """A row of a picture as a token of a text; equal to the same row of the same picture alone."""

    picture: EncodedPicture

    @classmethod
    def of(cls, number: int, picture: EncodedPicture) -> ImageToken:
        """Return the token of this number."""
        made = cls(number)
        made.picture = picture
        return made

    @property
    def row(self) -> int:
        """Its place among the rows of its picture."""
        return self & ((1 << _ROW_BITS) - 1)

    @property
    def span(self) -> int:
        """Positions that its picture takes on the longer axis; 0: its rows lie in no grid."""
        return max(self.picture.grid)


def known_token(token: int) -> int:
    """Return the token of the vocabulary that stands in the text: of a picture's row its mark."""
    return token.picture.stands_for if isinstance(token, ImageToken) else token


def numbers_of(tokens: Sequence[int]) -> list[int]:
    """Return tokens as plain numbers, which tell pictures apart and hold none of their rows in memory."""
    return [int(token) for token in tokens]


class TextShifts:
    """How far positions of a text lie from its places, as `image_shifts` tells it, for as much of it as is held."""

    def __init__(self, capacity: int) -> None:
        """Begin a text of at most `capacity` tokens."""
        self._ahead = np.zeros(capacity + 2, np.int64)
        """Position behind each count of tokens, less the count; a further entry is for the copy in a pair."""

    def of(self, past: int, tokens: Sequence[int]) -> NDArray[np.int64]:
        """Return (3, 1, tokens) shifts of tokens behind the first `past`, and remember where the text goes on."""
        end = past + len(tokens)
        if not any(isinstance(token, ImageToken) for token in tokens):
            self._ahead[past + 1 : end + 1] = self._ahead[past]
            return np.full((AXES, 1, len(tokens)), self._ahead[past], np.int64)
        shifts = np.empty((AXES, 1, len(tokens)), np.int64)
        for place, token in enumerate(tokens, past):
            start = int(self._ahead[place]) + place
            if not isinstance(token, ImageToken) or not token.span:
                shifts[:, 0, place - past], after = start - place, start + 1
            else:
                begun = start - token.span if token.row else start  # behind a row of it the whole picture is counted
                line, column = divmod(token.row, token.picture.grid[1])
                shifts[:, 0, place - past] = (begun - place, begun + line - place, begun + column - place)
                after = begun + token.span
            self._ahead[place + 1] = after - place - 1
        return shifts

    def forget(self, past: int) -> None:
        """Take the first `past` tokens for text alone."""
        self._ahead[: past + 1] = 0

    def copy(self, other: TextShifts, past: int) -> None:
        """Take over the first `past` tokens of another text."""
        self._ahead[: past + 1] = other._ahead[: past + 1]


class ImageInputs:
    """The inputs of a decoder that sees, beside its tokens."""

    def __init__(self, width: int, *, shifts: bool = False) -> None:
        """Prepare the inputs of texts without pictures.

        Args:
            width: Numbers of a row.
            shifts: Whether positions turn on three axes.
        """
        self.shifts = shifts
        """Whether positions turn on three axes."""
        self.without: Mapping[str, NDArray[Any]] = {
            IMAGE_ROWS: np.zeros((1, width), np.float32),
            IMAGE_PLACES: np.full((1, 1), -1, np.int64),
            **({IMAGE_SHIFTS: np.zeros((AXES, 1, 1), np.int64)} if shifts else {}),
        }
        """Inputs of a run that has no picture, in a text without one."""

    @classmethod
    def among(cls, inputs: Sequence[Any]) -> ImageInputs | None:
        """Return those among the inputs of a model; None: it sees nothing."""
        rows = next((input_ for input_ in inputs if input_.name == IMAGE_ROWS), None)
        shifts = any(input_.name == IMAGE_SHIFTS for input_ in inputs)
        return None if rows is None else cls(int(rows.shape[-1]), shifts=shifts)

    @classmethod
    def of(cls, session: Any) -> ImageInputs | None:
        """Return those of an `InferenceSession`; None: its model sees nothing."""
        return cls.among(session.get_inputs())

    def text(self, capacity: int) -> TextShifts | None:
        """Return what follows the positions of a text of so many tokens; None: they are its places."""
        return TextShifts(capacity) if self.shifts else None

    def feeds(
        self, tokens: Sequence[int], past: int = 0, text: TextShifts | None = None
    ) -> tuple[list[int], Mapping[str, NDArray[Any]]]:
        """Return the tokens of one text as the vocabulary knows them, and the inputs of its pictures.

        Args:
            tokens: That come next.
            past: Tokens before them.
            text: Follows the positions, where they turn on three axes.
        """
        shifts = {} if text is None else {IMAGE_SHIFTS: text.of(past, tokens)}
        if not any(isinstance(token, ImageToken) for token in tokens):
            return list(tokens), {**self.without, **shifts}
        first, blocks, total = dict[int, int](), list[NDArray[np.float32]](), 0
        places = np.full((1, len(tokens)), -1, np.int64)
        for i, token in enumerate(tokens):
            if not isinstance(token, ImageToken):
                continue
            picture = token.picture
            if picture.number not in first:
                first[picture.number] = total
                blocks.append(picture.rows)
                total += len(picture.rows)
            places[0, i] = first[picture.number] + token.row
        rows = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
        return [known_token(token) for token in tokens], {IMAGE_ROWS: rows, IMAGE_PLACES: places, **shifts}
