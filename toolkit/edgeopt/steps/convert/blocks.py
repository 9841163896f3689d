"""Round a matrix to blocks of integers: a scale, perhaps a zero of its own, for every few inputs of a column."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps

import numpy as np
from numpy.typing import NDArray

_STEPS = np.linspace(0.7, 1.0, 13, dtype=np.float32)
"""Parts of the largest weight that the range may cover; clipping a lone outlier costs less than a coarse grid."""
_WIDER = np.linspace(-1.0, 0.9, 20, dtype=np.float32)
"""Steps by which the range of a k-quant may be longer than the block's weights need."""
_TOGETHER = 1 << 22
"""Weights that are rounded at once."""
_SMALLEST = np.float32(1e-12)
INT8_ACTIVATIONS = 4
"""`accuracy_level` with which kernels of com.microsoft round what a matrix reads to 8 bits, in blocks like its own."""
_FEW_BITS, _LENGTHS = 4, (32, 64)
"""Where blocks are shortened, and to which lengths."""
_BLOCK_BYTES = 8
"""Bytes that ONNX Runtime reads beside the integers of a block: its scale, and its sum."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """A matrix in blocks: real = scale * (integer - zero)."""

    integers: NDArray[np.uint8]
    """(outputs, blocks, block); the last block is filled up by zeros."""
    scale: NDArray[np.float32]
    """(outputs, blocks)."""
    zero: NDArray[np.uint8] | None
    """(outputs, blocks); None: half of the range everywhere."""
    bits: int

    @property
    def block(self) -> int:
        """Inputs that share a scale."""
        return int(self.integers.shape[-1])

    @property
    def row_bytes(self) -> int:
        """Bytes of the integers of an output, packed."""
        return _packed(self.integers[:1], self.bits).size

    def packed(self) -> NDArray[np.uint8]:
        """Return (outputs, blocks, bytes): two integers of 4 bits to a byte, the first in its low half."""
        return _packed(self.integers, self.bits)

    def packed_zero(self) -> NDArray[np.uint8] | None:
        """Return (outputs, bytes) as `packed` does, each row filled up to whole bytes; None: no zeros of their own."""
        return None if self.zero is None else _packed(self.zero, self.bits)

    def real(self, inputs: int) -> NDArray[np.float32]:
        """Return the (outputs, inputs) numbers that it stands for."""
        zero = np.float32(1 << (self.bits - 1)) if self.zero is None else self.zero[..., None].astype(np.float32)
        array = (self.integers.astype(np.float32) - zero) * self.scale[..., None]
        return np.ascontiguousarray(array.reshape(len(array), -1)[:, :inputs])


def joined(parts: Sequence[Blocks], axis: int = 0) -> Blocks:
    """Return blocks of the same kind as those of one matrix.

    Args:
        parts: One or more.
        axis: 0: their outputs come one after the other; 1: their inputs.
    """
    if len(parts) == 1:
        return parts[0]
    zeros = [part.zero for part in parts if part.zero is not None]
    return Blocks(
        np.concatenate([part.integers for part in parts], axis),
        np.concatenate([part.scale for part in parts], axis),
        np.concatenate(zeros, axis) if zeros else None,
        parts[0].bits,
    )


def fitting_block(inputs: int, block: int, bits: int) -> int:
    """Return the length of the blocks of a column: `block`, or in 4 bits a shorter one that takes no more memory.

    The last block of a column is filled up, and a scale and a sum of 4 bytes each go with every block: 576 inputs take
    as much in blocks of 64 as in those of 128, and lose less.

    Args:
        inputs: Of the column.
        block: The longest; a power of two.
        bits: 4 or 8.
    """
    if bits != _FEW_BITS:
        return block
    lengths = [length for length in _LENGTHS if length < block] + [block]
    return min(lengths, key=lambda length: -(-inputs // length) * (length * bits // 8 + _BLOCK_BYTES))


Rounding = Callable[[str, NDArray[np.float32], int, int], Blocks]
"""Name of a node, its (outputs, inputs) matrix, bits, inputs that share a scale -> its blocks."""


def _by_rows(rounding: Rounding) -> Rounding:
    """Return a rounding that takes some millions of weights at a time: what it tries is several times as large."""

    def rounded(node: str, columns: NDArray[np.float32], bits: int, block: int) -> Blocks:
        count = max(1, _TOGETHER // columns.shape[1])
        parts = [rounding(node, columns[i : i + count], bits, block) for i in range(0, len(columns), count)]
        return joined(parts)

    return wraps(rounding)(rounded)


@_by_rows
def to_nearest(_node: str, columns: NDArray[np.float32], bits: int, block: int) -> Blocks:
    """Return each weight rounded to the nearest step.

    The largest weight of a block becomes the end of the range that has one step more, or a little beyond it
    where that leaves a smaller square error.

    Args:
        _node: Not asked for.
        columns: (outputs, inputs).
        bits: 4 or 8.
        block: Neighbouring inputs that share a scale.
    """
    real = in_blocks(columns, block)
    half = 1 << (bits - 1)
    largest = np.take_along_axis(real, np.abs(real).argmax(axis=-1, keepdims=True), axis=-1)
    best_scale, best_error = np.ones_like(largest), np.full_like(largest, np.inf)
    for part in _STEPS:
        scale = np.where(largest == 0, np.float32(1), largest * (part / np.float32(-half)))
        error = np.square(_steps(real, scale, half) * scale - real).sum(axis=-1, keepdims=True)
        best_scale = np.where(error < best_error, scale, best_scale)
        best_error = np.minimum(error, best_error)
    integers = (_steps(real, best_scale, half) + half).astype(np.uint8)
    return Blocks(integers, np.ascontiguousarray(best_scale[..., 0]), None, bits)


def nearest_with_zeros(node: str, columns: NDArray[np.float32], bits: int, block: int) -> Blocks:
    """Return what `to_nearest` does with its zeros written out, which stand for the same numbers.

    Blocks of 4 bits without zeros take KleidiAI's kernel on Arm, which rounds activations by rows in place of blocks.
    """
    made = to_nearest(node, columns, bits, block)
    return replace(made, zero=np.full(made.scale.shape, 1 << (bits - 1), np.uint8))


@_by_rows
def k_quant(_node: str, columns: NDArray[np.float32], bits: int, block: int) -> Blocks:
    """Return each weight rounded on a grid of its block with a zero of its own, large weights before small ones.

    Twenty ranges are tried; scale and zero of each are fitted to the integers by least squares, weighted by
    |w| + rms(block).

    Args:
        _node: Not asked for.
        columns: (outputs, inputs).
        bits: 4 or 8.
        block: Neighbouring inputs that share a scale.

    Source: make_qkx2_quants of llama.cpp, as onnxruntime.quantization has it for whole numbers as zeros.
    """
    real = in_blocks(columns, block)
    top = np.float32((1 << bits) - 1)
    weights = np.sqrt(np.square(real).mean(axis=-1, keepdims=True)) + np.abs(real)
    low, high = (np.asarray(f(real, axis=-1, keepdims=True)) for f in (np.min, np.max))
    low, high = np.minimum(low, 0), np.maximum(high, 0)
    span = np.maximum(high - low, _SMALLEST)
    sum_w, sum_x = weights.sum(axis=-1, keepdims=True), (weights * real).sum(axis=-1, keepdims=True)
    best = span / top, np.clip(np.rint(-low / span * top), 0, top)
    best_error = _error(real, weights, *best, top)
    for wider in _WIDER:
        steps = np.clip(np.rint((top + wider) / span * (real - low)), 0, top)
        weighed = weights * steps
        sum_l, sum_l2 = weighed.sum(axis=-1, keepdims=True), (weighed * steps).sum(axis=-1, keepdims=True)
        sum_xl = (weighed * real).sum(axis=-1, keepdims=True)
        below = np.maximum(sum_w * sum_l2 - np.square(sum_l), _SMALLEST)
        scale = np.maximum((sum_w * sum_xl - sum_x * sum_l) / below, _SMALLEST)
        least = (sum_l2 * sum_x - sum_l * sum_xl) / below
        made = scale, np.clip(np.rint(-least / scale), 0, top)
        error = _error(real, weights, *made, top)
        best = tuple(np.where(error < best_error, new, old) for new, old in zip(made, best, strict=True))
        best_error = np.minimum(error, best_error)
    scale, zero = best
    integers = np.clip(np.rint(real / scale) + zero, 0, top).astype(np.uint8)
    return Blocks(integers, np.ascontiguousarray(scale[..., 0]), zero[..., 0].astype(np.uint8), bits)


def in_blocks(columns: NDArray[np.float32], block: int) -> NDArray[np.float32]:
    """Return (outputs, blocks, block) of an (outputs, inputs) matrix, filled up by zeros."""
    outputs, inputs = columns.shape
    blocks = -(-inputs // block)
    filled = np.zeros((outputs, blocks * block), np.float32)
    filled[:, :inputs] = columns
    return filled.reshape(outputs, blocks, block)


def _steps(real: NDArray[np.float32], scale: NDArray[np.float32], half: int) -> NDArray[np.float32]:
    steps: NDArray[np.float32] = np.clip(np.rint(real / scale), -half, half - 1)
    return steps


def _error(
    real: NDArray[np.float32],
    weights: NDArray[np.float32],
    scale: NDArray[np.float32],
    zero: NDArray[np.float32],
    top: np.float32,
) -> NDArray[np.float32]:
    steps = np.clip(np.rint(real / scale) + zero, 0, top) - zero
    array: NDArray[np.float32] = (weights * np.square(steps * scale - real)).sum(axis=-1, keepdims=True)
    return array


def _packed(integers: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    if bits == 8:
        return integers
    if integers.shape[-1] % 2:
        integers = np.concatenate([integers, np.zeros_like(integers[..., :1])], axis=-1)
    return np.asarray(integers[..., 0::2] | integers[..., 1::2] << 4, np.uint8)
