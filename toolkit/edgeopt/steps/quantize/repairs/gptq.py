"""Round weights so that the errors of a row cancel on real inputs, instead of each to its nearest integer.

For one output channel w and inputs X, the loss is ||X (w - q)||^2 = (w - q)^T H (w - q) with H = X^T X.
Columns are rounded in turn; the error of each is carried on to those not yet rounded, by the Cholesky factor
U of the inverse of H: w[j+1:] -= (w[j] - q[j]) / U[j, j] * U[j, j+1:].

Source: Frantar et al., GPTQ, ICLR 2023, equations 2 and 3, with damping of 1 % of the mean diagonal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.graph import attribute
from edgeopt.steps.quantize.grids.weights import MOST, MOST_OF_TWO, QuantizedWeight
from edgeopt.steps.quantize.repairs import IntegerLayer, Search, Setting, WeightRepair

DAMPING = 0.01
_MOST_COLUMNS = 2048
"""Above it the inverse of a layer's inputs takes longer than the rest of the search."""
_BLOCK = 32
"""Columns whose errors are carried on beyond the block in one product."""


def round_with_inputs(
    weight: NDArray[np.float32], inputs: NDArray[np.float32], scale: NDArray[np.float32], *, reduce_range: bool = False
) -> NDArray[np.int8]:
    """Return integers for `weight`, rounded so that inputs @ weight.T changes least.

    Args:
        weight: Shape (out, in).
        inputs: Shape (samples, in), as the integer layer sees them.
        scale: Shape (out,).
        reduce_range: Let no two neighbours of one sign add up to more than MOST_OF_TWO.
    """
    diagonal = np.square(inputs, dtype=np.float64).sum(axis=0)
    unseen = diagonal <= 0
    order = np.argsort(-diagonal, kind="stable")  # what matters most is rounded while others can still make up for it
    damping = DAMPING * max(float(diagonal.mean()), 1e-30)
    inverse = _damped_inverse(inputs.astype(np.float64)[:, order], damping)
    left = weight.T.astype(np.float64)[order]  # a column of the weight is a row here, as memory lies
    steps = np.zeros(weight.T.shape, np.int8)
    scales = scale.astype(np.float64)

    def nearest(place: int, values: NDArray[np.float64]) -> NDArray[np.float64]:
        column = order[place]
        low, high = _limits(steps, column) if reduce_range else (-MOST, MOST)
        step = np.clip(np.rint(values / scales), low, high)
        steps[column] = step
        return values if unseen[column] else step * scales

    round_in_turn(left, inverse, nearest)
    return np.ascontiguousarray(steps.T)


def round_in_turn(
    left: NDArray[np.float64],
    inverse: NDArray[np.float64],
    nearest: Callable[[int, NDArray[np.float64]], NDArray[np.float64]],
) -> None:
    """Round the inputs of a matrix one after the other; those that follow make up for the error of each, in place.

    Args:
        left: (inputs, outputs) in the order of rounding; what is left of it is of no use.
        inverse: (inputs, inputs) of the damped X^T X, in that order.
        nearest: Takes the number of an input and its (outputs,) numbers, keeps what they round to, and returns that;
            what it returns as it was is carried to no other.
    """
    factor = np.linalg.cholesky(inverse).T
    for start in range(0, len(left), _BLOCK):
        stop = min(start + _BLOCK, len(left))
        errors = np.zeros((stop - start, left.shape[1]))
        for j in range(start, stop):
            errors[j - start] = (left[j] - nearest(j, left[j])) / factor[j, j]
            left[j + 1 : stop] -= np.outer(factor[j, j + 1 : stop], errors[j - start])
        left[stop:] -= factor[start:stop, stop:].T @ errors


def _limits(steps: NDArray[np.int8], column: int) -> tuple[NDArray[np.int16], NDArray[np.int16]]:
    """Return the range of a column's integers that its neighbour leaves; one that is not rounded yet leaves all."""
    neighbour = column ^ 1
    taken = steps[neighbour].astype(np.int16) if neighbour < len(steps) else np.zeros(steps.shape[1], np.int16)
    low, high = -MOST_OF_TWO - np.minimum(taken, 0), MOST_OF_TWO - np.maximum(taken, 0)
    return np.maximum(low, -MOST), np.minimum(high, MOST)


def _damped_inverse(inputs: NDArray[np.float64], damping: float) -> NDArray[np.float64]:
    """Return the inverse of X^T X + damping I; with fewer samples than columns by way of X X^T (Woodbury)."""
    samples, columns = inputs.shape
    if samples >= columns:
        return np.asarray(np.linalg.inv(inputs.T @ inputs + damping * np.eye(columns)))
    inner = np.linalg.inv(inputs @ inputs.T + damping * np.eye(samples))
    return np.asarray((np.eye(columns) - inputs.T @ inner @ inputs) / damping)


def is_better(
    weight: NDArray[np.float32], inputs: NDArray[np.float32], new: NDArray[np.float32], old: NDArray[np.float32]
) -> bool:
    """Whether `new` changes inputs @ weight.T less than `old`."""
    return _loss(weight - new, inputs) < _loss(weight - old, inputs)


def _loss(error: NDArray[np.float32], inputs: NDArray[np.float32]) -> float:
    return float(np.square(inputs @ error.T, dtype=np.float64).sum())


def rounded(
    weight: QuantizedWeight, real: NDArray[np.float32], inputs: NDArray[np.float32], *, reduce_range: bool
) -> QuantizedWeight:
    """Return a weight rounded with its inputs, or `weight` itself where that is no better.

    Args:
        weight: Of a 1x1 convolution or a matrix, rounded to nearest; output channels along its axis.
        real: The float weight.
        inputs: Shape (samples, in), as the integer layer sees them.
        reduce_range: See `round_with_inputs`.
    """
    rows = np.moveaxis(real, weight.axis, 0).reshape(real.shape[weight.axis], -1)
    scale = np.broadcast_to(weight.scale, (rows.shape[0],))
    steps = round_with_inputs(rows, inputs, scale, reduce_range=reduce_range)
    nearest = np.moveaxis(weight.values, weight.axis, 0).reshape(rows.shape) * scale[:, None]
    if not is_better(rows, inputs, (steps * scale[:, None]).astype(np.float32), nearest):
        return weight
    shape = np.moveaxis(weight.values, weight.axis, 0).shape
    return QuantizedWeight(
        np.ascontiguousarray(np.moveaxis(steps.reshape(shape), 0, weight.axis)), weight.scale, weight.axis
    )


class Gptq(WeightRepair):
    """1x1 convolutions and matrices are rounded with their inputs."""

    order: ClassVar[int] = 10
    is_slow: ClassVar[bool] = True

    def told(self, setting: Setting) -> str:
        """Return that they are."""
        return "rounded with inputs"

    def settings(self, search: Search) -> Iterator[Setting]:
        """Yield it."""
        yield True

    def by_rule(self, search: Search) -> Setting:
        """Return True: it never makes the answer worse."""
        return True

    def repair(self, layer: IntegerLayer, setting: Setting) -> IntegerLayer:
        """Return the layer with its weight rounded, where it is a matrix of not too many columns."""
        node, weight = layer.node, layer.weight
        is_pointwise = attribute(node, "group", 1) == 1 and set(weight.shape[2:]) == {1}
        if not (weight.ndim == 2 or is_pointwise) or layer.inputs.shape[1] > _MOST_COLUMNS:
            return layer
        reduces = layer.scheme.reduces_range(layer.graph, node)
        return replace(layer, quantized=rounded(layer.quantized, weight, layer.inputs, reduce_range=reduces))


REPAIR = Gptq()
