"""Bring SiLU and the logistic function, where they are written out, to the form that engines recognise.

    1 / (1 + exp(-x))   ->   Sigmoid(x)                x / (1 + exp(-x))   ->   Mul(x, Sigmoid(x))

Mul(x, Sigmoid(x)) itself stays, in either order: ONNX has no SiLU before opset 24, ONNX Runtime fuses the
pair on its own (QuickGelu), and a node of a vendor's domain would run nowhere else.
"""

from __future__ import annotations

from edgeopt.graph.graph import Graph, Node, Value
from edgeopt.passes import Pass, Phase


def fuse_silu(graph: Graph) -> int:
    """Return how many divisions by 1 + exp(-x) became a Sigmoid."""
    fused = 0
    for node in graph.nodes("Div", "Reciprocal"):
        x = _logistic_of(graph, node.inputs[-1])
        is_silu = node.op_type == "Div" and node.inputs[0] is x
        if x is None or not (is_silu or node.op_type == "Reciprocal" or _divides_one(graph, node)):
            continue
        new = graph.insert("Sigmoid", [x], before=node, name=f"{node.name}_sigmoid")
        if is_silu:
            new = graph.insert("Mul", [x, new.outputs[0]], before=node, name=f"{node.name}_silu")
        fused += graph.bypass(node, keep=new)
    if fused:
        graph.remove_unused()
    return fused


def _logistic_of(graph: Graph, value: Value | None) -> Value | None:
    """Return x where `value` is 1 + exp(-x)."""
    add = graph.producer(value, "Add")
    one = graph.split_scalar(add) if add is not None else None
    exp = graph.producer(one[0], "Exp") if one is not None and one[1] == 1 else None
    if exp is None:
        return None
    negation, product = graph.producer(exp.inputs[0], "Neg"), graph.producer(exp.inputs[0], "Mul")
    factor = graph.split_scalar(product) if product is not None else None
    if negation is not None:
        return negation.inputs[0]
    return factor[0] if factor is not None and factor[1] == -1 else None


def _divides_one(graph: Graph, node: Node) -> bool:
    scalar = graph.split_scalar(node)
    return scalar is not None and scalar[2] == 0 and scalar[1] == 1


PASS = Pass(fuse_silu, Phase.FUSE)
