"""Write weighted layers as ONNX Runtime's integer ops in NHWC: QLinearConv, and one product for a 1x1 convolution."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import numpy as np

from edgeopt.graph.graph import AttributeValue, Graph, Node, Value, attribute
from edgeopt.steps.quantize.formats._layouts import Forms
from edgeopt.steps.quantize.formats.qdq import limiter_behind
from edgeopt.steps.quantize.grids.affine import Affine
from edgeopt.steps.quantize.grids.weights import QuantizedWeight, quantize_bias, smallest_scale_for_bias
from edgeopt.steps.quantize.patterns import key, name_of, silu_sigmoid
from edgeopt.steps.quantize.scheme import Scheme
from edgeopt.steps.quantize.spatial import is_pointwise

_MICROSOFT = "com.microsoft"
_CONV_ATTRIBUTES = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")


class LayerWriter:
    """A graph on its way to integers in NHWC, and how its layers with weights are written."""

    def __init__(self, graph: Graph, scheme: Scheme) -> None:
        self.graph, self.scheme, self.options = graph, scheme, scheme.options
        self.forms = Forms(graph)

    def grid(self, value: Value) -> Affine:
        """Return the grid of a tensor."""
        return self.scheme.affines[name_of(value)]

    def insert(
        self,
        op: str,
        inputs: Sequence[Value | None],
        like: Node,
        attributes: Mapping[str, AttributeValue] | None = None,
        domain: str = _MICROSOFT,
    ) -> Value:
        """Add a node named after the one it stands for, so that its time can be told."""
        made = self.graph.insert(op, inputs, attributes, domain=domain, name=f"{key(like)}_{op}")
        return made.outputs[0]

    def convolution(self, node: Node) -> bool:
        """Write a convolution on integers; return whether it is one that runs on them."""
        direct = key(node) in self.scheme.float_sums
        if not (direct or self.scheme.is_integer(node)) or not has_kernel(self.graph, node):
            return False
        source = node.inputs[0]
        assert source is not None
        grid = self.grid(source)
        if direct or self._may_be_direct(node):
            self.forms.put_float(node.outputs[0], self._pointwise(node, self.forms.integer(source, grid), grid))
            return True
        limiter = limiter_behind(self.graph, self.scheme, node)
        made = (limiter or node).outputs[0]
        to = self.grid(made)
        integers = self._integer_conv(node, self.forms.integer(source, grid), grid, to)
        self.forms.put_integer(made, to, integers)
        return True

    def _may_be_direct(self, node: Node) -> bool:
        sums = math.prod(self.graph.shape(node.outputs[0]) or (self.options.direct_up_to + 1,))
        return sums <= self.options.direct_up_to and is_pointwise(self.graph, node) and self._is_read_as_float(node)

    def _is_read_as_float(self, node: Node) -> bool:
        """Whether what follows is computed in float anyway."""
        made = node.outputs[0]
        readers = self.graph.consumers(made)
        smooth = any(silu_sigmoid(self.graph, reader) is not None for reader in readers)
        return smooth and not self.options.integer_silu

    def _weights(self, node: Node, grid: Affine) -> tuple[QuantizedWeight, np.ndarray]:
        weight = self.graph.constant(node.inputs[1])
        bias = self.graph.constant(node.inputs[2]) if len(node.inputs) > 2 else None
        assert weight is not None
        real_bias = self.scheme.biases.get(key(node), np.zeros(weight.shape[0], np.float32) if bias is None else bias)
        smallest = smallest_scale_for_bias(real_bias, grid.scale)
        return self.scheme.quantized_weight(self.graph, node, smallest), real_bias

    def _integer_conv(self, node: Node, integers: Value, grid: Affine, to: Affine) -> Value:
        weight, bias = self._weights(node, grid)
        add = self.graph.add_initializer
        stored: list[Value | None] = [
            add(f"{node.name}_weight", weight.values),
            add(f"{node.name}_weight_scale", weight.scale),
            add(f"{node.name}_weight_zero_point", np.zeros(weight.scale.shape, np.int8)),
        ]
        sums = add(f"{node.name}_bias", quantize_bias(bias, grid.scale, weight.scale))
        kept = {"channels_last": 1, **written(node, _CONV_ATTRIBUTES)}
        inputs = [integers, *self.forms.grid(grid), *stored, *self.forms.grid(to), sums]
        return self.insert("QLinearConv", inputs, node, kept)

    def _pointwise(self, node: Node, integers: Value, grid: Affine) -> Value:
        """A 1x1 convolution in NHWC is one matrix product over all positions."""
        weight, bias = self._weights(node, grid)
        scale, zero = self.forms.grid(grid)
        add = self.graph.add_initializer
        matrix = np.ascontiguousarray(weight.values[:, :, 0, 0].T)
        inputs = [
            integers,
            add(f"{node.name}_weight", matrix),
            scale,
            add(f"{node.name}_weight_scale", weight.scale),
            zero,
            add(f"{node.name}_weight_zero_point", np.zeros(weight.scale.shape, np.int8)),
            add(f"{node.name}_bias", bias.astype(np.float32)),
        ]
        return self.insert("MatMulIntegerToFloat", inputs, node)


def written(node: Node, names: Iterable[str]) -> dict[str, AttributeValue]:
    """Return those attributes of a node that are written."""
    result: dict[str, AttributeValue] = {}
    for name in names:
        if (value := attribute(node, name, cast("AttributeValue | None", None))) is not None:
            result[name] = value
    return result


def has_kernel(graph: Graph, node: Node) -> bool:
    """Whether the engine has an integer op for a convolution: of pictures, not of series or volumes."""
    weight = graph.constant(node.inputs[1]) if node.op_type == "Conv" else None
    return weight is not None and weight.ndim == 4
