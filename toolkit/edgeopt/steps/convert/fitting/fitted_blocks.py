"""Fit blocks of integers to a matrix so that its products with the inputs of a text change least.

With W the (inputs, outputs) matrix that is wanted, Q that of the blocks, and H = X^T X + d I of the inputs' rows X, the
loss of each column is (w - q)^T H (w - q). Three parts make it small:

1. GPTQ: inputs are rounded in turn, and those that follow make up for the error of each, by the factor U of
   H^-1 = U^T U: w[j+1:] -= (w[j] - q[j]) / U[j, j] * U[j, j+1:]. Blocks are taken in the order of how strong their
   inputs are, inputs of a block likewise. The grid of a block, scale and zero, is searched for when its turn comes, on
   what the weights are by then, each weighed by 1 / U[j, j]^2: what an error costs when the rest made up for it.
2. Scales by least squares: with the integers fixed, q = sum_b s_b c_b, and all scales of a column solve A s = r with
   A[b, b'] = c_b^T H c_b' and r[b] = c_b^T H w.
3. Coordinate descent: each integer moves to where the loss is least with all others fixed, q_k - (H (q - w))_k / H_kk
   rounded to its grid.

Source: Frantar et al., GPTQ, ICLR 2023, equations 2 and 3. Scales: Chee et al., QuIP, NeurIPS 2023, has the loss; the
normal equations follow from it. Descent: Nair and Suggala, CDQuant, 2024.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeopt.steps.convert.blocks import Blocks

Matrix = NDArray[np.float32]

DAMPING = 0.3
"""Addition to the diagonal of X^T X, as a share of its mean. With little text (3,000 tokens) the next token's
divergence is 13e-3 nats with it and 17e-3 with 0.01, the share of GPTQ's code; with much text they are alike."""
_NARROWER = np.linspace(0.8, 1.0, 5, dtype=np.float32)
"""Parts of the range of a block that a grid may cover."""
MOST_TOGETHER = 1024
"""Inputs of one part of a long column: the work grows with their third power."""
_PASSES = 2
"""Times that scales and integers are fitted to each other; a third gains nothing that is seen."""
_SMALLEST = np.float32(1e-12)
_RIDGE = 1e-6
"""Keeps the normal equations of scales solvable where a block is all zeros."""
_MOST_COLUMNS = 1024
"""Outputs that are fitted together: what a block of them takes stays in a processor's own cache."""


@dataclass(frozen=True, slots=True)
class Curvature:
    """H of the inputs of a matrix, with what rounding in turn needs of it."""

    matrix: Matrix
    """(inputs, inputs): X^T X with its diagonal raised."""
    order: NDArray[np.intp]
    """Inputs in the order in which they are rounded; those of a block are neighbours."""
    factor: Matrix
    """U in that order: upper triangle, H^-1 = U^T U."""

    @classmethod
    def of(cls, gram: Matrix, block: int, damping: float = DAMPING) -> Curvature:
        """Return it for X^T X.

        Args:
            gram: (inputs, inputs).
            block: Inputs that share a scale.
            damping: See `DAMPING`.
        """
        diagonal = np.diagonal(gram)
        added = damping * max(float(diagonal.mean()), 1e-12)
        matrix = gram + np.float32(added) * np.eye(len(gram), dtype=np.float32)
        order = _order(diagonal, block)
        inverse = np.linalg.inv(matrix[np.ix_(order, order)].astype(np.float64))
        factor = np.linalg.cholesky((inverse + inverse.T) / 2).T
        return cls(matrix, order, np.ascontiguousarray(factor, np.float32))

    def solved(self, right: Matrix) -> Matrix:
        """Return H^-1 times (inputs, outputs)."""
        made: Matrix = np.empty_like(right)
        made[self.order] = self.factor.T @ (self.factor @ right[self.order])
        return made


def fit_blocks(wanted: Matrix, curvature: Curvature, bits: int, block: int) -> Blocks:
    """Return blocks whose products with the inputs are nearest to those of a matrix.

    Args:
        wanted: (outputs, inputs).
        curvature: Of the inputs, made for such blocks.
        bits: Of each integer.
        block: Inputs that share a scale.
    """
    parts = [
        _fit(np.ascontiguousarray(wanted[start : start + _MOST_COLUMNS].T), curvature, bits, block)
        for start in range(0, len(wanted), _MOST_COLUMNS)
    ]
    integers, scale, zero = (np.concatenate(each) for each in zip(*parts, strict=True))
    return Blocks(integers, scale, zero, bits)


def _order(diagonal: Matrix, block: int) -> NDArray[np.intp]:
    starts = range(0, len(diagonal), block)
    strongest = sorted(starts, key=lambda start: -float(diagonal[start : start + block].mean()))
    return np.concatenate(
        [start + np.argsort(-diagonal[start : start + block], kind="stable") for start in strongest]
    ).astype(np.intp)


def _fit(
    wanted: Matrix, curvature: Curvature, bits: int, block: int
) -> tuple[NDArray[np.uint8], Matrix, NDArray[np.uint8]]:
    """Return (outputs, blocks, block) integers, (outputs, blocks) scales and zeros of (inputs, outputs) numbers."""
    steps, scale, zero = _rounded_in_turn(wanted, curvature, bits, block)
    inputs, outputs = wanted.shape
    for _ in range(_PASSES):
        scale = _fitted_scales(wanted, curvature.matrix, steps - _spread(zero, block, inputs), scale, block)
        _descend(wanted, curvature.matrix, steps, scale, zero, bits, block)
    filled = np.repeat(zero, block, axis=0)
    filled[:inputs] = steps
    integers = filled.T.reshape(outputs, -1, block).astype(np.uint8)
    return integers, np.ascontiguousarray(scale.T), np.ascontiguousarray(zero.T).astype(np.uint8)


