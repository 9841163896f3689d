"""Round the blocks of a matrix so that the errors of a column cancel on a text, instead of each to its nearest step.

The grids are those of rounding to nearest; inputs are rounded in turn, the strongest first, and those that follow make
up for the error of each (GPTQ with static groups). Long columns are done in parts, whose errors stay in the part.

Source: Frantar et al., GPTQ, ICLR 2023; static groups and order by the diagonal as in its code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from edgeopt.steps.convert.blocks import Blocks, Rounding, to_nearest
from edgeopt.steps.quantize.repairs.gptq import DAMPING, round_in_turn

_TOGETHER = 1 << 22
"""Weights whose errors are held at once."""
MOST_TOGETHER = 1024
"""Inputs of one part: the work grows with their third power."""


class Gram:
    """X^T X of what a matrix is multiplied by, in parts of at most 1,024 neighbouring inputs."""

    def __init__(self, inputs: int) -> None:
        """Begin at zero.

        Args:
            inputs: Of the matrix.
        """
        parts = -(-inputs // MOST_TOGETHER)
        self.bounds: Sequence[tuple[int, int]] = [
            (inputs * i // parts, inputs * (i + 1) // parts) for i in range(parts)
        ]
        self.parts = [np.zeros((stop - start, stop - start), np.float32) for start, stop in self.bounds]
        self.rows = 0

    @staticmethod
    def bytes_of(inputs: int) -> int:
        """Return the memory that it takes."""
        return 4 * inputs * min(inputs, MOST_TOGETHER)

    def add(self, rows: NDArray[np.float32]) -> None:
        """Add (rows, inputs)."""
        for part, (start, stop) in zip(self.parts, self.bounds, strict=True):
            part += rows[:, start:stop].T @ rows[:, start:stop]
        self.rows += len(rows)


def rounding_with(grams: Mapping[str, Gram]) -> Rounding:
    """Return what rounds a node's matrix with its inputs; to nearest where none are known.

    Args:
        grams: By the node's name.
    """

    def rounded(node: str, columns: NDArray[np.float32], bits: int, block: int) -> Blocks:
        nearest = to_nearest(node, columns, bits, block)
        return round_with_gram(columns, nearest, grams[node]) if node in grams else nearest

    return rounded


def round_with_gram(columns: NDArray[np.float32], grid: Blocks, gram: Gram) -> Blocks:
    """Return blocks on the same grid whose product with the inputs is nearer to that of the float matrix.

    Args:
        columns: (outputs, inputs).
        grid: Its blocks, rounded to nearest.
        gram: Of its inputs; a part of it that is no better stays as it was.
    """
    integers = grid.integers.reshape(len(columns), -1).T.copy()  # (inputs, outputs), as memory is walked
    for part, (start, stop) in zip(gram.parts, gram.bounds, strict=True):
        here, steps = slice(start, stop), _Steps(grid, start)
        made = _round_part(columns[:, here].T, steps, part)
        losses = [_loss(array, columns[:, here].T, steps, part) for array in (made, integers[here])]
        if losses[0] < losses[1]:
            integers[here] = made
    return Blocks(np.ascontiguousarray(integers.T).reshape(grid.integers.shape), grid.scale, grid.zero, grid.bits)


class _Steps:
    """The grid of each input of a part, made when it is asked for: in double precision all are copies of the matrix."""

    def __init__(self, grid: Blocks, start: int) -> None:
        self._grid, self._start = grid, start
        self.top = (1 << grid.bits) - 1

    def scale(self, row: int, outputs: slice = slice(None)) -> NDArray[np.float64]:
        return self._grid.scale[outputs, (self._start + row) // self._grid.block].astype(np.float64)

    def zero(self, row: int, outputs: slice = slice(None)) -> NDArray[np.float64] | float:
        if self._grid.zero is None:
            return float(1 << (self._grid.bits - 1))
        return self._grid.zero[outputs, (self._start + row) // self._grid.block].astype(np.float64)

    def real(self, integers: NDArray[np.uint8], outputs: slice) -> NDArray[np.float64]:
        """Return (inputs, outputs) numbers that integers of some outputs stand for."""
        rows = [(array - self.zero(row, outputs)) * self.scale(row, outputs) for row, array in enumerate(integers)]
        return np.stack(rows)


def _round_part(weight: NDArray[np.float32], steps: _Steps, gram: NDArray[np.float32]) -> NDArray[np.uint8]:
    diagonal = np.diagonal(gram).astype(np.float64)
    order = np.argsort(-diagonal, kind="stable")
    damping = DAMPING * max(float(diagonal.mean()), 1e-30)
    inverse = np.linalg.inv(gram[np.ix_(order, order)].astype(np.float64) + damping * np.eye(len(order)))
    made = np.zeros(weight.shape, np.uint8)

    def nearest(place: int, values: NDArray[np.float64]) -> NDArray[np.float64]:
        row = order[place]
        scale, zero = steps.scale(row), steps.zero(row)
        rounded = np.clip(np.rint(values / scale) + zero, 0, steps.top)
        made[row] = rounded
        return values if diagonal[row] <= 0 else (rounded - zero) * scale

    round_in_turn(weight[order].astype(np.float64), (inverse + inverse.T) / 2, nearest)
    return made


def _loss(integers: NDArray[np.uint8], weight: NDArray[np.float32], steps: _Steps, gram: NDArray[np.float32]) -> float:
    """Return the sum of squares by which products with the inputs are off, some outputs at a time."""
    total, count = 0.0, max(1, _TOGETHER // len(integers))
    for start in range(0, integers.shape[1], count):
        outputs = slice(start, start + count)
        error = steps.real(integers[:, outputs], outputs) - weight[:, outputs]
        total += float(((gram @ error) * error).sum())
    return total
