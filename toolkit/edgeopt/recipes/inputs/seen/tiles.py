"""A picture as the tiles that an encoder of a language model sees: parts in full size, and the whole, small.

Source: transformers, Idefics3ImageProcessor (Pillow's side): Laurencon et al., 2024, arXiv:2408.12637.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.tensors import Frame
from edgeopt.recipes.inputs.pillow_resize import resized
from edgeopt.recipes.inputs.seen.table import ImageTable, with_levels

MOST_SIDE = 4096
"""No picture is scaled to a longer side than this, as the processor of Hugging Face has it."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """A picture cut for the encoder."""

    pixels: NDArray[np.uint8]
    """(tiles, side, side, 3) RGB; the whole picture is the last."""
    grid: tuple[int, int]
    """Rows and columns of parts; 0 and 0: the whole alone."""


def grid_of(height: int, width: int, table: ImageTable) -> tuple[int, int]:
    """Return rows and columns of the parts that a picture of this size is cut into; 0 and 0: the whole alone."""
    if not table.splits:
        return 0, 0
    height, width = _whole_tiles(*_scaled(height, width, table.longest), table.tile)
    grid = height // table.tile, width // table.tile
    return (0, 0) if grid == (1, 1) else grid


def tiles_of(frame: Frame, table: ImageTable) -> Tiles:
    """Return the tiles of a picture.

    Args:
        frame: (height, width, 3) BGR.
        table: Of the model.
    """
    side, (height, width) = table.tile, _scaled(frame.shape[0], frame.shape[1], table.longest)
    picture = resized(np.ascontiguousarray(frame[:, :, ::-1]), height, width, table.resample)
    if not table.splits:
        return Tiles(resized(picture, side, side, table.resample)[None], (0, 0))
    picture = resized(picture, *_whole_tiles(height, width, side), table.resample)
    rows, columns = picture.shape[0] // side, picture.shape[1] // side
    if (rows, columns) == (1, 1):
        return Tiles(picture[None], (0, 0))
    parts = picture.reshape(rows, side, columns, side, 3).swapaxes(1, 2).reshape(rows * columns, side, side, 3)
    return Tiles(np.concatenate([parts, resized(picture, side, side, table.resample)[None]]), (rows, columns))


def pixels_of(tile: NDArray[np.uint8], table: ImageTable) -> NDArray[np.float32]:
    """Return the encoder's input for a tile: (1, 3, side, side)."""
    return with_levels(tile, table)[None]


def marks_of(grid: tuple[int, int], table: ImageTable) -> str:
    """Return the text that stands for a picture, the token of each row in its place."""
    rows, columns = grid
    run = table.token * table.rows
    whole = f"{table.around}{table.whole}{run}{table.around}"
    if not rows:
        return whole
    lines = (
        "".join(f"{table.around}{_named(table.part, i + 1, j + 1)}{run}" for j in range(columns)) + "\n"
        for i in range(rows)
    )
    return "".join(lines) + f"\n{whole}"


def _named(part: str, row: int, column: int) -> str:
    return part.replace("{row}", str(row)).replace("{column}", str(column))


def _scaled(height: int, width: int, longest: int) -> tuple[int, int]:
    """Return height and width with a longer side of `longest` pixels, the shorter one even."""
    ratio = width / height
    if width >= height:
        width, height = longest, int(longest / ratio)
        height += height % 2
    else:
        width, height = int(longest * ratio), longest
        width += width % 2
    return _bounded(max(height, 1), max(width, 1))


def _bounded(height: int, width: int) -> tuple[int, int]:
    """Return height and width with no side above 4096 pixels."""
    ratio = width / height
    if width >= height and width > MOST_SIDE:
        width, height = MOST_SIDE, int(MOST_SIDE / ratio)
    elif height > width and height > MOST_SIDE:
        width, height = int(MOST_SIDE * ratio), MOST_SIDE
    return max(height, 1), max(width, 1)


def _whole_tiles(height: int, width: int, side: int) -> tuple[int, int]:
    """Return the sides of whole tiles in which a picture fits, nearly as it is."""
    ratio = width / height
    if width >= height:
        width = math.ceil(width / side) * side
        height = math.ceil(int(width / ratio) / side) * side
    else:
        height = math.ceil(height / side) * side
        width = math.ceil(int(height * ratio) / side) * side
    return height, width
