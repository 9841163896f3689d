"""Experts of a mixture as their checkpoint stores them, in the blocks of ONNX Runtime's `QMoE`: nothing is rounded.

One op reads the matrices of all experts of a layer: they have blocks of one length and integers of as many bits, and
their inputs stand in the same order. Where a checkpoint has them otherwise, experts are floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgeopt.export.decoder.packed import PackedMatrix, packed_of, side_by_side
from edgeopt.export.decoder.tensors_file import NamedTensors


@dataclass(frozen=True, slots=True)
class PackedExperts:
    """Matrices of the experts of a layer, one of each for every expert."""

    up: tuple[PackedMatrix, ...]
    """(2 * inner, hidden) each: rows of gate and up in turns."""
    down: tuple[PackedMatrix, ...]
    """(hidden, inner) each."""

    @property
    def bits(self) -> int:
        """Of each integer."""
        return self.up[0].blocks.bits

    @property
    def block(self) -> int:
        """Weights that share a scale."""
        return self.up[0].blocks.block


def packed_experts(
    weights: NamedTensors, place: str, names: tuple[str, str, str], experts: int, sides: tuple[int, int]
) -> PackedExperts | None:
    """Return the experts of a layer as they are stored; None: they are not all stored in blocks that one op reads.

    Args:
        weights: Of the decoder.
        place: What the names of the layer's experts begin with.
        names: Of gate, up and down.
        experts: How many there are.
        sides: Neurons of an expert, and numbers of a token.
    """
    (inner, hidden), (gate, up, down) = sides, names
    turns = np.arange(2 * inner).reshape(2, inner).T.ravel()  # a row of gate, then one of up
    ups, downs = list[PackedMatrix](), list[PackedMatrix]()
    for i in range(experts):
        expert = f"{place}.experts.{i}"
        both = side_by_side([packed_of(weights, f"{expert}.{name}.weight", (inner, hidden)) for name in (gate, up)])
        last = packed_of(weights, f"{expert}.{down}.weight", (hidden, inner))
        if both is None or last is None or not (_is_plain(both) and _is_plain(last)):
            return None
        ups.append(both.rows(turns))
        downs.append(last)
    ways = {(each.blocks.bits, each.blocks.block) for each in (*ups, *downs)}
    return PackedExperts(tuple(ups), tuple(downs)) if len(ways) == 1 and _is_alike(ups) and _is_alike(downs) else None


def _is_plain(matrix: PackedMatrix) -> bool:
    """Return whether `QMoE` reads a matrix: its rows are whole blocks, two or more, whose zeros are whole numbers."""
    block = matrix.blocks.block
    is_whole = matrix.inputs % block == 0 and matrix.inputs >= 2 * block
    return is_whole and matrix.low is None and matrix.order is None


def _is_alike(matrices: Sequence[PackedMatrix]) -> bool:
    return len({matrix.blocks.zero is None for matrix in matrices}) == 1
