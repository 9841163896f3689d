"""A matrix as its checkpoint stores it, in the blocks of ONNX Runtime: the integers are kept, and nothing is rounded.

A file's weight is scale * integer + low in floats of 16 bits or products of two such numbers, which 32 bits hold
exactly. Blocks of `MatMulNBits` have whole zeros. Where `low` is no multiple of the scale, the nearest whole zero is
taken and the rest is a number of its own for each block, which a product adds by the sums of its inputs' blocks.

Experts of a mixture are read by one op a layer (`QMoE`): all have blocks of one length, integers of as many bits, and
inputs in the same order. Shorter blocks and integers of 8 bits hold what longer ones and 4 bits do, number by number.
What cannot be stored so is in floats.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import Note, NoteKind
from edgeopt.export.decoder.tensors_file import NamedTensors
from edgeopt.steps.convert.blocks import Blocks

MOST_BLOCK, LEAST_BLOCK = 256, 16
"""Weights in a block that the engine's kernels take."""
_MOST_TOLD = 80
_MOST_ZERO = 31
"""Largest zero beside a low: an integer of 5 bits less it, times a scale of 19, fits in 32-bit floats exactly."""


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A matrix of (outputs, inputs): real = scale * (integer - zero) + low."""

    blocks: Blocks
    inputs: int
    low: NDArray[np.float32] | None = None
    """(outputs, blocks): added to every weight of a block; None: nothing."""
    order: NDArray[np.int64] | None = None
    """(inputs,): the input that stands at each place of the blocks; None: as they come."""

    @property
    def outputs(self) -> int:
        """Rows."""
        return len(self.blocks.integers)

    def real(self) -> NDArray[np.float32]:
        """Return the (outputs, inputs) numbers that it stands for, in the order of the inputs."""
        made = self.blocks.real(self.inputs)
        if self.low is not None:
            made += np.repeat(self.low, self.blocks.block, axis=1)[:, : self.inputs]
        if self.order is not None:
            placed = np.empty_like(made)
            placed[:, self.order] = made
            made = placed
        return made

    def rows(self, index: NDArray[np.int64]) -> PackedMatrix:
        """Return the matrix with its rows in another order."""
        blocks = self.blocks
        zero = None if blocks.zero is None else blocks.zero[index]
        low = None if self.low is None else self.low[index]
        return replace(self, blocks=Blocks(blocks.integers[index], blocks.scale[index], zero, blocks.bits), low=low)


@runtime_checkable
class PackedTensors(NamedTensors, Protocol):
    """Tensors of which some are stored in blocks of integers."""

    @property
    def has_blocks(self) -> bool:
        """Whether any matrix is."""
        ...

    def packed(self, name: str, shape: tuple[int, ...]) -> PackedMatrix | None:
        """Return a matrix as it is stored; None: it is read in floats."""
        ...


def packed_of(weights: NamedTensors, name: str, shape: tuple[int, ...]) -> PackedMatrix | None:
    """Return a matrix as its checkpoint stores it; None: it holds floats.

    Args:
        weights: Of the checkpoint.
        name: As Hugging Face has it.
        shape: That it must have.
    """
    return weights.packed(name, shape) if isinstance(weights, PackedTensors) else None


def keeps_halves(weights: NamedTensors) -> bool:
    """Return whether floats stay in 16 bits too: beside blocks they would be most of the file."""
    return isinstance(weights, PackedTensors) and weights.has_blocks


def side_by_side(parts: Sequence[PackedMatrix | None]) -> PackedMatrix | None:
    """Return matrices of the same inputs as a single one; None where they are stored in different ways."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts) or len({_way(part) for part in known}) != 1:
        return None
    blocks = [part.blocks for part in known]
    zeros = [block.zero for block in blocks if block.zero is not None]
    lows = [part.low for part in known if part.low is not None]
    joined = Blocks(
        np.concatenate([block.integers for block in blocks]),
        np.concatenate([block.scale for block in blocks]),
        np.concatenate(zeros) if zeros else None,
        blocks[0].bits,
    )
    return PackedMatrix(joined, known[0].inputs, np.concatenate(lows) if lows else None, known[0].order)


def _way(part: PackedMatrix) -> tuple[object, ...]:
    blocks, order = part.blocks, part.order
    stored = blocks.bits, blocks.block, blocks.zero is None, part.low is None
    return (*stored, part.inputs, b"" if order is None else order.tobytes())


def with_low(
    integers: NDArray[np.uint8], scale: NDArray[np.float32], low: NDArray[np.float32], bits: int, inputs: int
) -> PackedMatrix:
    """Return the matrix scale * integer + low, its zeros as near to `low` as whole ones are.

    With zeros near to what the weights are, an engine that rounds activations errs by the weights, not by their
    distance from the lowest. A block whose rest 32 bits would round keeps zero 0 and the whole `low`.

    Args:
        integers: (outputs, blocks, block).
        scale: (outputs, blocks); times 31 it fits in 32 bits exactly, as does `low`.
        low: (outputs, blocks).
        bits: Of each integer: 4 or 8.
        inputs: Of the matrix.
    """
    wide, offset = scale.astype(np.float64), low.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        nearest = np.rint(-offset / wide)
    zero = np.clip(np.nan_to_num(nearest, nan=0.0, posinf=0.0, neginf=0.0), 0, min((1 << bits) - 1, _MOST_ZERO))
    rest = offset + zero * wide
    kept = rest.astype(np.float32)
    is_exact = kept.astype(np.float64) == rest
    zero, kept = np.where(is_exact, zero, 0).astype(np.uint8), np.where(is_exact, kept, low)
    return PackedMatrix(Blocks(integers, scale, zero, bits), inputs, kept if kept.any() else None)


