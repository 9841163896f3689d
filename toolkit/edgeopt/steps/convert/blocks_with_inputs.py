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
        self.inputs = inputs
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
    scale = np.repeat(grid.scale.T, grid.block, axis=0).astype(np.float64)
    zero = (
        np.full_like(scale, 1 << (grid.bits - 1))
        if grid.zero is None
        else np.repeat(grid.zero.T, grid.block, axis=0).astype(np.float64)
    )
    top = (1 << grid.bits) - 1
    for part, (start, stop) in zip(gram.parts, gram.bounds, strict=True):
        here = slice(start, stop)
        made = _round_part(columns[:, here].T.astype(np.float64), scale[here], zero[here], top, part)
        real = columns[:, here].T
        errors = [(array - zero[here]) * scale[here] - real for array in (made, integers[here])]
        if _loss(errors[0], part) < _loss(errors[1], part):
            integers[here] = made
    return Blocks(np.ascontiguousarray(integers.T).reshape(grid.integers.shape), grid.scale, grid.zero, grid.bits)


def _round_part(
    weight: NDArray[np.float64],
    scale: NDArray[np.float64],
    zero: NDArray[np.float64],
    top: int,
    gram: NDArray[np.float32],
) -> NDArray[np.uint8]:
    diagonal = np.diagonal(gram).astype(np.float64)
    order = np.argsort(-diagonal, kind="stable")
    damping = DAMPING * max(float(diagonal.mean()), 1e-30)
    inverse = np.linalg.inv(gram[np.ix_(order, order)].astype(np.float64) + damping * np.eye(len(order)))
    made = np.zeros(weight.shape, np.uint8)

    def nearest(place: int, values: NDArray[np.float64]) -> NDArray[np.float64]:
        row = order[place]
        steps = np.clip(np.rint(values / scale[row]) + zero[row], 0, top)
        made[row] = steps
        return values if diagonal[row] <= 0 else (steps - zero[row]) * scale[row]

    round_in_turn(weight[order], (inverse + inverse.T) / 2, nearest)
    return made


def _loss(error: NDArray[np.float64], gram: NDArray[np.float32]) -> float:
    """Return the sum of squares by which products with the inputs are off."""
    return float(((gram @ error) * error).sum())
