"""Sums, means and extremes over axes."""

from __future__ import annotations

from collections.abc import Callable

from edgeopt.executors.ncnn.conversion.conversion import Conversion
from edgeopt.executors.ncnn.conversion.network import Parameter
from edgeopt.executors.ncnn.conversion.ops.pooling import over_all
from edgeopt.graph.graph import Node, attribute

_KINDS = {
    "ReduceSum": 0,
    "ReduceSumSquare": 2,
    "ReduceMean": 3,
    "ReduceMax": 4,
    "ReduceMin": 5,
    "ReduceProd": 6,
    "ReduceL1": 7,
    "ReduceL2": 8,
}
_POOLED = {"ReduceMean": 1, "ReduceMax": 0}
_OF_ONE = {"ReduceL1": 0, "ReduceL2": 0, "ReduceSumSquare": 4}
"""UnaryOp's absolute value and square."""
_PICTURE = 4


def _of_one(conversion: Conversion, node: Node) -> str:
    """Return the reduction of single numbers."""
    kind = _OF_ONE.get(node.op_type)
    return (
        conversion.blob(node.inputs[0])
        if kind is None
        else conversion.layer(node, "UnaryOp", node.inputs[:1], {0: kind})
    )


def _reduced(kind: int) -> Callable[[Conversion, Node], None]:
    def convert(conversion: Conversion, node: Node) -> None:
        value = node.inputs[0]
        shape = conversion.shape(value)
        numbers = conversion.numbers(node, 1)
        axes = attribute(node, "axes", None) if numbers is None else tuple(int(axis) for axis in numbers.reshape(-1))
        if not axes and attribute(node, "noop_with_empty_axes", 0):
            conversion.set(node.outputs[0], _of_one(conversion, node))
            return
        reduced = sorted({axis % len(shape) for axis in (axes or range(len(shape)))})
        if node.op_type in _POOLED and len(shape) == _PICTURE and shape[0] == 1 and reduced == [2, 3]:
            over_all(conversion, node, _POOLED[node.op_type])
            return
        if len(shape) > 1 and shape[0] == 1:
            reduced = [axis for axis in reduced if axis]
        if not reduced:
            before, after = conversion.dims(value), conversion.dims(node.outputs[0])
            conversion.set(node.outputs[0], conversion.reshaped(node, _of_one(conversion, node), before, after))
            return
        places = tuple(conversion.blob_axis(node, value, axis) for axis in reduced)
        dims = conversion.dims(value)
        kept = tuple(1 if i in places else size for i, size in enumerate(dims))
        parameters: dict[int, Parameter] = {0: kind, 1: 0, 3: places, 4: 1, 5: 1}
        made = conversion.layer(node, "Reduction", [value], parameters)
        conversion.set(node.outputs[0], conversion.reshaped(node, made, kept, conversion.dims(node.outputs[0])))

    return convert


OPS = {name: _reduced(kind) for name, kind in _KINDS.items()}
