"""Functions of single numbers."""

from __future__ import annotations

import numpy as np

from edgeopt.executors.mnn.conversion.ops import ANY_TYPE, as_it_is
from edgeopt.executors.mnn.conversion.rewriting import MnnGraph
from edgeopt.graph.graph import Node, attribute

_ROOT = np.array(np.sqrt(0.5), np.float32)
_HALF = np.array(0.5, np.float32)
_TANH = np.array(np.sqrt(2 / np.pi), np.float32), np.array(0.044715, np.float32)


def _limits(graph: MnnGraph, node: Node) -> None:
    """Write both limits in numbers; where the upper one lies below the lower, it holds."""
    least, most = (graph.numbers(node, place) for place in (1, 2))
    low = -np.inf if least is None else float(least.reshape(()))
    high = np.inf if most is None else float(most.reshape(()))
    finite = np.finfo(np.float32)
    limits = [np.array(np.clip(limit, finite.min, finite.max), np.float32) for limit in (min(low, high), high)]
    graph.put(node, graph.add(node, "Clip", [node.inputs[0], *limits], graph.shape(node.outputs[0])))


def _slopes(graph: MnnGraph, node: Node) -> None:
    """Write slopes of channels as MNN has them, others as max(x, 0) + slope * min(x, 0)."""
    x, shape, slopes = node.inputs[0], graph.shape(node.inputs[0]), graph.stored(node, 1)
    is_of_channels = slopes is not None and len(shape) == 4 and slopes.shape[-3:] == (shape[1], 1, 1)
    if is_of_channels:
        return
    zero = np.zeros((), np.float32)
    above, below = (graph.add(node, op, [x, zero], shape) for op in ("Max", "Min"))
    scaled = graph.add(node, "Mul", [below, graph.expanded(node, node.inputs[1], shape)], shape)
    graph.put(node, graph.add(node, "Add", [above, scaled], shape))


def _softplus(graph: MnnGraph, node: Node) -> None:
    """Write max(x, 0) + softplus(-|x|): MNN's own ends at 87."""
    x, shape = node.inputs[0], graph.shape(node.outputs[0])
    apart = graph.add(node, "Neg", [graph.add(node, "Abs", [x], shape)], shape)
    above, rest = graph.add(node, "Relu", [x], shape), graph.add(node, "Softplus", [apart], shape)
    graph.put(node, graph.add(node, "Add", [above, rest], shape))


def _mish(graph: MnnGraph, node: Node) -> None:
    x, shape = node.inputs[0], graph.shape(node.outputs[0])
    inner = graph.add(node, "Tanh", [graph.add(node, "Softplus", [x], shape)], shape)
    graph.put(node, graph.add(node, "Mul", [x, inner], shape))


def _gelu(graph: MnnGraph, node: Node) -> None:
    """Write h + h * f with h = x / 2: the usual form MNN exchanges for an approximation."""
    x, shape = node.inputs[0], graph.shape(node.outputs[0])
    half = graph.add(node, "Mul", [x, _HALF], shape)
    if attribute(node, "approximate", "none") == "tanh":
        root, third = _TANH
        square = graph.add(node, "Mul", [x, x], shape)
        cube = graph.add(node, "Mul", [graph.add(node, "Mul", [square, third], shape), x], shape)
        inner = graph.add(node, "Mul", [graph.add(node, "Add", [x, cube], shape), root], shape)
        function = graph.add(node, "Tanh", [inner], shape)
    else:
        function = graph.add(node, "Erf", [graph.add(node, "Mul", [x, _ROOT], shape)], shape)
    product = graph.add(node, "Mul", [half, function], shape)
    graph.put(node, graph.add(node, "Add", [product, half], shape))


def _hard_sigmoid(graph: MnnGraph, node: Node) -> None:
    """Write clip(alpha * x + beta, 0, 1)."""
    shape = graph.shape(node.outputs[0])
    alpha, beta = attribute(node, "alpha", 0.2), attribute(node, "beta", 0.5)
    line = graph.add(node, "Mul", [node.inputs[0], np.array(alpha, np.float32)], shape)
    line = graph.add(node, "Add", [line, np.array(beta, np.float32)], shape)
    limits = [np.array(0, np.float32), np.array(1, np.float32)]
    graph.put(node, graph.add(node, "Clip", [line, *limits], shape))


def _taken_out(graph: MnnGraph, node: Node) -> None:
    value = node.inputs[0]
    assert value is not None
    graph.put(node, value)


def _dropout(graph: MnnGraph, node: Node) -> None:
    mode = graph.stored(node, 2)
    is_training = len(node.inputs) > 2 and node.inputs[2] is not None and (mode is None or bool(mode))
    if is_training or any(output.uses() for output in node.outputs[1:]):
        raise graph.refuse(node, "in training, or with its mask read")
    _taken_out(graph, node)


_CASTS = {"float32", "int32", "int64", "bool"}


def _cast(graph: MnnGraph, node: Node) -> None:
    """Casts to bytes end the process."""
    source, made = node.inputs[0], node.outputs[0]
    assert source is not None
    before, after = graph.dtype(source), graph.dtype(made)
    if before == after:
        _taken_out(graph, node)
    elif after not in ("float32", "int32", "int64"):
        raise graph.refuse(node, f"of {before} to {after}")


OPS = {
    **dict.fromkeys(
        (
            "Relu",
            "Sigmoid",
            "Tanh",
            "Elu",
            "Selu",
            "LeakyRelu",
            "HardSwish",
            "Erf",
            "Exp",
            "Log",
            "Sqrt",
            "Abs",
            "Neg",
            "Reciprocal",
            "Floor",
            "Ceil",
            "Sin",
            "Cos",
            "Not",
        ),
        as_it_is,
    ),
    "HardSigmoid": _hard_sigmoid,
    "Clip": _limits,
    "PRelu": _slopes,
    "Softplus": _softplus,
    "Mish": _mish,
    "Gelu": _gelu,
    "com.microsoft.Gelu": _gelu,
    "Identity": _taken_out,
    "Dropout": _dropout,
    "Cast": _cast,
}
OTHER_TYPES = {"Cast": ANY_TYPE, "Identity": ANY_TYPE, "Not": frozenset({"bool"})}
