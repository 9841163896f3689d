"""Take out nodes that hand on their first input unchanged.

Identity, Dropout in inference, Cast to the same type, Transpose in the same order, Pad by nothing, Mul or
Div by 1, Add or Sub of 0, Concat or Sum of one, and Reshape, Slice and their like where the shape stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from edgeopt.graph.graph import Graph, Node, Value, attribute
from edgeopt.passes import Pass, Phase

_NEUTRAL = {"Mul": 1, "Div": 1, "Add": 0, "Sub": 0}


def remove_identity(graph: Graph) -> int:
    """Return how many nodes were taken out."""
    removed = 0
    for node in graph.nodes(*_RULES):
        if node.inputs and node.inputs[0] is not None and _RULES[node.op_type](graph, node):
            removed += graph.bypass(node, keep=_data(graph, node))
    return removed


def _data(graph: Graph, node: Node) -> Value | None:
    """Return what the node hands on: of a constant and a variable, the variable."""
    result = graph.split(node) if node.op_type in _NEUTRAL else None
    return result[0] if result else node.inputs[0]


def _always(_graph: Graph, _node: Node) -> bool:
    return True


def _is_inference_dropout(graph: Graph, node: Node) -> bool:
    if graph.opset < 7:
        return attribute(node, "is_test", 0) == 1
    if len(node.inputs) < 3 or node.inputs[2] is None:
        return True
    training = graph.constant(node.inputs[2])
    return training is not None and not training.any()


def _casts_to_same_type(_graph: Graph, node: Node) -> bool:
    source = node.inputs[0]
    return source is not None and source.dtype is not None and int(source.dtype) == attribute(node, "to", -1)


def _keeps_order(_graph: Graph, node: Node) -> bool:
    permutation: tuple[int, ...] = attribute(node, "perm", ())
    return len(permutation) > 0 and permutation == tuple(range(len(permutation)))


def _pads_nothing(graph: Graph, node: Node) -> bool:
    pads = graph.constant(node.inputs[1]) if len(node.inputs) > 1 else None
    return pads is not None and not pads.any()


def _is_neutral(graph: Graph, node: Node) -> bool:
    found = graph.split(node)
    if found is None:
        return False
    value, constant, place = found
    if (constant != _NEUTRAL[node.op_type]).any() or (place == 0 and node.op_type in ("Sub", "Div")):
        return False
    return graph.split_scalar(node) is not None or (
        graph.shape(value) is not None and graph.shape(value) == graph.shape(node.outputs[0])
    )


def _has_one_input(_graph: Graph, node: Node) -> bool:
    return len(node.inputs) == 1


def _keeps_shape(graph: Graph, node: Node) -> bool:
    shape = graph.shape(node.inputs[0])
    return shape is not None and shape == graph.shape(node.outputs[0])


def _takes_everything(graph: Graph, node: Node) -> bool:
    steps = graph.constant(node.inputs[4]) if len(node.inputs) > 4 else None
    forward = len(node.inputs) <= 4 or (steps is not None and bool((steps > 0).all()))
    return forward and _keeps_shape(graph, node)


_RULES: Mapping[str, Callable[[Graph, Node], bool]] = {
    "Identity": _always,
    "Dropout": _is_inference_dropout,
    "Cast": _casts_to_same_type,
    "Transpose": _keeps_order,
    "Pad": _pads_nothing,
    **dict.fromkeys(_NEUTRAL, _is_neutral),
    **dict.fromkeys(("Concat", "Sum", "Max", "Min", "Mean"), _has_one_input),
    **dict.fromkeys(("Reshape", "Squeeze", "Flatten", "Expand", "Tile"), _keeps_shape),
    "Slice": _takes_everything,
}

PASS = Pass(remove_identity, Phase.SIMPLIFY)
