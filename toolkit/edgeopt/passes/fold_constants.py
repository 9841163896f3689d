"""Compute nodes that read only constants, where the result needs no more bytes than what it replaces.

A Constant node becomes an initializer. DequantizeLinear stays: it is how a quantized weight is stored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx_ir import AttributeType, to_proto

from edgeopt.graph.graph import Array, Graph, Node
from edgeopt.passes import Pass, Phase

_FREE_BYTES = 1024
"""A result up to this size is folded even if it frees nothing: shapes, scales, bounds."""
_KEPT = frozenset(
    {
        *("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"),
        *("RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli"),
    }
)


def fold_constants(graph: Graph) -> int:
    """Return how many nodes became constants."""
    folded = 0
    for node in graph.nodes():
        if len(node.outputs) != 1 or node.domain not in ("", "ai.onnx") or graph.is_output(node.outputs[0]):
            continue
        array = graph.constant(node.outputs[0]) if node.op_type == "Constant" else _compute(graph, node)
        if array is not None:
            name = node.outputs[0].name or node.op_type
            folded += graph.bypass(node, keep=graph.add_initializer(name, array))
    if folded:
        graph.remove_unused()
    return folded


def _compute(graph: Graph, node: Node) -> Array | None:
    values = [value for value in node.inputs if value is not None]
    arrays = graph.constants(values)
    if not arrays or node.op_type in _KEPT or _has_subgraph(node) or not _fits(graph, node, arrays):
        return None
    named = {str(value.name): array for value, array in zip(values, arrays, strict=True)}
    try:
        with np.errstate(all="ignore"):
            result = ReferenceEvaluator(_alone(node, named, graph.opset)).run(None, named)
    except Exception:  # the evaluator raises whatever NumPy does; the node then stays
        return None
    first = next(iter(result), None)
    return np.asarray(first) if isinstance(first, np.ndarray | np.generic) else None


def _has_subgraph(node: Node) -> bool:
    return any(attribute.type in (AttributeType.GRAPH, AttributeType.GRAPHS) for attribute in node.attributes.values())


def _alone(node: Node, named: Mapping[str, Array], opset: int) -> onnx.ModelProto:
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in named.items()
    ]
    output = onnx.ValueInfoProto(name=node.outputs[0].name or "")
    graph = helper.make_graph([to_proto(node)], "fold", inputs, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def _fits(graph: Graph, node: Node, arrays: list[Array]) -> bool:
    """Whether the result is no larger than what becomes unused, known before anything is computed."""
    shape, dtype = graph.shape(node.outputs[0]), graph.dtype(node.outputs[0])
    if shape is None or dtype is None:
        return False
    values = [value for value in node.inputs if value is not None]
    freed = sum(array.nbytes for value, array in zip(values, arrays, strict=True) if graph.is_used_once(value))
    return math.prod(shape) * dtype.itemsize <= max(freed, _FREE_BYTES)


PASS = Pass(fold_constants, Phase.SIMPLIFY)
