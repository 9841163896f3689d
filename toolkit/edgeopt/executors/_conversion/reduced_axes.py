"""Axes that a node reduces over: an attribute once, an input now."""

from __future__ import annotations

from edgeopt.graph.graph import Graph, Node, attribute

_OPSET_OF_INPUTS = 18
_OPSET_OF_SUM_INPUTS = 13


def reduced_axes(graph: Graph, node: Node, rank: int) -> tuple[int, ...] | None:
    """Return the axes, counted from the first; None where there are none, or where they are computed.

    Args:
        graph: Of the node; its opset decides where axes stand.
        node: A ReduceMean or one of its kind.
        rank: Axes of its input.
    """
    first = _OPSET_OF_SUM_INPUTS if node.op_type == "ReduceSum" else _OPSET_OF_INPUTS
    named: tuple[int, ...] = ()
    if graph.opset < first:
        named = attribute(node, "axes", ())
    elif len(node.inputs) > 1 and node.inputs[1] is not None:
        numbers = graph.constant(node.inputs[1])
        if numbers is None:
            return None
        named = tuple(int(axis) for axis in numbers.reshape(-1))
    if not named and attribute(node, "noop_with_empty_axes", 0):
        return None
    return tuple(sorted(axis % rank for axis in named)) or tuple(range(rank))
