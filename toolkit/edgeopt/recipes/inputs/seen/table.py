"""The table `[image]` of a recipe: how pictures of a prompt become rows of its text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from edgeopt.recipes.inputs.pillow_resize import Resample
from edgeopt.system.toml import Within

_Side = Annotated[int, Within(0, 1 << 13)]
_Pixels = Annotated[int, Within(0, 1 << 26)]
_Number = Annotated[float, Within(-1e6, 1e6)]
MOST_ROWS = 1 << 18
"""Rows of one picture: more than any context holds."""


@dataclass(frozen=True, slots=True)
class ImageTable:
    """The table `[image]` of a recipe: how pictures of a prompt become rows of its text.

    Either a picture is cut into tiles of one size (`tile`), or it keeps its proportions and is cut into any number of
    small patches (`patch`).
    """

    encoder: str = ""
    """File of the encoder with its projector, relative to the recipe; empty: the model sees no pictures."""
    token: str = ""
    """Name of the special token at whose places rows of pictures stand, such as `<image>`."""
    rows: Annotated[int, Within(0, 1 << 16)] = 0
    """Rows that a tile becomes."""
    tile: _Side = 0
    """Pixels of a side of a tile, which is square; 0: pictures are cut into patches."""
    longest: _Side = 0
    """Pixels of the longer side that a picture is scaled to before it is cut into tiles."""
    splits: bool = True
    """Whether a picture is cut into tiles, which the whole follows as one more; else the whole is the only one."""
    patch: Annotated[int, Within(0, 256)] = 0
    """Pixels of a side of a patch, which is square; 0: pictures are cut into tiles."""
    merge: Annotated[int, Within(1, 16)] = 1
    """Patches of a side of the square that becomes one row."""
    window: Annotated[int, Within(0, 256)] = 0
    """Patches of a side of the windows in which most layers of the encoder look; 0: all layers look at all patches."""
    positions: Annotated[int, Within(0, 1024)] = 0
    """Lines and columns of the encoder's table of learned positions, between which patches lie; 0: it has none."""
    least_pixels: _Pixels = 0
    """Pixels that a picture in patches is scaled up to where it has fewer."""
    most_pixels: _Pixels = 0
    """Pixels that a picture in patches is scaled down to where it has more: they bound memory and time of the encoder.
    """
    resample: Resample = Resample.LANCZOS
    """The filter with which pictures are scaled."""
    scale: _Number = 1.0
    """Factor of each number of a pixel, 0 to 255, before `mean` is subtracted."""
    mean: tuple[_Number, ...] = (0.0, 0.0, 0.0)
    """Subtracted from red, green and blue."""
    std: tuple[Annotated[float, Within(1e-6, 1e6)], ...] = (1.0, 1.0, 1.0)
    """Divisors of the differences."""
    around: str = ""
    """Text before each tile and behind the last, such as `<fake_token_around_image>`."""
    whole: str = ""
    """Text before the rows of the whole picture, such as `<global-img>`."""
    part: str = ""
    """Text before the rows of a part, such as `<row_{row}_col_{column}>`."""
    before: str = ""
    """Text before a picture in patches where no template writes it, such as `<|vision_start|>`."""
    behind: str = ""
    """Text behind a picture in patches where no template writes it, such as `<|vision_end|>`."""

    def __post_init__(self) -> None:
        if len(self.mean) != 3 or len(self.std) != 3:
            raise ValueError("mean and std of an image need 3 values")
        if not self.encoder:
            return
        if self.patch:
            self._require_patches()
        elif not (self.token and self.rows and self.tile and self.longest):
            raise ValueError("an image needs token, rows, tile and longest beside its encoder, or token and patch")
        elif self.rows * (math.ceil(self.longest / self.tile) ** 2 + 1) > MOST_ROWS:
            raise ValueError(f"an image becomes more than {MOST_ROWS} rows: take larger tiles")

    def _require_patches(self) -> None:
        if self.tile:
            raise ValueError("an image is cut into tiles or into patches: leave tile or patch out")
        if not self.token or not 0 < self.least_pixels <= self.most_pixels:
            raise ValueError("an image in patches needs token, least_pixels and most_pixels, the latter no smaller")
        if self.most_pixels < self.factor**2 or self.most_pixels // self.factor**2 > MOST_ROWS:
            raise ValueError(f"most_pixels of an image make no row, or more than {MOST_ROWS}")
        if self.window % self.merge:
            raise ValueError("window of an image is no multiple of merge")

    @property
    def sees(self) -> bool:
        """Whether the model sees pictures."""
        return bool(self.encoder)

    @property
    def factor(self) -> int:
        """Pixels of a side of the square that becomes one row, of a picture in patches."""
        return self.patch * self.merge


def with_levels(pixels: NDArray[np.uint8], table: ImageTable) -> NDArray[np.float32]:
    """Return the numbers of pixels as the encoder takes them: (3, height, width) of (height, width, 3)."""
    levels = (np.arange(256, dtype=np.float64) * table.scale).astype(np.float32)
    planes = [
        ((levels - np.float32(mean)) / np.float32(std))[pixels[:, :, channel]]
        for channel, (mean, std) in enumerate(zip(table.mean, table.std, strict=True))
    ]
    return np.stack(planes)


def made_up_pixels(height: int, width: int) -> NDArray[np.uint8]:
    """Return a picture of slopes and a grid, always the same: (height, width, 3)."""
    rows, columns = np.indices((height, width))
    planes = (rows * 255 // height, columns * 255 // width, (rows // 8 + columns // 8) % 2 * 255)
    return np.stack(planes, axis=-1).astype(np.uint8)
