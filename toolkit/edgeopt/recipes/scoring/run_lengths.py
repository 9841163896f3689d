"""Masks in COCO's run lengths: how many zeros, ones, zeros ... follow one another, column by column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Runs = NDArray[np.int64]
"""(n,) run lengths, the first of zeros; their sum is height times width."""


def run_lengths(mask: NDArray[np.bool_]) -> dict[str, Any]:
    """Return a mask in COCO's uncompressed run lengths, which `pycocotools.mask.frPyObjects` reads."""
    return as_coco(runs_of(mask, (0, 0), mask.shape), mask.shape)


def as_coco(runs: Runs, size: Sequence[int]) -> dict[str, Any]:
    """Return runs as COCO writes them uncompressed, `size` being height and width."""
    return {"size": list(size), "counts": runs.tolist()}


def runs_of(cutout: NDArray[np.bool_], corner: tuple[int, int], size: Sequence[int]) -> Runs:
    """Return the runs of a mask that is False outside a rectangle.

    Args:
        cutout: (rows, columns) what is inside.
        corner: Left and top of the rectangle.
        size: Height and width of the mask; the rectangle lies in it.
    """
    rows, columns = cutout.shape
    whole = size[0] * size[1]
    if not cutout.any():
        return np.array([whole], np.int64)
    closed = np.zeros((columns, rows + 1), np.int8)  # a zero behind each column: no run goes on into the next
    closed[:, :rows] = cutout.T
    steps = np.diff(closed.ravel(), prepend=0)
    begins, ends = (np.flatnonzero(steps == one) for one in (1, -1))
    begins, ends = (
        (corner[0] + column) * size[0] + corner[1] + row
        for column, row in ((begins // (rows + 1), begins % (rows + 1)), _end(ends, rows + 1))
    )
    apart = begins[1:] > ends[:-1]  # runs that touch, in columns of the mask's whole height, are one
    begins, ends = begins[np.concatenate([[True], apart])], ends[np.concatenate([apart, [True]])]
    edges = np.stack([begins, ends], axis=1).ravel()
    array = np.diff(edges, prepend=0)
    return np.asarray(array if edges[-1] == whole else np.append(array, whole - edges[-1]), np.int64)


def _end(ends: NDArray[np.intp], width: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return column and row of the place behind a run."""
    return (ends - 1) // width, (ends - 1) % width + 1


def mask_of(runs: Runs, size: Sequence[int]) -> NDArray[np.bool_]:
    """Return the mask, (height, width), of its runs."""
    ones = np.arange(len(runs)) % 2 == 1
    return np.asarray(np.repeat(ones, runs).reshape(size[1], size[0]).T)


def read_string(text: str) -> list[int] | None:
    """Return the counts of COCO's compressed string; None where it is none.

    Source: pycocotools, `rleFrString` in maskApi.c.
    """
    counts, place = list[int](), 0
    while place < len(text):
        value, digit = 0, 0
        while True:
            if place == len(text) or not 0 <= (char := ord(text[place]) - 48) < 64 or digit > 12:
                return None
            value |= (char & 0x1F) << 5 * digit
            place, digit = place + 1, digit + 1
            if not char & 0x20:
                break
        if char & 0x10:
            value -= 1 << 5 * digit
        counts.append(value + counts[-2] if len(counts) > 2 else value)
    return counts
