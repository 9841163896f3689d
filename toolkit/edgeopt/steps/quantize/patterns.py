"""Read a graph as quantization needs it: weights, activations, where the heads begin."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.graph import Graph, Node, Value, attribute
from edgeopt.steps.quantize.activations import SIMPLE, Activation, clip, hard_sigmoid, leaky_relu, silu
from edgeopt.steps.quantize.grids.affine import SMALLEST_SCALE

PRODUCTS = ("MatMul", "Gemm")
WEIGHTED = ("Conv", "ConvTranspose", *PRODUCTS)
SAME_GRID = ("MaxPool", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Identity", "Dropout", "Resize")
"""Ops that move values and make none, so that input and output share a grid."""
COMPANIONS = ("Sigmoid", "Mul", "Add", "Concat", "AveragePool", "GlobalAveragePool", "LeakyRelu", *SAME_GRID)
"""Ops that ONNX Runtime runs on integers between weighted integer ops."""
LIMITERS = ("Relu", "Clip")
_LEAST_STEPS = 127
"""The largest weight of a layer on a grid of INT8 is so many steps."""
_FEW = 4096
_SMALL_SHARE = 2e-4
"""A weighted op with less than this share of all multiplications decodes; it computes no features."""


def key(node: Node) -> str:
    """Return the name by which a node is known: its first output's, which is unique."""
    return str(node.outputs[0].name)


def name_of(value: Value) -> str:
    """Return a value's name."""
    return str(value.name)


def has_weights(graph: Graph, node: Node) -> bool:
    """Whether the node multiplies by a constant with more than one number."""
    if node.op_type not in WEIGHTED or node.domain not in ("", "ai.onnx") or len(node.inputs) < 2:
        return False
    weight = graph.constant(node.inputs[1])
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    known_bias = bias is None or graph.constant(bias) is not None
    return weight is not None and weight.ndim >= 2 and weight.dtype == np.float32 and known_bias


def takes_integers(graph: Graph, node: Node) -> bool:
    """Whether constant weights can be integers with a scale for each output channel.

    A product with a stack of matrices has no integer kernel, a Gemm may add a whole matrix or a column, which is no
    bias, and all weights together may be smaller than the smallest scale.
    """
    weight = graph.constant(node.inputs[1]) if has_weights(graph, node) else None
    if weight is None or _is_below_every_grid(weight):
        return False
    if node.op_type not in PRODUCTS:
        return True
    return weight.ndim == 2 and (not has_bias(node) or channel_bias(graph, node) is not None)


def _is_below_every_grid(weight: NDArray[np.float32]) -> bool:
    least = SMALLEST_SCALE * _LEAST_STEPS
    if np.abs(weight.reshape(-1)[:_FEW]).max(initial=0) >= least:
        return False  # as always: a large model need not be read for it
    return bool(0 < np.abs(weight).max(initial=0) < least)


def has_bias(node: Node) -> bool:
    """Whether the node itself adds something."""
    return len(node.inputs) > 2 and node.inputs[2] is not None


def channel_bias(graph: Graph, node: Node) -> NDArray[np.float32] | None:
    """Return the constant that the node adds, one number for each output channel; None where it adds another thing.

    Args:
        graph: The model.
        node: A weighted node.
    """
    weight = graph.constant(node.inputs[1])
    bias = graph.constant(node.inputs[2]) if len(node.inputs) > 2 else None
    if weight is None or bias is None:
        return None
    channels = weight.shape[weight_axis(node)]
    if bias.size != math.prod(bias.shape[-1:]) or bias.size not in (1, channels):
        return None
    return np.ascontiguousarray(np.broadcast_to(bias.reshape(-1), (channels,)), np.float32)


def weight_axis(node: Node) -> int:
    """Return the axis of the weight that counts output channels."""
    if node.op_type == "Gemm":
        return 0 if attribute(node, "transB", 0) else 1
    return {"Conv": 0, "ConvTranspose": 1, "MatMul": -1}[node.op_type]


def multiplications(graph: Graph, node: Node) -> int:
    """Return how many multiplications one inference needs; 0 where the shape is not known."""
    shape, weight = graph.shape(node.outputs[0]), graph.constant(node.inputs[1])
    if shape is None or weight is None:
        return 0
    if node.op_type in ("Conv", "ConvTranspose"):
        positions = graph.shape(node.inputs[0]) if node.op_type == "ConvTranspose" else shape
        return math.prod((positions or shape)[2:]) * weight.size
    summed: int = weight.shape[1] if weight_axis(node) == 0 else weight.shape[-2]
    return math.prod(shape) * summed


def upstream(nodes: Iterable[Node]) -> set[Node]:
    """Return all nodes from which one of `nodes` can be reached, without `nodes` that cannot reach another."""
    return _reached(nodes, lambda node: node.predecessors())


def downstream(nodes: Iterable[Node]) -> set[Node]:
    """Return all nodes that can be reached from one of `nodes`."""
    return _reached(nodes, lambda node: node.successors())


