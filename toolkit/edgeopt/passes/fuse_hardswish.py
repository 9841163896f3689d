"""Bring hard sigmoid and hard swish, where they are written out, to ONNX's own ops.

    Clip(x + b, 0, d) / d         ->   HardSigmoid(x), alpha = 1 / d, beta = b / d
    x * HardSigmoid(x; 1/6, 1/2)  ->   HardSwish(x), opset 14 or later
    x * Clip(x + 3, 0, 6) / 6     ->   HardSwish(x)

ONNX Runtime then makes it an activation of the Conv before; separate nodes end its channel-blocked layout.
Source: ONNX HardSigmoid-6 and HardSwish-14.
"""

from __future__ import annotations

import math

from edgeopt.graph.graph import Graph, Node, Value, attribute
from edgeopt.passes import Pass, Phase

_OPSET_OF_HARDSWISH = 14


def fuse_hardswish(graph: Graph) -> int:
    """Return how many hard sigmoids and hard swishes became one node."""
    fused = sum(_fuse_division(graph, node) for node in graph.nodes("Div", "Mul"))
    if graph.opset >= _OPSET_OF_HARDSWISH:
        fused += sum(_fuse_product(graph, node) for node in graph.nodes("Mul"))
    if fused:
        graph.remove_unused()
    return fused


def _fuse_division(graph: Graph, node: Node) -> bool:
    """Rewrite Clip(x + b, 0, d) / d and x * Clip(x + 3, 0, 6) / 6."""
    found = _division(graph, node)
    if found is None:
        return False
    value, divisor = found
    gate = _clipped(graph, value, divisor)
    if gate is not None:
        slopes = {"alpha": 1 / divisor, "beta": gate[1] / divisor}
        new = graph.insert("HardSigmoid", [gate[0]], slopes, before=node)
        return graph.bypass(node, keep=new)
    product = graph.sole_producer(value, "Mul")
    if product is None or graph.opset < _OPSET_OF_HARDSWISH or not math.isclose(divisor, 6, rel_tol=1e-5):
        return False
    for x, other in (product.inputs, product.inputs[::-1]):
        gate = _clipped(graph, other, divisor)
        if gate is not None and gate[0] is x and gate[1] == 3:
            return graph.bypass(node, keep=graph.insert("HardSwish", [x], before=node))
    return False


def _division(graph: Graph, node: Node) -> tuple[Value, float] | None:
    """Return dividend and divisor of a Div, or of a Mul with the reciprocal."""
    scalar = graph.split_scalar(node)
    if scalar is None or scalar[1] <= 0 or (node.op_type == "Div" and scalar[2] == 0):
        return None
    return scalar[0], scalar[1] if node.op_type == "Div" else 1 / scalar[1]


def _clipped(graph: Graph, value: Value | None, top: float) -> tuple[Value, float] | None:
    """Return x and b where `value` is Clip(x + b, 0, top)."""
    clip = graph.producer(value, "Clip")
    limits = graph.constants(clip.inputs[1:]) if clip is not None else None
    if clip is None or limits is None or len(limits) != 2:
        return None
    low, high = (float(limit.reshape(())) for limit in limits)
    add = graph.producer(clip.inputs[0], "Add")
    offset = graph.split_scalar(add) if add is not None else None
    if offset is None or low != 0 or not math.isclose(high, top, rel_tol=1e-5):
        return None
    return offset[0], offset[1]


def _fuse_product(graph: Graph, node: Node) -> bool:
    for x, other in (node.inputs, node.inputs[::-1]):
        gate = graph.sole_producer(other, "HardSigmoid")
        if gate is None or gate.inputs[0] is not x:
            continue
        alpha, beta = attribute(gate, "alpha", 0.2), attribute(gate, "beta", 0.5)
        if math.isclose(alpha, 1 / 6, rel_tol=1e-5) and math.isclose(beta, 0.5, rel_tol=1e-5):
            return graph.bypass(node, keep=graph.insert("HardSwish", [x], before=node))
    return False


PASS = Pass(fuse_hardswish, Phase.FUSE)
