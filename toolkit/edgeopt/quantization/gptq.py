"""Round weights so that the errors of a row cancel on real inputs, instead of each to its nearest integer.

For one output channel w and inputs X, the loss is ||X (w - q)||^2 = (w - q)^T H (w - q) with H = X^T X.
Columns are rounded in turn; the error of each is carried on to those not yet rounded, by the Cholesky factor
U of the inverse of H: w[j+1:] -= (w[j] - q[j]) / U[j, j] * U[j, j+1:].

Source: Frantar et al., GPTQ, ICLR 2023, equations 2 and 3, with damping of 1 % of the mean diagonal.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeopt.quantization.weights import QuantizedWeight

_DAMPING = 0.01
_BLOCK = 32
"""Columns whose errors are carried on beyond the block in one product."""


def round_with_inputs(
    weight: NDArray[np.float32], inputs: NDArray[np.float32], scale: NDArray[np.float32], *, most: int = 127
) -> NDArray[np.int8]:
    """Return integers for `weight`, rounded so that inputs @ weight.T changes least.

    Args:
        weight: Shape (out, in).
        inputs: Shape (samples, in), as the integer layer sees them.
        scale: Shape (out,).
        most: Largest magnitude of an integer.
    """
    hessian = inputs.astype(np.float64).T @ inputs.astype(np.float64)
    diagonal = np.diagonal(hessian).copy()
    unseen = diagonal <= 0
    hessian[np.diag_indices_from(hessian)] += _DAMPING * max(float(diagonal.mean()), 1e-30)
    order = np.argsort(-diagonal, kind="stable")  # what matters most is rounded while others can still make up for it
    factor = np.linalg.cholesky(np.linalg.inv(hessian[np.ix_(order, order)])).T
    left = weight.astype(np.float64)[:, order]
    steps = np.empty_like(left)
    scales = scale.astype(np.float64)
    for start in range(0, left.shape[1], _BLOCK):
        stop = min(start + _BLOCK, left.shape[1])
        errors = np.zeros((left.shape[0], stop - start))
        for j in range(start, stop):
            steps[:, j] = np.clip(np.rint(left[:, j] / scales), -most, most)
            if not unseen[order[j]]:
                errors[:, j - start] = (left[:, j] - steps[:, j] * scales) / factor[j, j]
                left[:, j + 1 : stop] -= errors[:, j - start, None] * factor[j, j + 1 : stop]
        left[:, stop:] -= errors @ factor[start:stop, stop:]
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return steps[:, back].astype(np.int8)


def is_better(
    weight: NDArray[np.float32], inputs: NDArray[np.float32], new: NDArray[np.float32], old: NDArray[np.float32]
) -> bool:
    """Whether `new` changes inputs @ weight.T less than `old`."""
    return _loss(weight - new, inputs) < _loss(weight - old, inputs)


def _loss(error: NDArray[np.float32], inputs: NDArray[np.float32]) -> float:
    return float(np.square(inputs @ error.T, dtype=np.float64).sum())


def rounded(
    weight: QuantizedWeight, real: NDArray[np.float32], inputs: NDArray[np.float32], *, most: int
) -> QuantizedWeight:
    """Return a weight rounded with its inputs, or `weight` itself where that is no better.

    Args:
        weight: Of a 1x1 convolution or a matrix, rounded to nearest; output channels along its axis.
        real: The float weight.
        inputs: Shape (samples, in), as the integer layer sees them.
        most: Largest magnitude of an integer.
    """
    rows = np.moveaxis(real, weight.axis, 0).reshape(real.shape[weight.axis], -1)
    scale = np.broadcast_to(weight.scale, (rows.shape[0],))
    steps = round_with_inputs(rows, inputs, scale, most=most)
    nearest = np.moveaxis(weight.values, weight.axis, 0).reshape(rows.shape) * scale[:, None]
    if not is_better(rows, inputs, (steps * scale[:, None]).astype(np.float32), nearest):
        return weight
    shape = np.moveaxis(weight.values, weight.axis, 0).shape
    return QuantizedWeight(
        np.ascontiguousarray(np.moveaxis(steps.reshape(shape), 0, weight.axis)), weight.scale, weight.axis
    )
