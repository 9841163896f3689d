"""Write a scheme as QuantizeLinear and DequantizeLinear pairs, in the places where ONNX Runtime fuses them.

Weights are stored as INT8 with a DequantizeLinear per channel: float weights between a DequantizeLinear and a
QuantizeLinear would be quantized per tensor by ONNX Runtime itself. Convolutions are quantized on both sides,
or they stay unfused.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edgeopt.graph.graph import Graph, Node, Value
from edgeopt.steps.quantize.formats._float_guards import guarded_layers
from edgeopt.steps.quantize.formats._pairs import add_grid, store_integers
from edgeopt.steps.quantize.grids.affine import Affine
from edgeopt.steps.quantize.grids.weights import quantize_bias, smallest_scale_for_bias
from edgeopt.steps.quantize.patterns import LIMITERS, WEIGHTED, channel_bias, key, name_of, weight_axis
from edgeopt.steps.quantize.scheme import Scheme, absorbs, data_inputs

_FLOAT_OUTPUT = ("Gemm",)
"""ONNX Runtime multiplies integers straight to float; a grid for the sum would only lose. A MatMul needs one,
or ONNX Runtime joins it with the Add behind it to a float Gemm first."""


def place_qdq(graph: Graph, scheme: Scheme) -> Mapping[str, int]:
    """Insert the pairs, in place; return how many weighted nodes and tensors were quantized.

    Args:
        graph: The float model, opset 13 or later; it is edited.
        scheme: What runs on integers; see `Scheme`.
    """
    grids = scheme.affines
    tensors = quantized_tensors(graph, scheme)
    weighted = [node for node in graph.nodes(*WEIGHTED) if scheme.is_integer(node)]
    for node in weighted:
        _quantize_weights(graph, node, grids[name_of(_data(node))], scheme)
    for value in tensors.values():
        _insert_pair(graph, value, grids[name_of(value)], scheme)
    graph.remove_unused()
    done = {"weighted nodes on integers": len(weighted), "tensors quantized": len(tensors)}
    is_for_onnxruntime = "nhwc" in scheme.rules.forms  # other engines do not round what was left in float
    return {**done, **guarded_layers(graph)} if is_for_onnxruntime else done


def _data(node: Node) -> Value:
    value = node.inputs[0]
    assert value is not None
    return value


def quantized_tensors(graph: Graph, scheme: Scheme) -> dict[str, Value]:
    """Return the tensors that get a pair: what integer nodes read, and what they make."""
    grids = scheme.affines
    values: dict[str, Value] = {}
    for node in graph.nodes():
        if not scheme.is_integer(node):
            continue
        for value in data_inputs(graph, node):
            if not _is_absorbed_input(graph, node, value, grids) and not _is_summed(graph, scheme, value):
                values[name_of(value)] = value
        made = node.outputs[0]
        stays_real = node.op_type in _FLOAT_OUTPUT or _is_summed(graph, scheme, made)
        if not stays_real and not _feeds_absorbed(graph, scheme, made, grids):
            values[name_of(made)] = made
    return values


def _is_summed(graph: Graph, scheme: Scheme, value: Value) -> bool:
    """Whether an integer convolution's output goes straight into a sum, as the one such term that stays in float.

    The other term keeps its pair: the engine reads it as integers and adds it in the convolution's kernel.
    """
    total = graph.sole_consumer(value)
    if not scheme.rules.fused_sums or total is None or total.op_type != "Add" or not scheme.is_integer(total):
        return False
    terms = [input_ for input_ in total.inputs if input_ is not None and graph.sole_consumer(input_) is total]
    summed = [term for term in terms if scheme.is_integer(graph.producer(term, "Conv"))]
    return bool(summed) and summed[0] is value


def _is_absorbed_input(graph: Graph, node: Node, value: Value, grids: Mapping[str, Affine]) -> bool:
    source = graph.sole_producer(value)
    return source is not None and source.op_type == "Conv" and absorbs(graph, node, grids[key(node)])


def _feeds_absorbed(graph: Graph, scheme: Scheme, made: Value, grids: Mapping[str, Affine]) -> bool:
    reader = graph.sole_consumer(made)
    if reader is None or reader.op_type not in LIMITERS or not scheme.is_integer(reader):
        return False
    return _is_absorbed_input(graph, reader, made, grids)


def limiter_behind(graph: Graph, scheme: Scheme, node: Node) -> Node | None:
    """Return the Relu or Clip that saturation of the convolution's output replaces."""
    reader = graph.sole_consumer(node.outputs[0])
    return reader if reader is not None and _feeds_absorbed(graph, scheme, node.outputs[0], scheme.affines) else None


def _quantize_weights(graph: Graph, node: Node, grid: Affine, scheme: Scheme) -> None:
    weight = graph.constant(node.inputs[1])
    assert weight is not None
    axis = weight_axis(node) % weight.ndim
    bias = scheme.biases.get(key(node), channel_bias(graph, node))
    store_bias = bias is not None and not scheme.rules.float_bias
    smallest = smallest_scale_for_bias(bias, grid.scale) if store_bias and bias is not None else None
    quantized = scheme.quantized_weight(graph, node, smallest)
    store_integers(graph, node, 1, quantized.values, quantized.scale, axis)
    if scheme.rules.float_bias and key(node) in scheme.biases:
        graph.set_input(node, 2, scheme.biases[key(node)])
    if store_bias and bias is not None:
        steps = quantize_bias(bias, grid.scale, quantized.scale)
        store_integers(graph, node, 2, steps, np.float32(grid.scale) * quantized.scale, 0)


def _insert_pair(graph: Graph, value: Value, grid: Affine, scheme: Scheme) -> None:
    name = name_of(value)
    readers = [(node, i) for node in graph.consumers(value) for i, input_ in enumerate(node.inputs) if input_ is value]
    grid_values = add_grid(graph, name, grid)
    quantized = graph.insert("QuantizeLinear", [value, *grid_values], name=f"{name}_quantize")
    real = graph.insert("DequantizeLinear", [quantized.outputs[0], *grid_values], name=f"{name}_dequantize").outputs[0]
    made_of_integers = scheme.is_integer(graph.producer(value))
    if made_of_integers and graph.is_output(value):
        graph.replace(value, real)
        graph.set_input(quantized, 0, value)
    for node, index in readers:
        if made_of_integers or scheme.is_integer(node):
            graph.set_input(node, index, real)
