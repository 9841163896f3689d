"""Which operators make a tensor's values, and which stands in front of them: it tells readings of an output apart."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Set

import onnx

from edgeopt.graph.subgraphs import subgraphs

_KEEP_VALUES = frozenset(
    {"Cast", "Concat", "DequantizeLinear", "Flatten", "Gather", "Identity", "QuantizeLinear", "ReduceMean", "Reshape"}
    | {"Slice", "Squeeze", "Transpose", "Unsqueeze"}
)
"""Operators whose outputs are values of their first input, or means of them."""


_SHIFTS = frozenset({"Add", "BatchNormalization"})
"""Operators that some exporters write behind a layer in place of its bias: one of their inputs is stored."""


_FIRST_RESULT = {"If": 0, "Loop": 1, "Scan": 0}
"""Where a subgraph returns the node's first output: a Loop's returns first whether to go on."""


def nodes_by_output(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto]:
    """Return the node that makes each tensor of a graph, by the tensor's name."""
    return {name: node for node in graph.node for name in node.output}


def maker_of(name: str, makers: ChainMap[str, onnx.NodeProto]) -> str:
    """Return the operator that makes a tensor's values; empty where none does, If where its branches differ."""
    seen = set[str]()
    while name in makers and name not in seen:
        seen.add(name)
        node = makers[name]
        if node.op_type in _FIRST_RESULT:
            place = list(node.output).index(name) + _FIRST_RESULT[node.op_type]
            inner = [subgraph for subgraph in subgraphs([node]) if place < len(subgraph.output)]
            result = {maker_of(graph.output[place].name, makers.new_child(nodes_by_output(graph))) for graph in inner}
            return result.pop() if len(result) == 1 else str(node.op_type)
        if node.op_type not in _KEEP_VALUES or not node.input:
            return str(node.op_type)
        name = node.input[0]
    return ""


def maker_before(name: str, makers: Mapping[str, onnx.NodeProto], given: Set[str]) -> str:
    """Return the operator in front of the one that makes a tensor's values; empty where none is.

    Args:
        name: Of the tensor.
        makers: The nodes by their outputs.
        given: Inputs of the graph.
    """
    for passed in (_KEEP_VALUES, _KEEP_VALUES | _SHIFTS):
        seen = set[str]()
        while (node := makers.get(name)) is not None and node.op_type in passed and node.input and name not in seen:
            seen.add(name)
            changing = [value_info for value_info in node.input if not _is_constant(value_info, makers, given)]
            if node.op_type in _SHIFTS and len(changing) > 1:
                break
            name = changing[0] if node.op_type in _SHIFTS and changing else node.input[0]
        if node is None or not node.input:
            return ""
        last, name = node, node.input[0]
    return str(last.op_type)


def _is_constant(name: str, makers: Mapping[str, onnx.NodeProto], given: Set[str]) -> bool:
    """Return whether a tensor is stored in the graph, or only another view of one that is."""
    seen = set[str]()
    while name in makers and name not in seen:
        seen.add(name)
        if makers[name].op_type == "Constant":
            return True
        if makers[name].op_type not in _KEEP_VALUES or not makers[name].input:
            return False
        name = makers[name].input[0]
    return name not in given
