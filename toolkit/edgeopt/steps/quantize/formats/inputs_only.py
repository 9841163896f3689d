"""Write a scheme as QuantizeLinear and DequantizeLinear pairs on what weighted integer nodes read, and nowhere else.

A pair goes in front of ops between that only move values: it is the same there, and OpenVINO makes it part of a kernel.

OpenVINO computes a convolution from integers to floats and does activation and the next QuantizeLinear in the
same kernel; a pair behind the convolution would only lose accuracy. ONNX Runtime fuses nothing in this form.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

import numpy as np

from edgeopt.graph.graph import Graph, Node, Value
from edgeopt.steps.quantize.formats._pairs import add_grid, store_integers
from edgeopt.steps.quantize.grids.affine import Affine
from edgeopt.steps.quantize.patterns import WEIGHTED, key, name_of, weight_axis
from edgeopt.steps.quantize.scheme import Scheme
from edgeopt.steps.quantize.spatial import moves_pixels

_MOVERS = ("MaxPool", "Concat", "Resize")
"""Ops that move values and make none, Resize if it takes the nearest; OpenVINO runs them on bytes."""


def place_inputs(graph: Graph, scheme: Scheme) -> Mapping[str, int]:
    """Insert the pairs, in place; return how many weighted nodes and tensors were quantized.

    Args:
        graph: The float model, opset 13 or later; it is edited.
        scheme: What runs on integers; only weighted nodes count, everything between them stays in float.
    """
    read = tensors_read(graph, scheme)
    readers = {
        name: [node for node in _weighted(graph, scheme) if node.inputs[0] is other] for name, other in read.items()
    }
    for node in _weighted(graph, scheme):
        _quantize_weights(graph, node, scheme)
    for name, value in read.items():
        _insert_pair(graph, value, [(node, 0) for node in readers[name]], scheme.affines[name])
    graph.remove_unused()
    return {"weighted nodes on integers": sum(map(len, readers.values())), "tensors quantized": len(read)}


def tensors_read(graph: Graph, scheme: Scheme) -> dict[str, Value]:
    """Return the tensors that get a pair: the data of weighted integer nodes."""
    data = (node.inputs[0] for node in _weighted(graph, scheme))
    return {name_of(value): value for value in data if value is not None}


def readers_of(graph: Graph, red: Set[str]) -> set[Node]:
    """Return the weighted nodes that read a tensor of `red`; in this form what makes it keeps floats.

    Args:
        graph: The float model.
        red: Names of tensors that must not be quantized.
    """
    weighted = graph.nodes(*WEIGHTED)
    return {node for node in weighted if node.inputs[0] is not None and name_of(node.inputs[0]) in red}


def _weighted(graph: Graph, scheme: Scheme) -> list[Node]:
    return [node for node in graph.nodes(*WEIGHTED) if scheme.is_integer(node)]


def _quantize_weights(graph: Graph, node: Node, scheme: Scheme) -> None:
    """Store the weight as integers; a corrected bias in float."""
    value = node.inputs[1]
    weight = graph.constant(value)
    assert value is not None
    assert weight is not None
    axis = weight_axis(node) % weight.ndim
    quantized = scheme.quantized_weight(graph, node)
    store_integers(graph, node, 1, quantized.values, quantized.scale, axis)
    bias = scheme.biases.get(key(node))
    if bias is not None and len(node.inputs) > 2:
        graph.set_input(node, 2, graph.add_initializer(f"{node.name}_bias", bias.astype(np.float32)))


def _insert_pair(graph: Graph, value: Value, edges: list[tuple[Node, int]], grid: Affine) -> None:
    """Let `edges`, nodes and places among their inputs, read `value` rounded to a grid.

    Rounding does not care whether it happens before or behind an op that only moves values. Before it, OpenVINO does it
    in the kernel of the convolution that makes them, and moves bytes; so where nothing else reads what such an op reads
    and makes, the pair goes in front of it.
    """
    moved = _moved_into(graph, value, {node for node, _ in edges})
    for place, other in enumerate(moved):
        _insert_pair(graph, other, [(graph.consumers(other)[0], place)], grid)
    if not moved:
        real = _rounded(graph, value, grid)
        for node, place in edges:
            graph.set_input(node, place, real)


def _moved_into(graph: Graph, value: Value, readers: Set[Node]) -> list[Value]:
    """Return what an op that moves values makes `value` of; none unless `readers` alone read it, and it its inputs."""
    node = graph.producer(value)
    if node is None or node.op_type not in _MOVERS or len(node.outputs) > 1:
        return []
    if node.op_type == "Resize" and not moves_pixels(node):
        return []
    data = node.inputs if node.op_type == "Concat" else node.inputs[:1]
    alone = set(graph.consumers(value)) == readers and not graph.is_output(value)
    made = [other for other in data if other is not None and graph.sole_producer(other) is not None]
    return made if alone and len(made) == len(data) else []


def _rounded(graph: Graph, value: Value, grid: Affine) -> Value:
    name = name_of(value)
    numbers = add_grid(graph, name, grid)
    integers = graph.insert("QuantizeLinear", [value, *numbers], name=f"{name}_quantize").outputs[0]
    return graph.insert("DequantizeLinear", [integers, *numbers], name=f"{name}_dequantize").outputs[0]
