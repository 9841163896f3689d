"""Where in a picture a model's answer lies: most of a picture shows nothing that is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.tensors import Tensors

CELL = 8
"""Pixels of the model's input along one side of a cell of the map."""


@runtime_checkable
class Placed(Protocol):
    """A task whose answers lie somewhere in the picture."""

    def places(self, outputs: Tensors) -> NDArray[np.float64]:
        """Return (rows, columns) how much of the answer lies in each cell of the input; see `CELL`."""
        ...


def places_of(task: object, outputs: Iterable[Tensors]) -> tuple[NDArray[np.float64], ...]:
    """Return where the answer to each picture lies; nothing where the task does not say.

    Args:
        task: Of the model.
        outputs: Of the model, picture by picture; asked for only where the task says something.
    """
    return tuple(task.places(output) for output in outputs) if isinstance(task, Placed) else ()


def spread_over(boxes: NDArray[np.float32], amounts: NDArray[np.float64], size: Sequence[int]) -> NDArray[np.float64]:
    """Return the map of amounts, each spread evenly over the cells that its box touches.

    Args:
        boxes: (n, 4) left, top, right, bottom in pixels of the input; what is not finite is left out.
        amounts: (n,).
        size: Rows and columns of the input, in pixels.
    """
    rows, columns = (-(-number // CELL) for number in size)
    array = np.zeros((rows + 1, columns + 1))
    with np.errstate(invalid="ignore", over="ignore"):
        kept = np.isfinite(boxes).all(axis=1) & np.isfinite(amounts)
        cells = np.clip(boxes[kept].astype(np.float64) / CELL, -1.0, 1.0 + max(rows, columns))
    left, top = (np.floor(cells[:, one]).astype(int) for one in (0, 1))
    right, bottom = (np.ceil(cells[:, one]).astype(int) for one in (2, 3))
    left, right = np.clip(left, 0, columns), np.clip(right, 0, columns)
    top, bottom = np.clip(top, 0, rows), np.clip(bottom, 0, rows)
    inside = (right > left) & (bottom > top)
    left, right, top, bottom = (value[inside] for value in (left, right, top, bottom))
    each = amounts[kept][inside] / ((right - left) * (bottom - top))
    for row, column, sign in ((top, left, 1), (bottom, right, 1), (top, right, -1), (bottom, left, -1)):
        np.add.at(array, (row, column), sign * each)  # corners, from which sums make the boxes
    return np.asarray(np.maximum(array.cumsum(axis=0).cumsum(axis=1)[:rows, :columns], 0.0))
