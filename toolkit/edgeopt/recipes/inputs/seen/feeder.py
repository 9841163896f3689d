"""How a model sees a picture: its rows, the text that stands for it, and what the encoder is given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from edgeopt.graph.tensors import Frame, Tensors
from edgeopt.recipes.inputs.seen import patches
from edgeopt.recipes.inputs.seen.table import ImageTable, made_up_pixels
from edgeopt.recipes.inputs.seen.tiles import grid_of, marks_of, pixels_of, tiles_of

_SAMPLE = (3, 5)
"""Lines and columns of a made-up picture in patches: more than one window, and one that is not full."""


@dataclass(frozen=True, slots=True)
class SampleFeeds:
    """A made-up picture, always the same, as the encoder takes it."""

    feeds: Tensors
    rows: int
    grid: tuple[int, int]


class Feeder(Protocol):
    """A model's way to see pictures."""

    table: ImageTable

    @property
    def least_rows(self) -> int:
        """The fewest rows that a picture becomes."""
        ...

    @property
    def alone(self) -> str:
        """Text of a picture that no template writes, its mark in it."""
        ...

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return the lines and columns in which rows of a picture of this size lie; 0 and 0: in none."""
        ...

    def rows(self, height: int, width: int) -> int:
        """Return how many rows a picture of this size becomes.

        Raises:
            ValueError: If the model does not see such a picture.
        """
        ...

    def marks(self, height: int, width: int) -> str:
        """Return the text that stands for the mark of such a picture, the token of each row in its place."""
        ...

    def feeds(self, frame: Frame) -> Iterator[Tensors]:
        """Yield the inputs of each run of the encoder, whose rows follow each other.

        Args:
            frame: (height, width, 3) BGR.

        Raises:
            ValueError: If the model does not see such a picture.
        """
        ...

    def sample(self) -> SampleFeeds:
        """Return a made-up picture."""
        ...


class TileFeeder:
    """Pictures are cut into tiles of one size."""

    def __init__(self, table: ImageTable) -> None:
        """Take the table of a model."""
        self.table = table

    @property
    def least_rows(self) -> int:
        """The rows of one tile."""
        return self.table.rows

    @property
    def alone(self) -> str:
        """The mark, whose text holds all that surrounds a picture."""
        return self.table.token

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return no grid: rows are tokens of a text like others."""
        del height, width
        return 0, 0

    def rows(self, height: int, width: int) -> int:
        """Return how many rows a picture of this size becomes."""
        lines, columns = grid_of(height, width, self.table)
        return self.table.rows * (1 + lines * columns)

    def marks(self, height: int, width: int) -> str:
        """Return the text that stands for the mark of such a picture, the token of each row in its place."""
        return marks_of(grid_of(height, width, self.table), self.table)

    def feeds(self, frame: Frame) -> Iterator[Tensors]:
        """Yield the inputs of each tile; the whole picture is the last."""
        for tile in tiles_of(frame, self.table).pixels:
            yield {patches.PIXELS: pixels_of(tile, self.table)}

    def sample(self) -> SampleFeeds:
        """Return a made-up tile."""
        side = self.table.tile
        tile = made_up_pixels(side, side)
        return SampleFeeds({patches.PIXELS: pixels_of(tile, self.table)}, self.table.rows, (0, 0))


class PatchFeeder:
    """Pictures keep their proportions and are cut into patches, all of which the encoder sees at once."""

    def __init__(self, table: ImageTable) -> None:
        """Take the table of a model."""
        self.table = table

    @property
    def least_rows(self) -> int:
        """The rows of a picture as small as they become."""
        return max(self.table.least_pixels // self.table.factor**2, 1)

    @property
    def alone(self) -> str:
        """The mark between those of its begin and its end, which templates write."""
        return f"{self.table.before}{self.table.token}{self.table.behind}"

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return the lines and columns in which rows of a picture of this size lie."""
        return patches.row_grid(height, width, self.table)

    def rows(self, height: int, width: int) -> int:
        """Return how many rows a picture of this size becomes; raises ValueError where one side is far too long."""
        lines, columns = self.grid(height, width)
        return lines * columns

    def marks(self, height: int, width: int) -> str:
        """Return the token of each row."""
        return self.table.token * self.rows(height, width)

    def feeds(self, frame: Frame) -> Iterator[Tensors]:
        """Yield the inputs of the one run; raises as `rows`."""
        yield patches.patches_of(frame, self.table)

    def sample(self) -> SampleFeeds:
        """Return a made-up picture of a few squares."""
        lines, columns = _SAMPLE
        pixels = made_up_pixels(lines * self.table.factor, columns * self.table.factor)
        return SampleFeeds(patches.feeds_of(pixels, self.table), lines * columns, (lines, columns))


def feeder_of(table: ImageTable) -> Feeder:
    """Return how a model with this table sees pictures."""
    return PatchFeeder(table) if table.patch else TileFeeder(table)
