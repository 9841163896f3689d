"""The numbers of a layer on which its time hangs, so that layers of unlike shape can be compared."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from onnx import helper

from edgeopt.steps.prune.network.layer_shapes import WEIGHTED, LayerShape

OTHER = "other"
"""Pool of the ops without weights: an op that was never measured is compared with all of them."""
CHANNELS: Mapping[str, tuple[int, ...]] = {
    "Conv full": (0, 1),
    "Conv depthwise": (0,),
    "Conv grouped": (0, 1),
    "ConvTranspose full": (0, 1),
}
"""Places, among the sizes of a pool, of the channels that an engine computes in blocks."""
BORDER = "border"
"""Pool of the passes over a tensor between a layer on integers and one in float."""
BORDERS = frozenset({"QuantizeLinear", "DequantizeLinear", "Transpose"})
"""Ops of such passes."""
_FREE = frozenset({"Relu", "Clip", "LeakyRelu"})
"""Activations that engines compute while they write a layer's results."""


@dataclass(frozen=True, slots=True)
class LayerFeatures:
    """A layer, as far as its time hangs on it."""

    pool: str
    """Only layers of one pool are compared."""
    kind: str
    """Ops and attributes: layers of one kind differ by their sizes alone."""
    sizes: tuple[float, ...]
    """Logarithms to base 2; as many in all layers of a pool."""
    work: float
    """Multiply-adds, or numbers read and made: time grows about as they do."""


def features_of(shape: LayerShape) -> LayerFeatures:
    """Return the features of a layer."""
    first = shape.layer.nodes[0]
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in first.attribute}
    rest = " ".join(node.op_type for node in shape.layer.nodes[1:] if node.op_type not in _FREE)
    read, made = shape.sizes.get(first.input[0], ()), shape.sizes[first.output[0]]
    if first.op_type in ("Conv", "ConvTranspose"):
        weight = shape.sizes[first.input[1]]
        groups = read[1] // weight[1] if first.op_type == "Conv" else made[1] // weight[1]
        way = "full" if groups == 1 else "depthwise" if groups == read[1] else "grouped"
        strides = attributes.get("strides", [1])
        dilations = attributes.get("dilations", [1])
        kernel = "x".join(map(str, weight[2:]))
        kind = f"{first.op_type} {way} {kernel} /{strides[0]} d{dilations[0]} {rest}".strip()
        channels = (read[1],) if way == "depthwise" else (read[1], made[1])
        sizes = _logs(*channels, math.prod(made) // made[1], math.prod(weight[2:]), math.prod(strides))
        return LayerFeatures(f"{first.op_type} {way}", kind, sizes, max(shape.multiply_adds, 1))
    if first.op_type in WEIGHTED:
        is_constant = "" if first.input[1] in shape.layer.activations else " by weights"
        rows = max(math.prod(made) // max(made[-1], 1), 1)
        kind = f"{first.op_type}{is_constant} {rest}".strip()
        inner = max(shape.multiply_adds // max(math.prod(made), 1), 1)
        return LayerFeatures(f"product{is_constant}", kind, _logs(rows, inner, made[-1]), max(shape.multiply_adds, 1))
    window = " ".join(map(str, attributes.get("kernel_shape", [])))
    kind = f"{first.op_type} {window}".strip()
    return LayerFeatures(OTHER, kind, _logs(shape.elements), max(shape.elements, 1))


def border_of(op: str, elements: int) -> LayerFeatures:
    """Return the features of a pass over a tensor between two layers."""
    return LayerFeatures(BORDER, op, _logs(elements), max(elements, 1))


def _logs(*numbers: int) -> tuple[float, ...]:
    return tuple(math.log2(max(number, 1)) for number in numbers)
