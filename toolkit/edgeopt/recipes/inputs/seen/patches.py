"""A picture as small patches in a grid of its own proportions, as the encoders of Qwen-VL see it.

Patches come in squares of `merge` x `merge`, each of which becomes one row of the text, square by square in lines.

Source: transformers, Qwen2VLImageProcessor (Pillow's side) and get_vision_window_index; Wang et al., 2024,
arXiv:2409.12191; Bai et al., 2025, arXiv:2502.13923 (windows).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.tensors import Frame, Tensors
from edgeopt.recipes.inputs.pillow_resize import resized
from edgeopt.recipes.inputs.seen.table import ImageTable, with_levels

PIXELS, PLACES = "pixel_values", "places"
"""Inputs of each encoder: the numbers of each patch, (patches, 3 * side * side), its line and column, (patches, 2).
"""
WINDOWS, IN_WINDOWS = "windows", "in_windows"
"""Inputs of one with windows: the patches of each, -1 where it has fewer, (windows, most); and the place of each patch
among those, (patches,)."""
TAPS, SHARES = "position_taps", "position_shares"
"""Inputs of one with learned positions: four places of its table for each patch, their shares, (patches, 4) each."""
MOST_RATIO = 200
"""Times that the longer side of a picture may have the shorter one."""


def scaled_size(height: int, width: int, table: ImageTable) -> tuple[int, int]:
    """Return height and width to which a picture is scaled: whole squares, and as many pixels as are allowed.

    Raises:
        ValueError: If it is far longer in one direction than in the other.
    """
    if max(height, width) > MOST_RATIO * min(height, width):
        raise ValueError(
            f"a picture of {width}x{height} pixels has one side more than {MOST_RATIO} times as long as the other"
        )
    factor = table.factor
    lines, columns = round(height / factor), round(width / factor)
    if lines * columns * factor**2 > table.most_pixels:
        beta = math.sqrt(height * width / table.most_pixels)
        lines, columns = (max(1, math.floor(side / beta / factor)) for side in (height, width))
    elif lines * columns * factor**2 < table.least_pixels:
        beta = math.sqrt(table.least_pixels / (height * width))
        lines, columns = (math.ceil(side * beta / factor) for side in (height, width))
    return lines * factor, columns * factor


def row_grid(height: int, width: int, table: ImageTable) -> tuple[int, int]:
    """Return the lines and columns of the rows that a picture becomes; raises as `scaled_size`."""
    height, width = scaled_size(height, width, table)
    return height // table.factor, width // table.factor


def patches_of(frame: Frame, table: ImageTable) -> Tensors:
    """Return the inputs of the encoder for a picture.

    Args:
        frame: (height, width, 3) BGR.
        table: Of the model.

    Raises:
        ValueError: As `scaled_size`.
    """
    height, width = scaled_size(frame.shape[0], frame.shape[1], table)
    return feeds_of(resized(np.ascontiguousarray(frame[:, :, ::-1]), height, width, table.resample), table)


def feeds_of(pixels: NDArray[np.uint8], table: ImageTable) -> Tensors:
    """Return the inputs of the encoder for a picture of whole squares: (height, width, 3) RGB."""
    side, merge = table.patch, table.merge
    lines, columns = pixels.shape[0] // table.factor, pixels.shape[1] // table.factor
    planes = with_levels(pixels, table).reshape(3, lines, merge, side, columns, merge, side)
    patches = planes.transpose(1, 4, 2, 5, 0, 3, 6).reshape(lines * columns * merge**2, 3 * side * side)
    places = patch_places(lines, columns, merge)
    feeds: dict[str, NDArray[np.float32] | NDArray[np.int64]] = {PIXELS: patches, PLACES: places}
    if table.window:
        feeds[WINDOWS], feeds[IN_WINDOWS] = windows_of(places, table.window)
    if table.positions:
        feeds[TAPS], feeds[SHARES] = positions_of(places, table.positions)
    return feeds


def patch_places(lines: int, columns: int, merge: int) -> NDArray[np.int64]:
    """Return (patches, 2): line and column of each patch, in the order of patches, of a grid of so many squares."""
    line, column = np.indices((lines * merge, columns * merge))
    order = (lines, merge, columns, merge)
    flat = [array.reshape(order).transpose(0, 2, 1, 3).ravel() for array in (line, column)]
    return np.stack(flat, axis=-1).astype(np.int64)


def windows_of(places: NDArray[np.int64], side: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the patches of each window, -1 where it has fewer, and the place of each patch among those.

    Args:
        places: (patches, 2) line and column of each patch.
        side: Patches of a side of a window.
    """
    line, column = (places // side).T
    number = line * (column.max() + 1) + column
    order = np.argsort(number, kind="stable")
    counts = np.bincount(number)
    rank = np.arange(len(places)) - np.repeat(np.cumsum(counts) - counts, counts)
    most = side * side
    in_windows = np.empty(len(places), np.int64)
    in_windows[order] = number[order] * most + rank
    windows = np.full(len(counts) * most, -1, np.int64)
    windows[in_windows] = np.arange(len(places))
    return windows.reshape(-1, most), in_windows


def positions_of(places: NDArray[np.int64], side: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return four places of a square table between which each patch lies, and their shares, (patches, 4) each.

    The outermost patches lie on the outermost places of the table.

    Args:
        places: (patches, 2) line and column of each patch.
        side: Lines and columns of the table.
    """
    last = np.maximum(places.max(axis=0), 1)
    exact = places.astype(np.float32) * np.float32(side - 1) / last.astype(np.float32)
    before = np.floor(exact)
    behind = exact - before
    taps = np.minimum(before.astype(np.int64)[:, :, None] + (0, 1), side - 1)  # (patches, 2, 2)
    shares = np.stack([1 - behind, behind], axis=-1)
    flat = (taps[:, 0, :, None] * side + taps[:, 1, None, :]).reshape(-1, 4)
    return flat, (shares[:, 0, :, None] * shares[:, 1, None, :]).reshape(-1, 4).astype(np.float32)
