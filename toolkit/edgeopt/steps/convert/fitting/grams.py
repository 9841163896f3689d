"""Sums of what matrices of experts read of a text, and rounding with them.

An expert reads few tokens, those that a router sends to it: its matrices are fitted to the float model's, one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from edgeopt.steps.convert.blocks import Blocks, Rounding, joined, k_quant, to_nearest
from edgeopt.steps.convert.fitting.fitted_blocks import MOST_TOGETHER, Curvature, fit_blocks

_GRAIN = 128
"""Parts begin at multiples of the longest block."""


class Gram:
    """X^T X of what a matrix is multiplied by, in parts of about 1,024 neighbouring inputs."""

    def __init__(self, inputs: int) -> None:
        """Begin at zero.

        Args:
            inputs: Of the matrix.
        """
        parts = -(-inputs // MOST_TOGETHER)
        limits = [inputs * i // parts // _GRAIN * _GRAIN for i in range(parts)]
        self.inputs = inputs
        self.bounds: Sequence[tuple[int, int]] = list(zip(limits, [*limits[1:], inputs], strict=True))
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
    """Return what fits a node's matrix to its inputs; where none are known, or in 8 bits, each block is rounded alone.

    Args:
        grams: By the node's name.
    """
    curvatures = dict[tuple[int, int], list[Curvature]]()

    def rounded(node: str, columns: NDArray[np.float32], bits: int, block: int) -> Blocks:
        if bits == 8:
            return to_nearest(node, columns, bits, block)
        if node not in grams:
            return k_quant(node, columns, bits, block)
        gram = grams[node]
        key = id(gram), block
        if key not in curvatures:
            curvatures.clear()  # experts of one layer share it, and come one after the other
            curvatures[key] = [Curvature.of(np.asarray(part), block) for part in gram.parts]
        made = [
            fit_blocks(np.ascontiguousarray(columns[:, start:stop]), curvature, bits, block)
            for curvature, (start, stop) in zip(curvatures[key], gram.bounds, strict=True)
        ]
        return joined(made, axis=1)

    return rounded
