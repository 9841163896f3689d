"""Products of matrices: MNN's converter errs on turned sides and on a bias that is no row.

Products by weights are written as convolutions of one place. Its converter makes these of them too, but in threads: on
a busy machine the weights of every few models stayed zero.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.executors.mnn.conversion.rewriting import MnnGraph
from edgeopt.graph.graph import Node, Value, attribute


def _turned(graph: MnnGraph, node: Node, value: Value, is_turned: int) -> Value:
    if not is_turned:
        return value
    rows, columns = graph.shape(value)
    return graph.add(node, "Transpose", [value], (columns, rows), perm=(1, 0))


def _by_weights(
    graph: MnnGraph, node: Node, left: Value, weight: NDArray[np.float32], row: NDArray[np.float32] | None = None
) -> Value:
    """Return the product of rows by weights, shape (in, out), as a convolution of pictures of one place."""
    own, (size, made) = graph.shape(left), weight.shape
    count = math.prod(own[:-1])
    pictures = graph.reshaped(node, left, (count, size, 1, 1))
    kernel = np.ascontiguousarray(weight.T)[:, :, None, None]
    inputs: list[Value | NDArray[Any] | None] = [pictures, kernel, *([] if row is None else [row])]
    result = graph.add(
        node, "Conv", inputs, (count, made, 1, 1), kernel_shape=(1, 1), strides=(1, 1), pads=(0, 0, 0, 0)
    )
    return graph.reshaped(node, result, (*own[:-1], made))


def _affine(graph: MnnGraph, node: Node) -> None:
    """Write alpha * A * B + beta * C, with what is constant computed before."""
    alpha, beta = float(attribute(node, "alpha", 1.0)), float(attribute(node, "beta", 1.0))
    shape, left, right = graph.shape(node.outputs[0]), node.inputs[0], node.inputs[1]
    assert left is not None
    assert right is not None
    left = _turned(graph, node, left, attribute(node, "transA", 0))
    weight, bias = graph.stored(node, 1), graph.stored(node, 2)
    if weight is None:
        made = graph.add(node, "MatMul", [left, _turned(graph, node, right, attribute(node, "transB", 0))], shape)
        if alpha != 1:
            made = graph.add(node, "Mul", [made, np.array(alpha, np.float32)], shape)
    else:
        weight = (weight.T if attribute(node, "transB", 0) else weight) * np.float32(alpha)
        weight = np.ascontiguousarray(weight, np.float32)
        if bias is not None and bias.shape in ((shape[1],), (1, shape[1])):
            row = (bias.reshape(-1) * np.float32(beta)).astype(np.float32)
            graph.put(node, _by_weights(graph, node, left, weight, row))
            return
        made = _by_weights(graph, node, left, weight)
    added = node.inputs[2] if len(node.inputs) > 2 else None
    if added is not None:
        if beta != 1:
            scale = np.array(beta, np.float32)
            added = graph.add(node, "Mul", [added, scale], graph.shape(added))
        made = graph.add(node, "Add", [made, graph.expanded(node, added, shape)], shape)
    graph.put(node, made)


def _product(graph: MnnGraph, node: Node) -> None:
    """Write both sides with as many axes, and repeated where one is smaller."""
    shapes = [graph.shape(value) for value in node.inputs]
    if min(map(len, shapes)) < 2:
        raise graph.refuse(node, "with a vector")
    shape, weight, left = graph.shape(node.outputs[0]), graph.stored(node, 1), node.inputs[0]
    if weight is not None and weight.ndim == 2 and left is not None and graph.constant(left) is None:
        graph.put(node, _by_weights(graph, node, left, weight.astype(np.float32)))
        return
    values = list[Value]()
    for value, own in zip(node.inputs, shapes, strict=True):
        assert value is not None
        is_weight = len(own) == 2 and graph.constant(value) is not None
        if is_weight or own[:-2] == shape[:-2]:
            values.append(value)
            continue
        values.append(graph.expanded(node, value, (*shape[:-2], *own[-2:])))
    graph.put(node, graph.add(node, "MatMul", values, shape))


OPS = {"Gemm": _affine, "MatMul": _product}
