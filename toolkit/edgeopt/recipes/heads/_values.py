"""The raw values that an exporter usually writes, and those that show another convention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from edgeopt.recipes.heads._candidates import Array
from edgeopt.recipes.heads._shapes import STRIDES, count_cells
from edgeopt.recipes.recipe import Boxes, Postprocess, Scores

Values = tuple[Array, Array, Array | None]
"""Boxes (frames, n, 4), all scores, and the middle of each box's cell, (n, 2) in pixels; None: boxes have no cells."""


@dataclass(frozen=True, slots=True)
class Usual:
    """Units that a head's exporter writes."""

    boxes: Boxes
    scores: Scores
    gather: Callable[[Postprocess, Sequence[int], Sequence[Sequence[Array]]], Values]
    """(numbers, (height, width) of the input, the outputs for each of a few frames)"""
    anchors: tuple[tuple[float, ...], ...] = ()
    """Taken at the usual strides where boxes turn out to count in cells, and the recipe gives none."""
    has_logits_in_cells: bool = False
    """Whether logits alone show that the grid is not applied."""


def gather_rows(numbers: Postprocess, size: Sequence[int], frames: Sequence[Sequence[Array]]) -> Values:
    """Return the values of (1, n, 4 + scores), a box of each anchor of each cell."""
    return of_cells(np.stack([outputs[0][0] for outputs in frames]), numbers, size)


def of_cells(rows: Array, numbers: Postprocess, size: Sequence[int]) -> Values:
    """Return the values of rows (frames, n, 4 + scores)."""
    strides = numbers.strides or STRIDES
    cells = count_cells(size, strides)
    anchors = rows.shape[1] // cells if cells and rows.shape[1] % cells == 0 else 0
    return rows[..., :4], rows[..., 4:], middles(size, strides, [anchors] * len(strides)) if anchors else None


def middles(size: Sequence[int], strides: Sequence[int], anchors: Sequence[int]) -> Array:
    """Return (n, 2) x and y of each cell's middle in pixels: stride by stride, anchor by anchor, row by row."""
    parts = []
    for stride, count in zip(strides, anchors, strict=True):
        x, y = np.meshgrid(np.arange(size[1] // stride), np.arange(size[0] // stride))
        plane = (np.stack([x.ravel(), y.ravel()], axis=1) + 0.5) * stride
        parts.append(np.tile(plane, (count, 1)))
    return np.concatenate(parts).astype(np.float32)
