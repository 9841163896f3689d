"""ONNX Runtime's integer ops as float ops between DequantizeLinear and QuantizeLinear, for engines that have none.

    QLinearConv(x, w, b)  ->  QuantizeLinear(Conv(DequantizeLinear(x), DequantizeLinear(w), DequantizeLinear(b)))

with the same grids. What runs with channels last there stands between two Transposes here; a writer that follows orders
of axes leaves them out.
Source: ONNX QLinearConv-10, QLinearMatMul-10; ONNX Runtime's contrib ops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from edgeopt.graph.graph import Graph, Node, Value, attribute

_CONTRIB = "com.microsoft"
_TO_FIRST, _TO_LAST = (0, 3, 1, 2), (0, 2, 3, 1)
_OURS = ("channels_last",)
"""Attributes that the float op does not have."""


def split_integer_ops(graph: Graph) -> None:
    """Write float ops and pairs in the place of integer ops, in place; shapes are derived anew."""
    rules: Mapping[str, Callable[[Graph, Node], Value]] = {
        "QLinearConv": _convolution,
        "QLinearMatMul": _binary("MatMul"),
        "QLinearAdd": _binary("Add"),
        "QLinearMul": _binary("Mul"),
        "QLinearSigmoid": _sigmoid,
        "MatMulIntegerToFloat": _product,
        "NhwcMaxPool": _pool,
        "QuickGelu": _quick_gelu,
    }
    nodes = [node for node in graph.nodes() if node.op_type in rules and node.domain in ("", "ai.onnx", _CONTRIB)]
    for node in nodes:
        made = rules[node.op_type](graph, node)
        maker = graph.producer(made)
        assert maker is not None
        graph.bypass(node, keep=maker)
    if nodes:
        graph.remove_unused()
        graph.infer_shapes()


def _add(graph: Graph, node: Node, op: str, inputs: Sequence[Value | None], **attributes: Any) -> Value:
    return graph.insert(op, inputs, attributes, before=node, name=f"{node.name}_{op}").outputs[0]


def _floats(graph: Graph, node: Node, place: int, grid: int, *, axis: int | None = None) -> Value:
    """Return an integer input as floats; its scale and zero point are inputs, the first at `grid`."""
    scale = graph.constant(node.inputs[grid])
    options = {"axis": axis} if axis is not None and scale is not None and scale.size > 1 else {}
    return _add(graph, node, "DequantizeLinear", [node.inputs[place], *_parts(graph, node, grid)], **options)


def _parts(graph: Graph, node: Node, grid: int, zero: int | None = None) -> list[Value | None]:
    """Return scale and zero point as DequantizeLinear has them: single ones without axes."""
    made = list[Value | None]()
    for place in (grid, grid + 1 if zero is None else zero):
        value = node.inputs[place] if place < len(node.inputs) else None
        array = graph.constant(value)
        is_row = array is not None and array.ndim == 1 and array.size == 1
        if array is not None and is_row:
            value = graph.add_initializer(f"{node.name}_grid", array.reshape(()))
        made.append(value)
    return made if made[1] is not None else made[:1]


def _whole(graph: Graph, node: Node, value: Value, grid: int) -> Value:
    return _add(graph, node, "QuantizeLinear", [value, *_parts(graph, node, grid)])


def _turned(graph: Graph, node: Node, value: Value, order: tuple[int, ...], *, is_turned: bool) -> Value:
    return _add(graph, node, "Transpose", [value], perm=order) if is_turned else value


def _attributes(node: Node) -> dict[str, Any]:
    return {name: value.value for name, value in node.attributes.items() if name not in _OURS}


def _convolution(graph: Graph, node: Node) -> Value:
    is_last = bool(attribute(node, "channels_last", 0))
    x = _turned(graph, node, _floats(graph, node, 0, 1), _TO_FIRST, is_turned=is_last)
    inputs = [x, _floats(graph, node, 3, 4, axis=0)]
    sums = graph.constant(node.inputs[8]) if len(node.inputs) > 8 else None
    grids = graph.constants([node.inputs[1], node.inputs[4]])
    if sums is not None and grids is not None:
        bias = sums.astype(np.float64) * (grids[0].astype(np.float64).reshape(()) * grids[1].astype(np.float64))
        inputs.append(graph.add_initializer(f"{node.name}_bias", bias.astype(np.float32)))
    made = _turned(graph, node, _add(graph, node, "Conv", inputs, **_attributes(node)), _TO_LAST, is_turned=is_last)
    return _whole(graph, node, made, 6)


def _binary(op: str) -> Callable[[Graph, Node], Value]:
    def split(graph: Graph, node: Node) -> Value:
        inputs = [_floats(graph, node, 0, 1), _floats(graph, node, 3, 4)]
        return _whole(graph, node, _add(graph, node, op, inputs), 6)

    return split


def _sigmoid(graph: Graph, node: Node) -> Value:
    return _whole(graph, node, _add(graph, node, "Sigmoid", [_floats(graph, node, 0, 1)]), 3)


def _product(graph: Graph, node: Node) -> Value:
    x, weight = (
        _add(graph, node, "DequantizeLinear", [node.inputs[place], *_parts(graph, node, place + 2, place + 4)], **axis)
        for place, axis in ((0, {}), (1, _columns(graph, node)))
    )
    made = _add(graph, node, "MatMul", [x, weight])
    bias = node.inputs[6] if len(node.inputs) > 6 else None
    return made if bias is None else _add(graph, node, "Add", [made, bias])


def _columns(graph: Graph, node: Node) -> dict[str, int]:
    scale = graph.constant(node.inputs[3])
    return {"axis": 1} if scale is not None and scale.size > 1 else {}


def _pool(graph: Graph, node: Node) -> Value:
    x = node.inputs[0]
    assert x is not None
    pooled = _add(graph, node, "MaxPool", [_turned(graph, node, x, _TO_FIRST, is_turned=True)], **_attributes(node))
    return _turned(graph, node, pooled, _TO_LAST, is_turned=True)


def _quick_gelu(graph: Graph, node: Node) -> Value:
    """Write x * sigmoid(alpha * x)."""
    x, alpha = node.inputs[0], attribute(node, "alpha", 1.702)
    inner = x
    if alpha != 1:
        factor = graph.add_initializer(f"{node.name}_alpha", np.array(alpha, np.float32))
        inner = _add(graph, node, "Mul", [x, factor])
    return _add(graph, node, "Mul", [x, _add(graph, node, "Sigmoid", [inner])])
