"""Compute convolutions in float that round their activations anew for each input.

    DynamicQuantizeLinear(x) -> ConvInteger(w) -> Cast -> Mul(scale of x * scale of w)   ->   Conv(x, W)
    with W = (w - zero point of w) * scale of w

The weights keep their values and x is no longer rounded, so the outputs are nearer to the model that was quantized, and
differ from this one's. ONNX Runtime's ConvInteger has no blocked kernels: SqueezeNet took six times as long on x86-64.
Matrix products and LSTMs stay as they are: in float they took three to six times as long. W is stored as
float32, four times the bytes: a DequantizeLinear of a constant is computed again in each run and leaves a Conv without
those kernels (a Conv of 64 channels took 1.6 times as long on x86-64 with VNNI).
Source: ONNX ConvInteger-10; `quantize_dynamic` of ONNX Runtime, which rounded the bias too in older versions.
"""

from __future__ import annotations

import numpy as np

from edgeopt.graph.graph import Array, Graph, Node, Value, attribute
from edgeopt.passes import Pass, Phase

_FLOAT = 1
"""ONNX's number of float32."""
_ROUNDS = ("Floor", "Round")


def make_dynamic_float(graph: Graph) -> int:
    """Return how many convolutions no longer round what they read."""
    return sum(_make_float(graph, node) for node in graph.nodes("ConvInteger"))


def _make_float(graph: Graph, node: Node) -> bool:
    """Replace a convolution of integers, its bias, and the product with both scales; False where it is another form."""
    rounded, weight = graph.producer(node.inputs[0], "DynamicQuantizeLinear"), graph.constant(node.inputs[1])
    sums, bias = _without_bias(graph, node.outputs[0])
    cast = graph.sole_consumer(sums, "Cast")
    if rounded is None or weight is None or cast is None or attribute(cast, "to", 0) != _FLOAT:
        return False
    scaled = graph.sole_consumer(cast.outputs[0], "Mul")
    scale = _weight_scale(graph, _other(scaled, cast.outputs[0]), rounded)
    if scaled is None or scale is None or _input(node, 2) is not rounded.outputs[2]:
        return False
    real = _real(weight, scale, _zero_point(graph, node))
    added = _real_bias(graph, bias, scale, rounded, scaled) if bias is not None else None
    if real is None or (bias is not None and added is None):
        return False
    stored = graph.add_initializer(f"{node.name}_weight", real)
    attributes = {name: other.value for name, other in node.attributes.items()}
    made = graph.insert("Conv", [rounded.inputs[0], stored], attributes, before=scaled, name=str(node.name))
    if added is not None:
        made = graph.insert("Add", [made.outputs[0], added], before=scaled)
    return graph.bypass(scaled, keep=made)


def _input(node: Node, place: int) -> Value | None:
    return node.inputs[place] if place < len(node.inputs) else None


def _other(node: Node | None, value: Value) -> Value | None:
    """Return the other input of a node with two."""
    return next((input_ for input_ in node.inputs if input_ is not value), None) if node else None


def _without_bias(graph: Graph, sums: Value) -> tuple[Value, Value | None]:
    """Return the sums with an integer bias added, and that bias; None where there is none."""
    node = graph.sole_consumer(sums, "Add")
    return (sums, None) if node is None else (node.outputs[0], _other(node, sums))


def _weight_scale(graph: Graph, scales: Value | None, rounded: Node) -> Array | None:
    """Return the constant that multiplies the scale of the activations."""
    product = graph.producer(scales, "Mul")
    if product is None or rounded.outputs[1] not in product.inputs:
        return None
    return graph.constant(_other(product, rounded.outputs[1]))


def _zero_point(graph: Graph, node: Node) -> Array | None:
    """Return the weight's zero point: 0 where it is left out, None where it is no constant."""
    value = _input(node, 3)
    return np.zeros((), np.float32) if value is None else graph.constant(value)


def _real(weight: Array, scale: Array, zero_point: Array | None) -> Array | None:
    """Return the numbers that a weight's integers stand for; None where a grid has another axis than the outputs."""
    axes = (1,) * (weight.ndim - scale.ndim) + scale.shape
    is_by_channel = len(axes) == weight.ndim and axes[1] == scale.size == len(weight)
    if zero_point is None or zero_point.size not in (1, len(weight)) or not (scale.size == 1 or is_by_channel):
        return None
    ones = (1,) * (weight.ndim - 1)
    offsets = zero_point.astype(np.float32).reshape(-1, *ones)
    return np.asarray((weight.astype(np.float32) - offsets) * scale.astype(np.float32).reshape(-1, *ones), np.float32)


def _real_bias(graph: Graph, bias: Value, scale: Array, rounded: Node, before: Node) -> Value | None:
    """Return the bias that was divided by both scales and rounded; None where it was made in another way."""
    moved = graph.producer(bias, "Reshape")
    cast = graph.producer(moved.inputs[0] if moved else bias, "Cast")
    whole = graph.producer(cast.inputs[0]) if cast else None
    divided = graph.producer(whole.inputs[0], "Div") if whole and whole.op_type in _ROUNDS else None
    divisor = _weight_scale(graph, divided.inputs[1], rounded) if divided else None
    if divided is None or divisor is None or not np.array_equal(divisor.reshape(-1), scale.reshape(-1)):
        return None
    if moved is None:
        return divided.inputs[0]
    return graph.insert("Reshape", [divided.inputs[0], moved.inputs[1]], before=before).outputs[0]


PASS = Pass(make_dynamic_float, Phase.FLOAT)