def grouped(
    integers: NDArray[np.uint8], scale: NDArray[np.float32], zero: NDArray[np.uint8] | None, bits: int, group: int
) -> PackedMatrix | None:
    """Return a matrix whose groups of inputs share a scale, cut in blocks that kernels take.

    Args:
        integers: (outputs, inputs), neighbours of a group beside each other.
        scale: (outputs, groups).
        zero: (outputs, groups); None: half of the range.
        bits: 4 or 8.
        group: Inputs of a group; the last one may have fewer.

    Returns:
        None where a group holds no whole number of blocks, as 24 inputs would.
    """
    outputs, inputs = integers.shape
    block = min(group & -group, MOST_BLOCK)
    if block < LEAST_BLOCK:
        if group < inputs:
            return None
        block = 128  # one group for all inputs: any length does
    count = -(-inputs // block)
    filled = np.zeros((outputs, count * block), np.uint8)
    filled[:, :inputs] = integers
    if zero is None:
        filled[:, inputs:] = 1 << (bits - 1)
    of_block = np.minimum(np.arange(count) * block // group, scale.shape[1] - 1)
    zeros = None if zero is None else np.ascontiguousarray(zero[:, of_block])
    blocks = Blocks(filled.reshape(outputs, count, block), np.ascontiguousarray(scale[:, of_block]), zeros, bits)
    return PackedMatrix(blocks, inputs)


def kept_notes(kept: Mapping[str, Collection[str]], read: Mapping[str, Collection[str]]) -> tuple[Note, ...]:
    """Return what became of the matrices of a checkpoint.

    Args:
        kept: Names of those whose integers and scales are the file's own, by their type.
        read: Names of those that were read as floats, to be compared with or because nothing else was possible.
    """
    every = {name for names in kept.values() for name in names}
    floats = {kind: {*names} - every for kind, names in read.items()}
    widened = {kind: names for kind, names in floats.items() if names}
    notes = list[Note]()
    if kept:
        text = f"matrices are stored as in the checkpoint, bit for bit: {_counts(kept)}"
        notes.append(Note(NoteKind.INFO, text))
    if widened:
        names = sorted(name for names in widened.values() for name in names)
        text = f"matrices that are not kept in blocks become floats: {_counts(widened)}, {names[0][:_MOST_TOLD]}"
        notes.append(Note(NoteKind.WARNING, text + (" and others" if len(names) > 1 else "")))
    return tuple(notes)


def _counts(names: Mapping[str, Collection[str]]) -> str:
    return ", ".join(f"{len(names[kind])} in {kind}" for kind in sorted(names))


@dataclass(frozen=True, slots=True)
class PackedExperts:
    """Matrices of the experts of a layer, one of each for every expert."""

    up: tuple[PackedMatrix, ...]
    """(2 * inner, hidden) each: rows of gate and up in turns."""
    down: tuple[PackedMatrix, ...]
    """(hidden, inner) each."""

    @property
    def bits(self) -> int:
        """Bits of an integer."""
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
    shapes = {gate: (inner, hidden), up: (inner, hidden), down: (hidden, inner)}
    every = list[dict[str, PackedMatrix]]()
    for i in range(experts):
        stored = {
            name: packed_of(weights, f"{place}.experts.{i}.{name}.weight", shape) for name, shape in shapes.items()
        }
        matrices = {name: matrix for name, matrix in stored.items() if matrix is not None and _is_plain(matrix)}
        if len(matrices) < len(shapes):
            return None
        every.append(matrices)
    blocks = [matrix.blocks for matrices in every for matrix in matrices.values()]
    bits, block = max(each.bits for each in blocks), min(each.block for each in blocks)
    if any(matrix.inputs < 2 * block for matrices in every for matrix in matrices.values()):
        return None
    turns = np.arange(2 * inner).reshape(2, inner).T.ravel()  # a row of gate, then one of up
    ups, downs = list[PackedMatrix](), list[PackedMatrix]()
    for matrices in every:
        both = side_by_side([_fitted(matrices[name], bits, block) for name in (gate, up)])
        if both is None:
            return None
        ups.append(both.rows(turns))
        downs.append(_fitted(matrices[down], bits, block))
    return PackedExperts(tuple(ups), tuple(downs)) if _is_alike(ups) and _is_alike(downs) else None


def _fitted(matrix: PackedMatrix, bits: int, block: int) -> PackedMatrix:
    """Return the same numbers in integers of so many bits and blocks of so many weights, both a factor of its own."""
    blocks = matrix.blocks
    if (blocks.bits, blocks.block) == (bits, block):
        return matrix
    more = np.uint8((1 << bits >> 1) - (1 << blocks.bits >> 1))  # half of the one range to half of the other
    times, outputs = blocks.block // block, len(blocks.integers)
    integers = (blocks.integers + more).reshape(outputs, -1, block)
    zero = None if blocks.zero is None else np.repeat(blocks.zero + more, times, axis=1)
    return replace(matrix, blocks=Blocks(integers, np.repeat(blocks.scale, times, axis=1), zero, bits))


def _is_plain(matrix: PackedMatrix) -> bool:
    """Return whether `QMoE` reads a matrix: its rows are whole blocks, whose zeros are whole numbers."""
    return matrix.inputs % matrix.blocks.block == 0 and matrix.low is None and matrix.order is None


def _is_alike(matrices: Sequence[PackedMatrix]) -> bool:
    return len({matrix.blocks.zero is None for matrix in matrices}) == 1
