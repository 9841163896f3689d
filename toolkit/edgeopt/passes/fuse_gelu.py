"""Make one Gelu of the Gaussian error linear unit that exporters write with Erf.

    x * (1 + Erf(x / sqrt(2))) / 2   ->   Gelu(x), opset 20 or later

in any order of the products. NPU compilers know Gelu and refuse a bare Erf.
Source: Hendrycks and Gimpel, Gaussian Error Linear Units, 2016; ONNX Gelu-20.
"""

from __future__ import annotations

import math

from edgeopt.graph.graph import Graph, Node, Value
from edgeopt.passes import Pass, Phase

_OPSET_OF_GELU = 20


def fuse_gelu(graph: Graph) -> int:
    """Return how many products with 1 + Erf became a Gelu."""
    if graph.opset < _OPSET_OF_GELU:
        return 0
    fused = sum(_fuse(graph, node) for node in graph.nodes("Erf"))
    if fused:
        graph.remove_unused()
    return fused


def _fuse(graph: Graph, erf: Node) -> bool:
    x = _scaled(graph, erf.inputs[0], math.sqrt(0.5))
    total = graph.sole_consumer(erf.outputs[0], "Add")
    one = graph.split_scalar(total) if total is not None else None
    if x is None or total is None or one is None or one[1] != 1:
        return False
    found = _factors(graph, total.outputs[0])
    if found is None:
        return False
    last, factors, number = found
    if len(factors) != 1 or factors[0] is not x or not math.isclose(number, 0.5, rel_tol=1e-5):
        return False
    return graph.bypass(last, keep=graph.insert("Gelu", [x], before=last, name=f"{erf.name}_gelu"))


def _scaled(graph: Graph, value: Value | None, factor: float) -> Value | None:
    """Return x where `value` is x * factor."""
    for op, wanted in (("Mul", factor), ("Div", 1 / factor)):
        node = graph.producer(value, op)
        found = graph.split_scalar(node) if node is not None else None
        if found is not None and (op == "Mul" or found[2] == 1) and math.isclose(found[1], wanted, rel_tol=1e-5):
            return found[0]
    return None


def _factors(graph: Graph, value: Value) -> tuple[Node, list[Value], float] | None:
    """Follow the products of `value`: return the last one, the variables that it was multiplied by, and the number."""
    last, factors, number = None, list[Value](), 1.0
    while (node := graph.sole_consumer(value)) is not None and node.op_type in ("Mul", "Div"):
        scalar = graph.split_scalar(node)
        if scalar is not None and (node.op_type == "Mul" or scalar[2] == 1):
            number *= scalar[1] if node.op_type == "Mul" else 1 / scalar[1]
        elif node.op_type == "Mul" and not factors and node.inputs[0] is not node.inputs[1]:
            other = next(one for one in node.inputs if one is not value)
            half = _scaled(graph, other, 0.5)
            number *= 1.0 if half is None else 0.5
            factors += [one for one in (half if half is not None else other,) if one is not None]
        else:
            break
        last, value = node, node.outputs[0]
        if factors and math.isclose(number, 0.5, rel_tol=1e-5):
            break
    return None if last is None else (last, factors, number)


PASS = Pass(fuse_gelu, Phase.DEVICE)
