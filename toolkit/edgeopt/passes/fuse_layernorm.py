"""Make one LayerNormalization of the mean, variance and quotient that exporters write before opset 17.

    d = x - Mean(x);  d / Sqrt(Mean(d * d) + epsilon) * scale + bias   ->   LayerNormalization(x, scale, bias)

over the last axes; scale and bias may be absent. NPU compilers run the one node with a wider accumulator, and
the squares in between would not survive 8 bits.
Source: Ba, Kiros and Hinton, Layer Normalization, 2016; ONNX LayerNormalization-17.
"""

from __future__ import annotations

import numpy as np

from edgeopt.graph.graph import Array, Graph, Node, Value, attribute
from edgeopt.passes import Pass, Phase

_OPSET_OF_LAYERNORM = 17
_OPSET_OF_AXES_AS_INPUT = 18


def fuse_layernorm(graph: Graph) -> int:
    """Return how many decomposed layer normalisations became one node."""
    if graph.opset < _OPSET_OF_LAYERNORM:
        return 0
    fused = sum(_fuse(graph, node) for node in graph.nodes("Div"))
    if fused:
        graph.remove_unused()
    return fused


def _fuse(graph: Graph, quotient: Node) -> bool:
    found = _normalized(graph, quotient)
    if found is None:
        return False
    x, axis, epsilon = found
    dims = () if x.shape is None else x.shape.dims  # a free batch or length in front changes nothing
    sizes = tuple(size for size in dims[axis:] if isinstance(size, int))
    if not sizes or len(sizes) < len(dims) - axis:
        return False
    last = quotient
    scale, last = _operand(graph, last, "Mul", sizes, len(dims))
    bias, last = _operand(graph, last, "Add", sizes, len(dims))
    numbers = [np.ones(sizes, np.float32) if scale is None else scale, *([] if bias is None else [bias])]
    constants = [graph.add_initializer(f"{quotient.name}_layernorm", number) for number in numbers]
    attributes = {"axis": axis - len(dims), "epsilon": epsilon}
    new = graph.insert("LayerNormalization", [x, *constants], attributes, before=last)
    return graph.bypass(last, keep=new)


def _normalized(graph: Graph, quotient: Node) -> tuple[Value, int, float] | None:
    """Return x, the first axis from the front, and epsilon where `quotient` is d / Sqrt(Mean(d * d) + epsilon)."""
    difference, root = graph.producer(quotient.inputs[0], "Sub"), graph.producer(quotient.inputs[1], "Sqrt")
    total = graph.producer(root.inputs[0], "Add") if root is not None else None
    epsilon = graph.split_scalar(total) if total is not None else None
    variance = graph.producer(epsilon[0], "ReduceMean") if epsilon is not None else None
    if difference is None or variance is None or epsilon is None or difference.inputs[0] is None:
        return None
    x, mean = difference.inputs[0], graph.producer(difference.inputs[1], "ReduceMean")
    if mean is None or mean.inputs[0] is not x or not _squares(graph, variance.inputs[0], difference.outputs[0]):
        return None
    axes = {_last_axes(graph, mean), _last_axes(graph, variance)}
    axis = axes.pop()
    return (x, axis, epsilon[1]) if axis is not None and not axes else None


def _squares(graph: Graph, value: Value | None, difference: Value) -> bool:
    power, product = graph.producer(value, "Pow"), graph.producer(value, "Mul")
    if power is not None:
        exponent = graph.constant(power.inputs[1])
        return power.inputs[0] is difference and exponent is not None and bool((exponent == 2).all())
    return product is not None and all(input_ is difference for input_ in product.inputs)


def _last_axes(graph: Graph, mean: Node) -> int | None:
    """Return the first of the axes, from the front, where a mean keeps its dimensions and takes the last ones."""
    rank = graph.rank(mean.inputs[0])
    axes: tuple[int, ...] = attribute(mean, "axes", ())
    if graph.opset >= _OPSET_OF_AXES_AS_INPUT:
        array = graph.constant(mean.inputs[1]) if len(mean.inputs) > 1 else None
        axes = () if array is None else tuple(int(value) for value in array.reshape(-1))
    if not axes or rank is None or attribute(mean, "keepdims", 1) != 1:
        return None
    result = sorted(axis % rank for axis in axes)
    return result[0] if result == list(range(result[0], rank)) else None


def _operand(graph: Graph, node: Node, op: str, sizes: tuple[int, ...], rank: int) -> tuple[Array | None, Node]:
    """Return the constant of the sole `op` behind `node` and that op; None and `node` where there is none."""
    reader = graph.sole_consumer(node.outputs[0], op)
    result = graph.split(reader) if reader is not None else None
    if reader is None or result is None or result[1].shape[-len(sizes) :] != sizes or result[1].size != np.prod(sizes):
        return None, node
    if result[1].ndim > rank:  # which adds an axis to the output
        return None, node
    return np.asarray(result[1].reshape(sizes), np.float32), reader


PASS = Pass(fuse_layernorm, Phase.DEVICE)
