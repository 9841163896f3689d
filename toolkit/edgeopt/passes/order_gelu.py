"""Write the Gaussian error linear unit in the order of products that ONNX Runtime makes one kernel of.

    x * (0.5 * (1 + Erf(x * a)))  ->  (x * (1 + Erf(x / b))) * 0.5
    0.5 * x * (1 + Tanh(c * (x + d * x ** 3)))  ->  (0.5 * x) * (1 + Tanh((c * x) * (d * x * x + 1)))

torch.onnx.export(dynamo=True) writes orders that its GeluFusion and FastGeluFusion do not know: each unit stays five to
nine passes over the tensor. The second has no Pow, which some NPUs leave to their processor.
Source: gelu_fusion.cc and fast_gelu_fusion.cc of ONNX Runtime 1.32.
"""

from __future__ import annotations

import math

import numpy as np

from edgeopt.graph.gelu import CUBIC, INSIDE, Gelu, gelus
from edgeopt.graph.graph import Graph, Value
from edgeopt.passes import Pass, Phase

_DTYPE = np.dtype(np.float32)
"""Type that the fusions take; in float16, twice x would overflow where x does not."""


def order_gelu(graph: Graph) -> int:
    """Return how many units are written in another order."""
    ordered, numbers = 0, dict[float, Value]()
    for gelu in gelus(graph, *INSIDE):
        if gelu.dtype == _DTYPE and not _is_ordered(graph, gelu):
            ordered += graph.replace(gelu.last.outputs[0], _write(graph, gelu, numbers), keep_name=True)
    if ordered:
        graph.remove_unused()
    return ordered


def _is_ordered(graph: Graph, unit: Gelu) -> bool:
    """Whether ONNX Runtime knows the unit as it is."""
    first = graph.producer(unit.function.inputs[0])
    total = graph.consumers(unit.function.outputs[0])[0].outputs[0]
    if first is None or not _is_halved(graph, unit, total):
        return False
    if unit.function.op_type == "Erf":
        return first.op_type == "Div" and first.inputs[0] is unit.x
    sum_ = next((graph.producer(input_, "Add") for input_ in first.inputs if graph.producer(input_, "Add")), None)
    found = graph.split_scalar(sum_) if sum_ is not None else None
    square = graph.producer(found[0], "Mul") if found is not None else None
    scaled = (
        [graph.producer(input_, "Mul") for input_ in square.inputs if input_ is not unit.x]
        if square is not None
        else []
    )
    return len(scaled) == 1 and scaled[0] is not None and unit.x in scaled[0].inputs and first.op_type == "Mul"


def _is_halved(graph: Graph, unit: Gelu, total: Value) -> bool:
    """Whether the half is a product of x, or, with Erf, the last one."""
    scalar = graph.split_scalar(unit.last)
    if scalar is not None:
        product = graph.producer(scalar[0], "Mul")
        is_last = unit.function.op_type == "Erf" and unit.last.op_type == "Mul"
        return is_last and product is not None and set(product.inputs) == {unit.x, total}
    half = next((graph.producer(input_, "Mul") for input_ in unit.last.inputs if input_ is not total), None)
    return half is not None and unit.x in half.inputs


def _write(graph: Graph, unit: Gelu, numbers: dict[float, Value]) -> Value:
    """Write a unit before its last node, with one initializer a number in the whole graph."""

    def put(op: str, x: Value, by: Value | float | None = None) -> Value:
        if isinstance(by, float):
            if by not in numbers:
                numbers[by] = graph.add_initializer("gelu_number", np.asarray(by, _DTYPE))
            by = numbers[by]
        inputs = [x] if by is None else [x, by]
        return graph.insert(op, inputs, before=unit.last, name=f"{unit.function.name}_gelu").outputs[0]

    x = unit.x
    if unit.function.op_type == "Erf":
        total = put("Add", put("Erf", put("Div", x, math.sqrt(2))), 1.0)
        return put("Mul", put("Mul", x, total), 0.5)
    squares = put("Add", put("Mul", put("Mul", x, CUBIC), x), 1.0)
    inside = put("Mul", put("Mul", x, math.sqrt(2 / math.pi)), squares)
    return put("Mul", put("Mul", x, 0.5), put("Add", put("Tanh", inside), 1.0))


PASS = Pass(order_gelu, Phase.FUSE)