def _rounded_in_turn(wanted: Matrix, curvature: Curvature, bits: int, block: int) -> tuple[Matrix, Matrix, Matrix]:
    """Return (inputs, outputs) integers, (blocks, outputs) scales and zeros, all as floats."""
    inputs, outputs = wanted.shape
    top, factor, order = np.float32((1 << bits) - 1), curvature.factor, curvature.order
    steps = np.zeros((inputs, outputs), np.float32)
    scale, zero = (np.zeros((-(-inputs // block), outputs), np.float32) for _ in range(2))
    left, start = wanted[order], 0
    while start < inputs:
        number = int(order[start]) // block
        stop = start + min(block, inputs - number * block)
        weights = (1 / np.square(np.diagonal(factor)[start:stop]))[:, None].astype(np.float32)
        scale[number], zero[number] = _grid(left[start:stop], weights, top)
        errors = np.zeros((stop - start, outputs), np.float32)
        for j in range(start, stop):
            row = np.clip(np.rint(left[j] / scale[number]) + zero[number], 0, top)
            steps[order[j]] = row
            errors[j - start] = (left[j] - (row - zero[number]) * scale[number]) / factor[j, j]
            left[j + 1 : stop] -= np.outer(factor[j, j + 1 : stop], errors[j - start])
        left[stop:] -= factor[start:stop, stop:].T @ errors
        start = stop
    return steps, scale, zero


def _grid(real: Matrix, weights: Matrix, top: np.float32) -> tuple[Matrix, Matrix]:
    """Return (outputs,) scales and zeros of a block of (inputs, outputs) numbers with the least weighted error."""
    low, high = np.minimum(real.min(axis=0), 0), np.maximum(real.max(axis=0), 0)
    best = np.ones_like(low), np.zeros_like(low)
    least = np.full_like(low, np.inf)
    for part in _NARROWER:
        scale = np.maximum((high - low) * part, _SMALLEST) / top
        zero = np.clip(np.rint(-low * part / scale), 0, top)
        steps = np.clip(np.rint(real / scale) + zero, 0, top) - zero
        weighed = weights * steps
        squares = (weighed * steps).sum(axis=0)
        scale = np.where(squares > 0, (weighed * real).sum(axis=0) / np.maximum(squares, _SMALLEST), scale)
        scale = np.where(np.abs(scale) < _SMALLEST, np.float32(1), scale).astype(np.float32)
        error = (weights * np.square(steps * scale - real)).sum(axis=0)
        is_better = error < least
        best = np.where(is_better, scale, best[0]), np.where(is_better, zero, best[1])
        least = np.minimum(error, least)
    return best


def _fitted_scales(wanted: Matrix, curvature: Matrix, steps: Matrix, scale: Matrix, block: int) -> Matrix:
    """Return the scales that lose least with these integers; those of a column where that fails stay.

    Args:
        wanted: (inputs, outputs).
        curvature: (inputs, inputs).
        steps: (inputs, outputs): integers minus zeros.
        scale: (blocks, outputs) so far.
        block: Inputs that share a scale.
    """
    count, outputs = scale.shape
    products = np.zeros((outputs, count, count), np.float64)
    for number in range(count):
        here = slice(number * block, (number + 1) * block)
        products[:, :, number] = _sums(steps * (curvature[:, here] @ steps[here]), block).T
    right = _sums(steps * (curvature @ wanted), block).T.astype(np.float64)
    sizes = np.einsum("nbb->nb", products)
    products += np.eye(count) * (_RIDGE * sizes + np.where(sizes > 0, 0, 1))[:, :, None]
    made = np.linalg.solve(products, right[..., None])[..., 0].T.astype(np.float32)
    made = np.where(np.isfinite(made) & (np.abs(made) > _SMALLEST), made, scale)
    losses = [_losses(_spread(each, block, len(steps)) * steps - wanted, curvature) for each in (made, scale)]
    kept: Matrix = np.where(losses[0] < losses[1], made, scale)
    return kept


def _descend(
    wanted: Matrix, curvature: Matrix, steps: Matrix, scale: Matrix, zero: Matrix, bits: int, block: int
) -> None:
    """Move each integer to where the loss is least with all others fixed, in place."""
    top, inputs = np.float32((1 << bits) - 1), len(steps)
    slope = curvature @ ((steps - _spread(zero, block, inputs)) * _spread(scale, block, inputs) - wanted)
    for number in range(len(scale)):
        start, stop = number * block, min((number + 1) * block, inputs)
        own, here = curvature[start:stop, start:stop], slope[start:stop].copy()
        moved = np.zeros_like(here)
        for i in range(stop - start):
            row = steps[start + i]
            made = np.clip(np.rint(row - here[i] / (own[i, i] * scale[number])), 0, top)
            moved[i] = (made - row) * scale[number]
            steps[start + i] = made
            here += np.outer(own[:, i], moved[i])
        slope += curvature[:, start:stop] @ moved


def _spread(each: Matrix, block: int, inputs: int) -> Matrix:
    """Return (inputs, outputs) of (blocks, outputs)."""
    return np.repeat(each, block, axis=0)[:inputs]


def _sums(each: Matrix, block: int) -> Matrix:
    """Return (blocks, outputs) sums of (inputs, outputs)."""
    return np.add.reduceat(each, np.arange(0, len(each), block), axis=0)


def _losses(error: Matrix, curvature: Matrix) -> Matrix:
    """Return the loss of each column."""
    array: Matrix = ((curvature @ error) * error).sum(axis=0)
    return array
