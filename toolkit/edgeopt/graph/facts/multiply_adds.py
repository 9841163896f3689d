"""How many numbers a model stores, and how many it multiplies, subgraphs and integer ops included."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import chain

from onnx import GraphProto, NodeProto, shape_inference

from edgeopt.graph.files.outside_weights import without_outside
from edgeopt.graph.model import Model
from edgeopt.graph.subgraphs import stored_tensors, subgraphs, tensors_of

_Shapes = Mapping[str, tuple[int, ...]]
"""Shapes by name, only those whose sizes are all known."""

_WEIGHT_OF = {"Conv": 1, "FusedConv": 1, "NhwcFusedConv": 1, "ConvInteger": 1, "QLinearConv": 3}
"""The place of a convolution's weights among its inputs."""
_PRODUCTS = frozenset({"MatMul", "Gemm", "FusedMatMul", "FusedGemm", "MatMulNBits", "MatMulBnb4", "MatMulInteger"}) | {
    "QLinearMatMul",
    "QGemm",
    "MatMulIntegerToFloat",
    "DynamicQuantizeMatMul",
}
_MIXTURES = frozenset({"MoE", "QMoE"})
"""Mixtures of experts, whose gate and up lie in one matrix each."""
_RECURRENT = frozenset({"LSTM", "GRU", "RNN", "DynamicQuantizeLSTM"})
_REPEATED = frozenset({"Loop", "Scan", "SequenceMap"})
"""Ops that run their subgraph as often as the input says."""


def count_numbers(model: Model) -> int:
    """Return how many numbers are stored: initializers and Constant nodes, those of subgraphs and functions too."""
    functions = (tensors_of(function.node) for function in model.proto.functions)
    return sum(math.prod(stored_tensor.dims) for stored_tensor in chain(stored_tensors(model.proto.graph), *functions))


def count_multiply_adds(model: Model) -> int | None:
    """Return the multiply-adds of convolutions, products and recurrent layers in one run; None where it is not known.

    Of an If the greater branch counts. A shape that is free or not inferred makes it unknown, and so does a Loop that
    multiplies.
    """
    try:
        inferred = shape_inference.infer_shapes(without_outside(model.proto), data_prop=True)
    except (shape_inference.InferenceError, ValueError):
        return None
    return _work_in(inferred.graph, {})


def _work_in(graph: GraphProto, outer: _Shapes) -> int | None:
    """Return the multiply-adds of a graph and its subgraphs."""
    shapes = {**outer, **_known_shapes(graph)}
    total = 0
    for node in graph.node:
        inside = [_work_in(subgraph, shapes) for subgraph in subgraphs([node])]
        work = _work_of(node, shapes)
        if work is None or None in inside or (any(inside) and node.op_type in _REPEATED):
            return None
        total += work + max((one for one in inside if one is not None), default=0)
    return total


def _known_shapes(graph: GraphProto) -> dict[str, tuple[int, ...]]:
    shapes = {constant.name: tuple(constant.dims) for constant in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        if tensor.HasField("shape") and all(size.dim_value > 0 for size in tensor.shape.dim):
            shapes.setdefault(value.name, tuple(size.dim_value for size in tensor.shape.dim))
    for node in graph.node:
        if node.op_type == "Constant" and node.output and node.attribute and node.attribute[0].name == "value":
            shapes[node.output[0]] = tuple(node.attribute[0].t.dims)
    return shapes


def _work_of(node: NodeProto, shapes: _Shapes) -> int | None:
    """Return the multiply-adds of one node, None when a shape that it takes is unknown."""

    def shape(place: int) -> tuple[int, ...] | None:
        return shapes.get(node.input[place]) if place < len(node.input) else None

    out = shapes.get(node.output[0]) if node.output else None
    if node.op_type in _WEIGHT_OF:
        weight = shape(_WEIGHT_OF[node.op_type])
        return math.prod(out) * math.prod(weight[1:]) if out and weight else None
    if node.op_type == "ConvTranspose":
        data, weight = shape(0), shape(1)
        return math.prod(data) * math.prod(weight[1:]) if data and weight else None
    if node.op_type in _MIXTURES:
        up = shape(2)  # (experts, 2 * neurons, ...): gate and up of a chosen expert, and down, which is half as large
        chosen = next((attribute.i for attribute in node.attribute if attribute.name == "k"), 1)
        return math.prod(out) * chosen * up[1] * 3 // 2 if out is not None and up else None
    if node.op_type in _PRODUCTS:
        data = shape(0)
        transposed = any(attribute.name == "transA" and attribute.i for attribute in node.attribute)
        return math.prod(out) * data[-2 if transposed else -1] if out is not None and data else None
    if node.op_type in _RECURRENT:
        data, weight, again = shape(0), shape(1), shape(2)
        # Every stored number meets each step of each sequence once.
        return math.prod(data[:2]) * (math.prod(weight) + math.prod(again)) if data and weight and again else None
    return 0
