"""Sides of boxes as distributions over distances: each is the mean of 0, 1, ... bins - 1 under the softmax of its bins.

Source: Generalized Focal Loss (arXiv 2006.04388), equation 6.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.tensors import ints
from edgeopt.recipes.heads._candidates import Array, softmax
from edgeopt.recipes.heads._rows import SIDES, Rows


def distances(raw: Array, bins: int) -> Array:
    """Return (n, 4) distances to left, top, right and bottom, in cells, of (n, 4 * bins); one bin is the distance."""
    if bins == 1:
        return raw
    shares = softmax(raw.reshape(-1, bins))
    return np.asarray(shares @ np.arange(bins, dtype=np.float32), np.float32).reshape(-1, 4)


def write_boxes(
    rows: Rows, sides: str, bins: int, kept: str, middles: NDArray[np.float32], strides: NDArray[np.float32]
) -> str:
    """Return corners of the cells that are kept, whose sides are distributions, (n, 4 * bins)."""
    nodes = rows.nodes
    if bins > 1:
        shares = nodes("Softmax", nodes("Reshape", sides, ints(-1, bins)), axis=1)
        mean = nodes("MatMul", shares, np.arange(bins, dtype=np.float32).reshape(-1, 1))
        sides = nodes("Reshape", mean, ints(-1, SIDES))
    return rows.around(nodes("Gather", middles, kept, axis=0), sides, strides, kept)