def _reached(nodes: Iterable[Node], next_to: Callable[[Node], Iterable[Node]]) -> set[Node]:
    reached: set[Node] = set()
    ahead = [other for node in nodes for other in next_to(node)]
    while ahead:
        node = ahead.pop()
        if node not in reached:
            reached.add(node)
            ahead.extend(next_to(node))
    return reached


def predictions(graph: Graph) -> list[Node]:
    """Return the weighted nodes that make the answer: no further features are computed behind them.

    A decoder may hold a tiny convolution (the expected distance of distribution focal loss), so weighted ops
    below _SMALL_SHARE of it do not count as features.
    """
    weighted = [node for node in graph.nodes(*WEIGHTED) if has_weights(graph, node)]
    work = {node: multiplications(graph, node) for node in weighted}
    least = _SMALL_SHARE * sum(work.values())
    features = [node for node in weighted if work[node] >= least]
    before = upstream(features)
    return [node for node in weighted if node not in before]


def head_tail(graph: Graph) -> set[Node]:
    """Return what must stay float behind the features, the prediction layers of a many-headed model among it.

    One scale that covers boxes (hundreds of pixels) and scores (0 to 1) loses the scores. So where several
    prediction layers exist they and all behind them stay float; behind a single one (a classifier, a
    segmenter) only what follows it.
    """
    last = predictions(graph)
    behind = downstream(last)
    heads = [node for node in last if node not in behind]
    return behind | set(last) if len(heads) > 1 else behind - set(last)


def is_silu(graph: Graph, node: Node) -> bool:
    """Whether a Mul is x * Sigmoid(x)."""
    return silu_sigmoid(graph, node) is not None


def silu_sigmoid(graph: Graph, node: Node) -> Node | None:
    """Return the Sigmoid of a Mul that is x * Sigmoid(x)."""
    if node.op_type != "Mul":
        return None
    for gate, other in (node.inputs, node.inputs[::-1]):
        sigmoid = graph.producer(gate, "Sigmoid")
        if sigmoid is not None and sigmoid.inputs[0] is other:
            return sigmoid
    return None


def following_activation(graph: Graph, value: Value) -> Activation | None:
    """Return the function that is all that ever happens to `value`, or None."""
    if graph.is_output(value):
        return None
    readers = graph.consumers(value)
    if len(readers) == 2:
        product = next((node for node in readers if is_silu(graph, node)), None)
        gate = silu_sigmoid(graph, product) if product is not None else None
        return silu if gate is not None and gate in readers and gate.inputs[0] is value else None
    return _function(graph, readers[0]) if len(readers) == 1 else None


def _function(graph: Graph, node: Node) -> Activation | None:
    if node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type == "Clip":
        known = limits(graph, node)
        return clip(*known) if known is not None else None
    if node.op_type == "LeakyRelu":
        return leaky_relu(attribute(node, "alpha", 0.01))
    if node.op_type == "HardSigmoid":
        return hard_sigmoid(attribute(node, "alpha", 0.2), attribute(node, "beta", 0.5))
    return SIMPLE.get(node.op_type)


def limits(graph: Graph, node: Node) -> tuple[float, float] | None:
    """Return what Relu or Clip limits to, infinity where it does not; None where a limit is computed."""
    if node.op_type == "Relu":
        return 0.0, math.inf
    ends = [-math.inf, math.inf]
    for place, value in enumerate(node.inputs[1:3]):
        if value is None:
            continue
        limit = graph.constant(value)
        if limit is None:
            return None
        ends[place] = float(limit.reshape(-1)[0])
    return ends[0], ends[1]


def channel_axis(graph: Graph, value: Value) -> int:
    """Return the axis of a value's channels: the one that its readers sum over, else the one its producer makes.

    A tensor between convolutions and matrix products may be read along either; then it is that of the first reader
    with weights, and whoever needs the other (`reads_along`) must see that it is not there.
    """
    rank = graph.rank(value) or 4
    readers, maker = graph.consumers(value), graph.producer(value)
    weighted = [node for node in readers if node.inputs[0] is value and has_weights(graph, node)]
    products = [node for node in readers if node.op_type in (*PRODUCTS, "LayerNormalization")]
    if weighted:
        return data_axis(weighted[0])
    if products or (maker is not None and maker.op_type in (*PRODUCTS, "LayerNormalization")):
        return -1
    return 1 if rank > 1 else 0


def readers_through(graph: Graph, value: Value, ops: Container[str]) -> Iterator[Node]:
    """Yield the nodes that read a value, or what nodes of `ops` make of it."""
    for node in graph.consumers(value):
        if node.op_type in ops:
            yield from readers_through(graph, node.outputs[0], ops)
        else:
            yield node


def data_axis(node: Node) -> int:
    """Return the axis of what a weighted node reads that it sums over."""
    if node.op_type == "Gemm" and attribute(node, "transA", 0):
        return 0
    return -1 if node.op_type in PRODUCTS else 1


def reads_along(graph: Graph, node: Node, axis: int) -> bool:
    """Whether a weighted node sums what it reads over `axis`, which may count from the end."""
    source, own = node.inputs[0], data_axis(node)
    rank = graph.rank(source)
    return own == axis if rank is None else own % rank == axis % rank
