"""Rows of pictures in a text: an encoder's output for a picture stands where tokens of the prompt do.

A decoder that sees takes two inputs beside its tokens: `image_rows`, (rows, width) float32, the encoder's rows of the
pictures of a run, and `image_places`, (batch, tokens) int64, the row that stands in place of each token, -1 where its
own embedding does. A text without pictures gives one row that nobody reads, and the place -1 for all tokens.

A row of a picture is a token of the text like others: a number beyond every vocabulary that is the same for the same
row of the same picture alone. So caches, prefixes and slots know pictures without a word about them: a prompt with
another picture at the same place is another prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

IMAGE_ROWS, IMAGE_PLACES = "image_rows", "image_places"
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


def known_token(token: int) -> int:
    """Return the token of the vocabulary that stands in the text: of a picture's row its mark."""
    return token.picture.stands_for if isinstance(token, ImageToken) else token


def numbers_of(tokens: Sequence[int]) -> list[int]:
    """Return tokens as plain numbers, which tell pictures apart and hold none of their rows in memory."""
    return [int(token) for token in tokens]


class ImageInputs:
    """The two inputs of a decoder that sees."""

    def __init__(self, width: int) -> None:
        """Prepare the inputs of texts without pictures; `width` is that of a row."""
        self.without: Mapping[str, NDArray[Any]] = {
            IMAGE_ROWS: np.zeros((1, width), np.float32),
            IMAGE_PLACES: np.full((1, 1), -1, np.int64),
        }
        """Inputs of a run that has no picture."""

    @classmethod
    def of(cls, session: Any) -> ImageInputs | None:
        """Return those of an `InferenceSession`; None: its model sees nothing."""
        rows = next((input_ for input_ in session.get_inputs() if input_.name == IMAGE_ROWS), None)
        return None if rows is None else cls(int(rows.shape[-1]))

    def feeds(self, tokens: Sequence[int]) -> tuple[list[int], Mapping[str, NDArray[Any]]]:
        """Return the tokens of one text as the vocabulary knows them, and the inputs of its pictures."""
        if not any(isinstance(token, ImageToken) for token in tokens):
            return list(tokens), self.without
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
        return [known_token(token) for token in tokens], {IMAGE_ROWS: rows, IMAGE_PLACES: places}
