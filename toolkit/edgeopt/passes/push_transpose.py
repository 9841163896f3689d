"""Move a Transpose behind Concat and Reshape up to the convolutions that it comes from.

A convolution's result is reordered anyway, and engines write it channels last for nothing; behind a Concat the
Transpose is a pass over all values. Transpose(Concat(a, b)) = Concat(Transpose(a), Transpose(b)), and
Transpose(Reshape(a)) = Reshape(Transpose(a)) where Reshape joins the positions and Transpose moves the channels
behind them. It is moved only where every way up ends at a Conv.
"""

from __future__ import annotations

import numpy as np

from edgeopt.graph.graph import Graph, Node, Value, attribute
from edgeopt.passes import Pass, Phase

_ELEMENTWISE = ("Sigmoid", "Relu", "Clip", "Tanh", "HardSigmoid", "LeakyRelu")


def push_transpose(graph: Graph) -> int:
    """Return how many times a Transpose was moved one op up."""
    return sum(_push(graph, node) for node in graph.nodes("Transpose"))


def _push(graph: Graph, node: Node) -> bool:
    source = graph.sole_producer(node.inputs[0])
    order: tuple[int, ...] = attribute(node, "perm", ())
    if source is None or source.op_type not in ("Concat", "Reshape") or not _comes_from_convs(graph, source, order):
        return False
    if source.op_type == "Concat":
        axis: int = attribute(source, "axis", 0)
        parts = [_transposed(graph, part, order, node) for part in source.inputs]
        made = graph.insert(
            "Concat", parts, {"axis": order.index(axis % len(order))}, before=node, name=node.name or ""
        )
    else:
        shape = graph.shape(node.outputs[0])
        positions = graph.rank(source.inputs[0]) or 0
        moved = _transposed(graph, source.inputs[0], (0, *range(2, positions), 1), node)
        wanted = graph.add_initializer(f"{node.name}_shape", np.array(shape, np.int64))
        made = graph.insert("Reshape", [moved, wanted], before=node, name=node.name or "")
    made.outputs[0].shape, made.outputs[0].type = node.outputs[0].shape, node.outputs[0].type
    if not graph.bypass(node, keep=made):
        return False
    graph.remove(source)  # or it would still count as a reader of its parts
    return True


def _transposed(graph: Graph, value: Value | None, order: tuple[int, ...], like: Node) -> Value:
    made = graph.insert("Transpose", [value], {"perm": order}, before=like, name=like.name or "").outputs[0]
    shape = graph.shape(value)
    assert value is not None
    assert shape is not None  # `_comes_from_convs` has asked
    made.type = value.type
    graph.set_shape(made, [shape[axis] for axis in order])
    return made


def _comes_from_convs(graph: Graph, node: Node | None, order: tuple[int, ...]) -> bool:
    """Whether a Transpose behind `node` can be moved up to convolutions on every way."""
    if node is None or graph.shape(node.outputs[0]) is None:
        return False
    if node.op_type == "Conv":
        return True
    sources = [graph.sole_producer(input_) for input_ in node.inputs]
    if node.op_type == "Concat":
        return bool(order) and all(_comes_from_convs(graph, source, order) for source in sources)
    if node.op_type == "Reshape":
        return _joins_positions(graph, node, order) and _comes_from_convs(graph, sources[0], _last(graph, node))
    return node.op_type in _ELEMENTWISE and _comes_from_convs(graph, sources[0], order)


def _joins_positions(graph: Graph, node: Node, order: tuple[int, ...]) -> bool:
    """Whether (n, c, h, w) becomes (n, c, h w), and the Transpose makes (n, h w, c) of it."""
    before, after = graph.shape(node.inputs[0]), graph.shape(node.outputs[0])
    if before is None or after is None:
        return False
    return len(before) > len(after) == 3 and before[:2] == after[:2] and order == (0, 2, 1)


def _last(graph: Graph, node: Node) -> tuple[int, ...]:
    return (0, *range(2, graph.rank(node.inputs[0]) or 0), 1)


PASS = Pass(push_transpose, Phase.FUSE)
