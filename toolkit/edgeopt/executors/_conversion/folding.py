"""Nodes that can be computed before the model runs, as their shapes are known: exporters leave them in."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from edgeopt.graph.gelu import INSIDE, gelus
from edgeopt.graph.graph import Graph, Node

_MOST_NUMBERS = 1 << 24
"""Numbers that a folded tensor may hold; more is no shape and no table of positions."""
_NEVER = ("DequantizeLinear", "QuantizeLinear", "Constant")
_ROUNDS = 8
"""Each shape that becomes known may make others known; nests of them are shallow."""


def fold(graph: Graph) -> None:
    """Replace what is constant by constants, in place, and derive shapes from them."""
    graph.infer_shapes()
    for _ in range(_ROUNDS):
        folded = [node for node in graph.nodes() if _fold_node(graph, node)]
        if not folded:
            return
        graph.remove_unused()
        graph.infer_shapes()


def join_gelus(graph: Graph) -> None:
    """Make one Gelu of each Gaussian error linear unit that is written out, in place: engines have a kernel for it.

    The op is ONNX Runtime's (`com.microsoft`), as ONNX has one since opset 20 only.
    """
    for unit in gelus(graph, *INSIDE):
        attributes = {"approximate": "tanh"} if unit.function.op_type == "Tanh" else {}
        made = graph.insert("Gelu", [unit.x], attributes, domain="com.microsoft", before=unit.last, name="gelu")
        made.outputs[0].shape, made.outputs[0].type = unit.x.shape, unit.x.type
        graph.bypass(unit.last, keep=made)
    graph.remove_unused()


def _fold_node(graph: Graph, node: Node) -> bool:
    if node.op_type in _NEVER or node.domain not in ("", "ai.onnx") or len(node.outputs) != 1:
        return False
    if any(graph.is_output(output) for output in node.outputs):
        return False
    if node.op_type in _BY_SHAPE:
        shape = graph.shape(node.inputs[0])
        made = None if shape is None else _BY_SHAPE[node.op_type](np.array(shape, np.int64), _attributes(node))
    else:
        arrays = graph.constants(node.inputs) if _is_small(graph, node) else None
        made = None if arrays is None or not arrays else _computed(graph, node, arrays)
    if made is None:
        return False
    graph.replace(node.outputs[0], graph.add_initializer(str(node.outputs[0].name), made))
    return True


def _is_small(graph: Graph, node: Node) -> bool:
    """Whether what a node makes is known to be small before it is computed."""
    shape = graph.shape(node.outputs[0])
    if node.op_type == "ConstantOfShape" and (sizes := graph.constant(node.inputs[0])) is not None:
        shape = tuple(int(size) for size in sizes.reshape(-1))
    return shape is None or math.prod(shape) <= _MOST_NUMBERS


def _attributes(node: Node) -> Mapping[str, Any]:
    return {name: value.value for name, value in node.attributes.items()}


def _shape(shape: NDArray[np.int64], attributes: Mapping[str, Any]) -> NDArray[np.int64]:
    return shape[attributes.get("start", 0) : attributes.get("end", len(shape))]


def _size(shape: NDArray[np.int64], attributes: Mapping[str, Any]) -> NDArray[np.int64]:
    del attributes
    return np.array(shape.prod(), np.int64)


_BY_SHAPE: Mapping[str, Callable[[NDArray[np.int64], Mapping[str, Any]], NDArray[np.int64]]] = {
    "Shape": _shape,
    "Size": _size,
}


def _computed(graph: Graph, node: Node, arrays: list[NDArray[Any]]) -> NDArray[Any] | None:
    """Return what a node makes of constants; None where the reference cannot say."""
    proto: onnx.NodeProto = ir.to_proto(node)
    names = [name for name in proto.input if name]
    if len(names) != len(arrays):
        return None
    values = {name: numpy_helper.from_array(np.asarray(array), name) for name, array in zip(names, arrays, strict=True)}
    inner = helper.make_graph(
        [proto],
        "node",
        [],
        [helper.make_tensor_value_info(proto.output[0], onnx.TensorProto.UNDEFINED, None)],
        list(values.values()),
    )
    model = helper.make_model(inner, opset_imports=[helper.make_opsetid("", graph.opset)])
    try:
        made: Any = next(iter(ReferenceEvaluator(model).run(None, {})))
    except Exception:  # of any class, by op: the node stays
        return None
    return np.asarray(made) if isinstance(made, (np.ndarray, np.generic)) else None
