"""A prompt with pictures: its tokens, a mark at the place of each row of a picture, and the pictures themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import perf_counter_ns

from edgeopt.errors import UnsupportedError
from edgeopt.graph.tensors import Frame
from edgeopt.recipes.inputs.tiles import ImageTable, Tiles, marks_of, tiles_of
from edgeopt.recipes.texts.tokens import Tokens


class SeenPrompt(tuple[int, ...]):
    """Tokens of a prompt with pictures, whose rows the encoder is still to make."""

    pictures: tuple[Tiles, ...]
    prepare_ns: int
    """What cutting the pictures took."""

    @classmethod
    def of(cls, tokens: Iterable[int], pictures: Sequence[Tiles], prepare_ns: int = 0) -> SeenPrompt:
        """Return the prompt of these tokens."""
        made = cls(tokens)
        made.pictures, made.prepare_ns = tuple(pictures), prepare_ns
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
        self.table, self._tokenizer = table, tokenizer
        self.token = tokenizer.special.get(table.token, -1)
        """The token at the place of each row."""
        count = tokenizer.encode(marks_of((0, 0), table), reads_special=True).count(self.token)
        if self.token < 0 or count != table.rows:
            raise UnsupportedError(
                f"the tokenizer does not know {table.token}, at whose places pictures stand, as a special token",
                remedy="put the tokenizer.json that came with the model beside its recipe",
            )

    @property
    def mark(self) -> str:
        """The text at whose place in a prompt a picture stands."""
        return self.table.token

    def prompt(self, text: str, frames: Sequence[Frame]) -> SeenPrompt:
        """Return the tokens of a text in which a mark stands for each picture.

        Args:
            text: Names of special tokens in it are these tokens.
            frames: (height, width, 3) BGR each, in the order of their marks.

        Raises:
            ValueError: If there are other marks than pictures.
        """
        parts = text.split(self.mark)
        if len(parts) - 1 != len(frames):
            raise ValueError(
                f"{self.mark} stands for a picture, and the prompt has it {len(parts) - 1} times beside {len(frames)} "
                "pictures: write it once for each, or leave it out"
            )
        begun_ns = perf_counter_ns()
        pictures = [tiles_of(frame, self.table) for frame in frames]
        prepare_ns = perf_counter_ns() - begun_ns
        written = [parts[0]]
        for picture, part in zip(pictures, parts[1:], strict=True):
            written += [marks_of(picture.grid, self.table), part]
        tokens = self._tokenizer.encode("".join(written), reads_special=True)
        return SeenPrompt.of(tokens, pictures, prepare_ns)

    def before(self, text: str, frames: Sequence[Frame]) -> SeenPrompt:
        """Return the tokens of pictures and of a text behind them, which is text alone: it names no special tokens."""
        first = self.prompt(self.mark * len(frames), frames)
        return SeenPrompt.of((*first, *self._tokenizer.encode(text)), first.pictures, first.prepare_ns)
