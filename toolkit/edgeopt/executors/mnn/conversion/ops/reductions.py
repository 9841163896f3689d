"""Sums, means and largest numbers along axes, and what is divided by them."""

from __future__ import annotations

import math

import numpy as np

from edgeopt.executors._conversion.reduced_axes import reduced_axes
from edgeopt.executors.mnn.conversion.ops import Rewrite
from edgeopt.executors.mnn.conversion.rewriting import MnnGraph
from edgeopt.graph.graph import Node, Value, attribute

_OPSET_OF_INPUTS = 18
_OPSET_OF_SOFTMAX_AXIS = 13


def _reduce(graph: MnnGraph, node: Node, op: str, value: Value, axes: tuple[int, ...]) -> Value:
    """Return a reduction that keeps its axes; each form of axes stands where the opset has it."""
    shape = [1 if axis in axes else size for axis, size in enumerate(graph.shape(value))]
    if op == "ReduceSum" or graph.graph.opset >= _OPSET_OF_INPUTS:
        return graph.add(node, op, [value, np.array(axes, np.int64)], shape, keepdims=1)
    return graph.add(node, op, [value], shape, axes=axes, keepdims=1)


def _reduced(op: str, before: str = "", behind: str = "") -> Rewrite:
    """Write a reduction along axes in numbers, of what a function makes, and another function of the result."""

    def rewrite(graph: MnnGraph, node: Node) -> None:
        value = node.inputs[0]
        assert value is not None
        axes = reduced_axes(graph.graph, node, len(graph.shape(value)))
        if axes is None:
            raise graph.refuse(node, "along computed axes, or none")
        if before:
            inputs = [value, value] if before == "Mul" else [value]
            value = graph.add(node, before, inputs, graph.shape(value))
        made = _reduce(graph, node, op, value, axes)
        if behind:
            made = graph.add(node, behind, [made], graph.shape(made))
        graph.put(node, graph.reshaped(node, made, graph.shape(node.outputs[0])))

    return rewrite


def _place(graph: MnnGraph, node: Node) -> None:
    if attribute(node, "select_last_index", 0):
        raise graph.refuse(node, "of the last place")
    rank = len(graph.shape(node.inputs[0]))
    axis, keeps = attribute(node, "axis", 0) % rank, attribute(node, "keepdims", 1)
    shape = graph.shape(node.outputs[0])
    graph.put(node, graph.add(node, node.op_type, [node.inputs[0]], shape, axis=axis, keepdims=keeps))


def _flat(graph: MnnGraph, node: Node) -> tuple[Value, int]:
    """Return what a softmax is over and its axis: before opset 13 it is over all axes from one on."""
    value, shape = node.inputs[0], graph.shape(node.inputs[0])
    assert value is not None
    is_flat = graph.graph.opset < _OPSET_OF_SOFTMAX_AXIS
    axis = attribute(node, "axis", 1 if is_flat else -1) % len(shape)
    if is_flat and math.prod(shape[axis + 1 :]) != 1:
        return graph.reshaped(node, value, (*shape[:axis], math.prod(shape[axis:]))), axis
    return value, axis


def _softmax(graph: MnnGraph, node: Node) -> None:
    value, axis = _flat(graph, node)
    made = graph.add(node, "Softmax", [value], graph.shape(value), axis=axis)
    graph.put(node, graph.reshaped(node, made, graph.shape(node.outputs[0])))


def _log_softmax(graph: MnnGraph, node: Node) -> None:
    """Write x - m - log(sum(exp(x - m))): the converter dies of the node itself."""
    value, axis = _flat(graph, node)
    shape = graph.shape(value)
    apart = graph.add(node, "Sub", [value, _reduce(graph, node, "ReduceMax", value, (axis,))], shape)
    total = _reduce(graph, node, "ReduceSum", graph.add(node, "Exp", [apart], shape), (axis,))
    made = graph.add(node, "Sub", [apart, graph.add(node, "Log", [total], graph.shape(total))], shape)
    graph.put(node, graph.reshaped(node, made, graph.shape(node.outputs[0])))


OPS = {
    **{op: _reduced(op) for op in ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd")},
    "ReduceL1": _reduced("ReduceSum", "Abs"),
    "ReduceL2": _reduced("ReduceSum", "Mul", "Sqrt"),
    "ReduceSumSquare": _reduced("ReduceSum", "Mul"),
    "ArgMax": _place,
    "ArgMin": _place,
    "Softmax": _softmax,
    "LogSoftmax": _log_softmax,
}
OTHER_TYPES = dict.fromkeys(("ArgMax", "ArgMin"), frozenset({"float32", "int64"}))
