"""Gemm and MatMul: with a constant matrix they read and make channels; of two activations they tie batch axes."""

from __future__ import annotations

import numpy as np

from edgeopt.graph.graph import Node, attribute
from edgeopt.graph.groups.labels import FIXED
from edgeopt.graph.groups.rules import Rule
from edgeopt.graph.groups.rules.elementwise import tie_operands
from edgeopt.graph.groups.tracer import PinnedError, Tracer
from edgeopt.graph.groups.types import Channels

_BOTH = "the channels are summed over in a product of two activations"


def gemm(node: Node, at: Tracer) -> None:
    """Read columns of the first input, make those of the output."""
    weight = at.constant(node.inputs[1])
    if weight is None or at.constant(node.inputs[0]) is not None:
        raise PinnedError("a matrix product whose second factor is no constant")
    if attribute(node, "transA", 0):
        raise PinnedError("a Gemm that reads its input transposed")
    transposed = bool(attribute(node, "transB", 0))
    inner, outer = (1, 0) if transposed else (0, 1)
    axes = at.axes(node.inputs[0])
    made = at.fresh(node, weight.shape[outer])
    read = axes.get(1, _fixed(weight.shape[inner]))
    at.use(node, 1, {inner: read, outer: made}, reads=inner)
    out = {**{axis: array for axis, array in axes.items() if axis == 0}, 1: made}
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        tie_operands(node, at, [2], out, 2)
    at.give(node.outputs[0], out)


def matmul(node: Node, at: Tracer) -> None:
    """Read the last axis, or the last but one where the constant stands first; make the same of the output."""
    left, right = (at.constant(input_) for input_ in node.inputs)
    if left is None and right is None:
        return _of_activations(node, at)
    place = 1 if right is not None else 0
    weight = right if right is not None else left
    data = node.inputs[1 - place]
    if weight is None or weight.ndim != 2:
        raise PinnedError("a product with a constant that is no matrix")
    rank = at.rank(data)
    if rank < 2:
        raise PinnedError("a product of a vector")
    axis = rank - 1 if place == 1 else rank - 2
    inner, outer = (0, 1) if place == 1 else (1, 0)
    axes = at.axes(data)
    made = at.fresh(node, weight.shape[outer])
    at.use(node, place, {inner: axes.get(axis, _fixed(weight.shape[inner])), outer: made}, reads=inner)
    at.give(node.outputs[0], {**axes, axis: made})
    return None


def _of_activations(node: Node, at: Tracer) -> None:
    """Tie the axes of the batch, and pass on the rows of the first and the columns of the second."""
    left, right = node.inputs
    ranks = at.rank(left), at.rank(right)
    if min(ranks) < 2:
        raise PinnedError("a product of a vector")
    at.pin_other_axes(node, left, range(ranks[0] - 1), _BOTH)
    at.pin_other_axes(node, right, [axis for axis in range(ranks[1]) if axis != ranks[1] - 2], _BOTH)
    rank = max(ranks)
    out = tie_operands(node, at, (0, 1), {}, rank, trailing=2)
    at.multiplied.extend(out.values())
    rows, columns = at.axes(left).get(ranks[0] - 2), at.axes(right).get(ranks[1] - 1)
    if rows is not None:
        out[rank - 2] = rows
    if columns is not None:
        out[rank - 1] = columns
    at.give(node.outputs[0], out)


def _fixed(count: int) -> Channels:
    return np.full(count, FIXED, np.int32)


RULES = {"Gemm": Rule(gemm, joins=True, makes=True), "MatMul": Rule(matmul, joins=True, makes=True)}
