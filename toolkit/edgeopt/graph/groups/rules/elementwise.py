"""Ops that compute every entry of its own: activations, and arithmetic with broadcasting, residual Add among it."""

from __future__ import annotations

from collections.abc import Sequence

from edgeopt.graph.graph import Node
from edgeopt.graph.groups.rules import Rule
from edgeopt.graph.groups.tracer import MEETS_FIXED, Axes, Tracer
from edgeopt.graph.groups.types import Channels

_UNARY = (
    *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cast", "Ceil", "Celu", "Clip", "Cos", "Cosh"),
    *("Dropout", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN"),
    *("LeakyRelu", "Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign"),
    *("Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Swish", "Tan", "Tanh", "ThresholdedRelu"),
    *("com.microsoft.Gelu", "com.microsoft.QuickGelu"),
)
_BROADCAST = (
    *("Add", "And", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Greater", "GreaterOrEqual", "Less"),
    *("LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Or", "PRelu", "Pow", "Sub", "Sum", "Where", "Xor"),
    "CastLike",
)
_BROADCASTS = "one channel is broadcast over many"


def unary(node: Node, at: Tracer) -> None:
    """Pass all labels on; further inputs are single numbers."""
    for value in node.outputs:
        at.give(value, at.axes(node.inputs[0]))


def broadcast(node: Node, at: Tracer) -> None:
    """Tie the channels of all operands."""
    places = [place for place, value in enumerate(node.inputs) if value is not None]
    rank = max(at.rank(node.inputs[place]) for place in places)
    if node.op_type == "CastLike":
        places = places[:1]
    at.give(node.outputs[0], tie_operands(node, at, places, {}, rank))


def tie_operands(
    node: Node, at: Tracer, places: Sequence[int], arrays: Axes, rank: int, *, trailing: int = 0
) -> dict[int, Channels]:
    """Tie the labels of operands that meet by broadcasting, and return those of the result.

    Args:
        node: The node.
        at: What is labelled.
        places: Of the operands among its inputs.
        arrays: Labels that the result has already, by axis.
        rank: Dimensions of the result.
        trailing: How many of the last axes do not broadcast: 2 of a matrix product.
    """
    result = dict(arrays)
    for place in places:
        for axis, labels in at.axes(node.inputs[place]).items():
            if axis < at.rank(node.inputs[place]) - trailing and len(labels) > 1:
                result.setdefault(axis + rank - at.rank(node.inputs[place]), labels)
    for place in places:
        value = node.inputs[place]
        dims = at.dims(value)
        shift = rank - len(dims)
        met = {axis: result[axis + shift] for axis in range(len(dims) - trailing) if axis + shift in result}
        if at.constant(value) is not None:
            at.use(node, place, {axis: labels for axis, labels in met.items() if dims[axis] == len(labels)})
            continue
        own = at.axes(value)
        for axis, labels in met.items():
            if dims[axis] == 1:
                at.pin(node, own.get(axis, labels[:0]), _BROADCASTS)
            elif axis in own:
                at.tie(node, labels, own[axis], MEETS_FIXED)
            else:
                at.pin(node, labels, MEETS_FIXED)
    return result


RULES = {**{op: Rule(unary) for op in _UNARY}, **{op: Rule(broadcast, joins=True) for op in _BROADCAST}}
