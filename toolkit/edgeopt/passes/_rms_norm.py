"""Where a graph divides by a root mean square, in whatever words its exporter says it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgeopt.graph.graph import Array, Graph, Node, Value, attribute

_RANK = 3


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """x / Sqrt(Mean(x * x) + epsilon) * scale over the last axis."""

    x: Value
    scale: Array
    epsilon: float
    last: Node
    """Node whose output is the norm."""


def rms_norms(graph: Graph) -> list[RmsNorm]:
    """Return all of a graph, in order."""
    result = [_standard(graph, node) for node in graph.nodes("RMSNormalization")]
    result += [_written_out(graph, node) for node in graph.nodes("Mul")]
    return [rms_norm for rms_norm in result if rms_norm is not None]


def residual_sum(graph: Graph, norm: RmsNorm) -> Node | None:
    """Return the Add of two tensors of three axes that a norm reads, as the sums between a decoder's layers are."""
    add = graph.producer(norm.x, "Add")
    if add is None or any(input_ is None or graph.constant(input_) is not None for input_ in add.inputs):
        return None
    shapes = [input_.shape for input_ in add.inputs if input_ is not None]
    fits = all(shape is None or (shape.rank() == _RANK and shape[-1] in (norm.scale.size, None)) for shape in shapes)
    return add if fits else None


def _standard(graph: Graph, node: Node) -> RmsNorm | None:
    x, scale = node.inputs[0], graph.constant(node.inputs[1])
    if (
        x is None
        or scale is None
        or scale.ndim != 1
        or attribute(node, "axis", -1) not in (-1, (graph.rank(x) or 0) - 1)
    ):
        return None
    return RmsNorm(x, scale, attribute(node, "epsilon", 1e-5), node)


def _written_out(graph: Graph, node: Node) -> RmsNorm | None:
    """Return the norm whose last node is this product with a scale."""
    split = graph.split(node)
    if split is None or split[1].ndim != 1:
        return None
    unit = graph.producer(_uncast(graph, split[0]))
    x, root = _quotient(graph, unit)
    above = graph.producer(_uncast(graph, root.inputs[0]), "Add") if root is not None else None
    epsilon = graph.split_scalar(above) if above is not None else None
    mean = graph.producer(_uncast(graph, epsilon[0]), "ReduceMean") if epsilon is not None else None
    if x is None or mean is None or epsilon is None or not _is_mean_of_squares(graph, mean, x):
        return None
    x = _uncast(graph, x)
    return None if x is None else RmsNorm(x, np.asarray(split[1], np.float32), epsilon[1], node)


def _quotient(graph: Graph, node: Node | None) -> tuple[Value | None, Node | None]:
    """Return x and the Sqrt of x / root, x * (1 / root) or x * Reciprocal(root)."""
    if node is None or node.domain or len(node.inputs) != 2:
        return None, None
    if node.op_type == "Div":
        return node.inputs[0], graph.producer(node.inputs[1], "Sqrt")
    if node.op_type != "Mul":
        return None, None
    for x, inverse in (node.inputs, reversed(node.inputs)):
        maker = graph.producer(_uncast(graph, inverse))
        if maker is None or maker.domain:
            continue
        if maker.op_type == "Reciprocal":
            return x, graph.producer(maker.inputs[0], "Sqrt")
        over = graph.constant(maker.inputs[0]) if maker.op_type == "Div" else None
        if over is not None and over.size == 1 and float(over.reshape(())) == 1:
            return x, graph.producer(maker.inputs[1], "Sqrt")
    return None, None


def _is_mean_of_squares(graph: Graph, mean: Node, x: Value) -> bool:
    square = graph.producer(mean.inputs[0])
    axes = graph.constant(mean.inputs[1]) if len(mean.inputs) > 1 else attribute(mean, "axes", ())
    rank = graph.rank(x)
    if square is None or square.domain or axes is None or attribute(mean, "keepdims", 1) != 1:
        return False
    if [int(value) for value in np.asarray(axes).reshape(-1)] not in ([-1], [(rank or 0) - 1]):
        return False
    if square.op_type == "Mul":
        return square.inputs[0] is x and square.inputs[1] is x
    exponent = graph.constant(square.inputs[1]) if square.op_type == "Pow" else None
    return square.inputs[0] is x and exponent is not None and bool((exponent == 2).all())


def _uncast(graph: Graph, value: Value | None) -> Value | None:
    """Return what a Cast from float32 to float32 only passes on."""
    cast = graph.producer(value, "Cast")
    if cast is None or cast.inputs[0] is None or graph.dtype(cast.inputs[0]) != np.float32:
        return value
    return cast.inputs[0] if graph.dtype(value) == np.float32 else value
