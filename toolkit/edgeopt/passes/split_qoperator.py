"""Write ONNX's integer ops as float ops between DequantizeLinear and QuantizeLinear.

    QLinearConv(x, w, b)  ->  QuantizeLinear(Conv(DequantizeLinear(x), DequantizeLinear(w), DequantizeLinear(b)))

with the same grids, where the scale of b is that of x times that of w. Both are round(sum / scale) + zero point of the
same integers. An engine joins the pairs into the kernels that suit it, and runs a QLinearConv as it stands: with int8
activations ONNX Runtime took four times as long on x86-64. OpenVINO, TensorRT and NPUs read pairs only.
Source: ONNX QLinearConv-10 and QLinearMatMul-10; ONNX Runtime's contrib ops QLinearAdd and QLinearMul.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeopt.graph.graph import Array, Graph, Node, Value
from edgeopt.passes import Pass, Phase

_FLOAT_OPS = {"QLinearConv": "Conv", "QLinearMatMul": "MatMul", "QLinearAdd": "Add", "QLinearMul": "Mul"}
_CONTRIB = "com.microsoft"
_BIAS = 8
"""Its place among the inputs of QLinearConv."""
_OPSET = 13
"""First whose DequantizeLinear knows an axis."""


def split_qoperator(graph: Graph) -> int:
    """Return how many integer ops became a float op between pairs."""
    if graph.opset < _OPSET:
        return 0
    nodes = [*graph.nodes("QLinearConv", "QLinearMatMul"), *graph.nodes("QLinearAdd", "QLinearMul", domain=_CONTRIB)]
    return sum(_split(graph, node) for node in nodes)


def _split(graph: Graph, node: Node) -> bool:
    """Put a float op and its pairs in the place of one integer op; False where its grids have no such form."""
    grids = graph.constants(node.inputs[i] for i in (1, 2, 4, 5, 6, 7)) if len(node.inputs) >= _BIAS else None
    axis = _weight_axis(graph, node)
    if grids is None or any(grid.size > 1 for grid in (*grids[:2], *grids[4:])) or (axis is None and grids[2].size > 1):
        return False
    read = [_dequantized(graph, node, 0, grids[0], grids[1]), _dequantized(graph, node, 3, grids[2], grids[3], axis)]
    bias = node.inputs[_BIAS] if len(node.inputs) > _BIAS else None
    if bias is not None:
        read.append(_dequantized(graph, node, _BIAS, grids[0].reshape(()) * grids[2], None, 0))
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    made = graph.insert(_FLOAT_OPS[node.op_type], read, attributes, before=node, name=str(node.name))
    stored = [_stored(graph, node, grid) for grid in grids[4:]]
    whole = graph.insert("QuantizeLinear", [made.outputs[0], *stored], before=node)
    return graph.bypass(node, keep=whole)


def _weight_axis(graph: Graph, node: Node) -> int | None:
    """Return the axis of the second input that may have several scales; None where there is none."""
    rank = graph.rank(node.inputs[3])
    return 0 if node.op_type == "QLinearConv" else rank - 1 if node.op_type == "QLinearMatMul" and rank else None


def _dequantized(
    graph: Graph, node: Node, place: int, scale: Array, zero_point: Array | None, axis: int | None = None
) -> Value:
    """Return an integer input as floats."""
    zeros = [] if zero_point is None else [np.broadcast_to(zero_point.reshape(-1), scale.reshape(-1).shape)]
    values: Sequence[Value | None] = [node.inputs[place], *(_stored(graph, node, array) for array in (scale, *zeros))]
    attributes = {} if scale.size == 1 or axis is None else {"axis": axis}
    return graph.insert("DequantizeLinear", values, attributes, before=node).outputs[0]


def _stored(graph: Graph, node: Node, grid: Array) -> Value:
    """Store one number as a scalar, several as a list."""
    return graph.add_initializer(f"{node.name}_grid", grid.reshape(()) if grid.size == 1 else grid.reshape(-1))


PASS = Pass(split_qoperator, Phase.FUSE)
