"""Where a graph computes the Gaussian error linear unit, in whatever order its exporter writes the products.

    x * (1 + Erf(x / sqrt(2))) / 2                                     exact
    x * (1 + Tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3))) / 2         by tanh

Source: Hendrycks and Gimpel, Gaussian Error Linear Units, 2016.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.polynomial.polynomial import polyadd, polymul
from numpy.typing import NDArray

from edgeopt.graph.graph import Graph, Node, Value

CUBIC = 0.044715
INSIDE = {
    "Erf": (0.0, math.sqrt(0.5)),
    "Tanh": (0.0, math.sqrt(2 / math.pi), 0.0, math.sqrt(2 / math.pi) * CUBIC),
}
"""Argument of each function inside the unit, as coefficients of the powers of x, from x^0 upwards."""
_DEPTH = 8
"""Nodes between x and its function at most."""


@dataclass(frozen=True, slots=True)
class Gelu:
    """One unit."""

    x: Value
    function: Node
    """Erf or Tanh."""
    last: Node
    """Node whose output is the unit's."""
    dtype: np.dtype[Any]
    """Type of x and of all numbers."""


def gelus(graph: Graph, *functions: str) -> Iterator[Gelu]:
    """Yield the units that are written with these functions, in order; the graph may be edited between two."""
    for node in graph.nodes(*functions):
        if gelu := _around(graph, node):
            yield gelu


def halves_gelu(graph: Graph, node: Node) -> bool:
    """Whether a product with a number is the last of a unit: without it engines do not know the rest."""
    return any(gelu.last is node for gelu in gelus(graph, *INSIDE))


def _around(graph: Graph, function: Node) -> Gelu | None:
    total = graph.sole_consumer(function.outputs[0], "Add")
    one = graph.split_scalar(total) if total is not None else None
    if total is None or one is None or one[1] != 1:
        return None
    for is_halved in (False, True):
        result = _factors(graph, total.outputs[0], is_halved=is_halved)
        if result is not None and _is_inside(graph, function, result[1]):
            number = graph.constant(total.inputs[one[2]])
            assert number is not None
            return Gelu(result[1], function, result[0], number.dtype)
    return None


def _is_inside(graph: Graph, function: Node, x: Value) -> bool:
    """Whether the function is of x as in the unit."""
    inside, wanted = _powers(graph, function.inputs[0], x, _DEPTH), INSIDE[function.op_type]
    return inside is not None and len(inside) == len(wanted) and np.allclose(inside, wanted, rtol=1e-4, atol=1e-7)


def _powers(graph: Graph, value: Value | None, x: Value, depth: int) -> NDArray[np.float64] | None:
    """Return a value as factors of the powers of `x`; None where it is no such sum."""
    if value is x:
        return np.array([0.0, 1.0])
    constant, node = graph.constant(value), graph.producer(value)
    if constant is not None:
        fits = constant.size == 1 and constant.dtype.kind in "fiu" and constant.ndim <= (graph.rank(x) or 0)
        return np.array([float(constant.reshape(()))]) if fits else None
    if node is None or node.domain not in ("", "ai.onnx") or len(node.inputs) != 2 or not depth:
        return None
    left, right = (_powers(graph, input_, x, depth - 1) for input_ in node.inputs)
    if left is None or right is None:
        return None
    result = {"Add": polyadd, "Mul": polymul}.get(node.op_type)
    if result is not None:
        return np.asarray(result(left, right))
    if len(right) != 1 or not right[0]:
        return None
    if node.op_type == "Div":
        return np.asarray(left / right[0])
    if node.op_type == "Pow" and right[0] in (2, 3):
        square = polymul(left, left)
        return np.asarray(square if right[0] == 2 else polymul(square, left))
    return None


def _scaled(graph: Graph, value: Value | None, factor: float) -> Value | None:
    """Return x where `value` is x * factor."""
    for op, wanted in (("Mul", factor), ("Div", 1 / factor)):
        node = graph.producer(value, op)
        result = graph.split_scalar(node) if node is not None else None
        if result is not None and (op == "Mul" or result[2] == 1) and math.isclose(result[1], wanted, rel_tol=1e-5):
            return result[0]
    return None


def _factors(graph: Graph, value: Value, *, is_halved: bool) -> tuple[Node, Value] | None:
    """Follow the products of `value` up to x / 2 times `value`; return the last one and x.

    Args:
        graph: Of the unit.
        value: One and the function.
        is_halved: Whether the other variable factor is x / 2, not x.
    """
    x, number = None, 1.0
    while (node := graph.sole_consumer(value)) is not None and node.op_type in ("Mul", "Div"):
        scalar = graph.split_scalar(node)
        if scalar is not None and (node.op_type == "Mul" or scalar[2] == 1):
            number *= scalar[1] if node.op_type == "Mul" else 1 / scalar[1]
        elif node.op_type == "Mul" and x is None and node.inputs[0] is not node.inputs[1]:
            other = next(input_ for input_ in node.inputs if input_ is not value)
            x = _scaled(graph, other, 0.5) if is_halved else other
            number *= 0.5 if is_halved else 1.0
            if x is None:
                return None
        else:
            return None
        if x is not None and math.isclose(number, 0.5, rel_tol=1e-5):
            return node, x
        value = node.outputs[0]
    return None
