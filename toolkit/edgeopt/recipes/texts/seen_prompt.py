"""A prompt with pictures: its tokens, a mark at the place of each row of a picture, and the pictures themselves."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from edgeopt.errors import InvalidFileError, UnsupportedError
from edgeopt.graph.tensors import Frame
from edgeopt.recipes.inputs.seen.table import ImageTable
from edgeopt.recipes.texts.tokens import Tokens
from edgeopt.system.text import plural

_VIDEOS = ("<|video_pad|>",)
"""Marks of videos, which no model sees here."""


@dataclass(frozen=True, eq=False)
class PromptPicture:
    """A picture of a prompt, cut when it is encoded."""

    source: Frame | bytes
    """(height, width, 3) BGR; or the bytes of a file, where many wait and are small so."""
    size: tuple[int, int]
    """Height and width."""
    digest: bytes = field(init=False)
    """SHA-256 that tells it from others."""

    def __post_init__(self) -> None:
        told = hashlib.sha256(f"{type(self.source).__name__} {self.size}".encode())
        told.update(self.source if isinstance(self.source, bytes) else np.ascontiguousarray(self.source).data)
        object.__setattr__(self, "digest", told.digest())

    @classmethod
    def of(cls, frame: Frame) -> PromptPicture:
        """Return the picture of a frame."""
        return cls(frame, (frame.shape[0], frame.shape[1]))

    def frame(self) -> Frame:
        """Return it as (height, width, 3) BGR.

        Raises:
            InvalidFileError: If its bytes do not decode.
        """
        if not isinstance(self.source, bytes):
            return self.source
        from edgeopt.recipes.inputs.pictures import decode_picture  # with OpenCV, which a model of texts does without

        frame = decode_picture(self.source)
        if frame is None:
            raise InvalidFileError("a picture does not decode", remedy="store it anew")
        return frame


class SeenPrompt(tuple[int, ...]):
    """Tokens of a prompt with pictures, whose rows the encoder is still to make."""

    pictures: tuple[PromptPicture, ...]

    @classmethod
    def of(cls, tokens: Iterable[int], pictures: Sequence[PromptPicture]) -> SeenPrompt:
        """Return the prompt of these tokens."""
        made = cls(tokens)
        made.pictures = tuple(pictures)
        return made


class ImageMarks:
    """Writes pictures into prompts, as their model learned it."""

    def __init__(self, table: ImageTable, tokenizer: Tokens) -> None:
        """Take what tells how.

        Args:
            table: Of a model that sees.
            tokenizer: Of the same model.

        Raises:
            UnsupportedError: If the tokenizer does not know the marks of pictures.
        """
        from edgeopt.recipes.inputs.seen.feeder import feeder_of  # few models see

        self.feeder, self._tokenizer = feeder_of(table), tokenizer
        self.token = tokenizer.special.get(table.token, -1)
        """The token at the place of each row."""
        sides = (max(table.tile, table.factor),) * 2
        count = tokenizer.encode(self.feeder.marks(*sides), reads_special=True).count(self.token)
        if self.token < 0 or count != self.feeder.rows(*sides):
            raise UnsupportedError(
                f"the tokenizer does not know {table.token}, at whose places pictures stand, as a special token",
                remedy="put the tokenizer.json that came with the model beside its recipe",
            )

    @property
    def mark(self) -> str:
        """The text at whose place in a prompt a picture stands."""
        return self.feeder.table.token

    def prompt(self, text: str, pictures: Sequence[PromptPicture], most: int = 0) -> SeenPrompt:
        """Return the tokens of a text in which a mark stands for each picture.

        Args:
            text: Names of special tokens in it are these tokens.
            pictures: In the order of their marks.
            most: Tokens that there is room for; 0: not known.

        Raises:
            ValueError: If there are other marks than pictures, one is not seen, or their rows do not fit.
        """
        self.require_no_video(text)
        parts = text.split(self.mark)
        if len(parts) - 1 != len(pictures):
            raise ValueError(
                f"{self.mark} stands for a picture, and the prompt has {plural(len(parts) - 1, 'such mark')} for "
                f"{plural(len(pictures), 'picture')}: write one for each, or none"
            )
        rows = sum(self.feeder.rows(*picture.size) for picture in pictures)
        if most and rows >= most:
            raise ValueError(
                f"{plural(len(pictures), 'picture')} take {rows} tokens, the context has {most}: send fewer"
            )
        written = [parts[0]]
        for picture, part in zip(pictures, parts[1:], strict=True):
            written += [self.feeder.marks(*picture.size), part]
        return SeenPrompt.of(self._tokenizer.encode("".join(written), reads_special=True), pictures)

    def require_no_video(self, text: str) -> None:
        """Raise ValueError where a text has the mark of a video."""
        for name in _VIDEOS:
            if name in text and name in self._tokenizer.special:
                raise ValueError(f"{name} stands for a video, which is not seen here: send pictures of it")

    def before(self, text: str, pictures: Sequence[PromptPicture]) -> SeenPrompt:
        """Return the tokens of pictures and of a text behind them, which is text alone: it names no special tokens."""
        first = self.prompt(self.feeder.alone * len(pictures), pictures)
        return SeenPrompt.of((*first, *self._tokenizer.encode(text)), pictures)
