"""Functions of two numbers or more, place by place."""

from __future__ import annotations

import numpy as np

from edgeopt.executors.mnn.conversion.ops import ANY_TYPE, Rewrite
from edgeopt.executors.mnn.conversion.rewriting import MnnGraph
from edgeopt.graph.graph import Node, Value


def _ranked(graph: MnnGraph, node: Node, value: Value | None, rank: int) -> Value:
    """Return a tensor with axes of one place before its own; a number alone stays one."""
    assert value is not None
    shape = graph.shape(value)
    if not shape or len(shape) == rank:
        return value
    return graph.reshaped(node, value, (*(1,) * (rank - len(shape)), *shape))


def _joined(op: str) -> Rewrite:
    """Write several inputs as pairs, and all with as many axes as the result has."""

    def rewrite(graph: MnnGraph, node: Node) -> None:
        shape = graph.shape(node.outputs[0])
        values = [_ranked(graph, node, value, len(shape)) for value in node.inputs]
        made = values[0]
        for value in values[1:]:
            both = np.broadcast_shapes(graph.shape(made), graph.shape(value))
            made = graph.add(node, op, [made, value], both)
        if graph.shape(made) != shape:
            made = graph.expanded(node, made, shape)
        graph.put(node, made)

    return rewrite


def _power(graph: MnnGraph, node: Node) -> None:
    """Write the exponent in the base's type."""
    exponent = graph.numbers(node, 1)
    if exponent is None:
        raise graph.refuse(node, "")
    shape = graph.shape(node.outputs[0])
    value = graph.expanded(node, node.inputs[0], shape)
    if exponent.size == 1 and float(exponent.reshape(())) == 2.0:
        graph.put(node, graph.add(node, "Mul", [value, value], shape))
        return
    power = exponent.astype(np.float32)
    power = power.reshape(()) if power.size == 1 else np.ascontiguousarray(np.broadcast_to(power, shape))
    graph.put(node, graph.add(node, "Pow", [value, power], shape))


def _compared(op: str, *, is_swapped: bool = False) -> Rewrite:
    def rewrite(graph: MnnGraph, node: Node) -> None:
        shape = graph.shape(node.outputs[0])
        values = [graph.expanded(node, value, shape) for value in node.inputs[:: -1 if is_swapped else 1]]
        graph.put(node, graph.add(node, op, values, shape))

    return rewrite


def _where(graph: MnnGraph, node: Node) -> None:
    """Write out what is repeated: MNN reads beyond the end of a smaller tensor."""
    shape = graph.shape(node.outputs[0])
    values = [graph.expanded(node, value, shape) for value in node.inputs]
    graph.put(node, graph.add(node, "Where", values, shape))


_COMPARISONS = ("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal")
_LOGIC = ("And", "Or", "Xor")
OPS = {
    **{op: _joined(op) for op in ("Add", "Sub", "Mul", "Div", "Max", "Min")},
    "Sum": _joined("Add"),
    "Pow": _power,
    **{op: _compared(op) for op in (*_COMPARISONS, *_LOGIC)},
    "Less": _compared("Greater", is_swapped=True),  # MNN's own is wrong for two tensors (3.6.1, x86-64)
    "LessOrEqual": _compared("GreaterOrEqual", is_swapped=True),
    "Where": _where,
}
OTHER_TYPES = dict.fromkeys(_COMPARISONS, frozenset({"float32", "bool"}))
OTHER_TYPES |= dict.fromkeys(_LOGIC, frozenset({"bool"}))
OTHER_TYPES |= {"Where": ANY_TYPE}
