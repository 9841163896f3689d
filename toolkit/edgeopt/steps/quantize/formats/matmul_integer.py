"""Write matrix products as MatMulIntegerToFloat: integers in, floats out, the bias added on the way.

As Q/DQ pairs they would lose more: ONNX Runtime joins MatMul and Add to a float Gemm before it looks for
integers, unless the product gets a grid of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.graph import Graph, Node, Value, attribute
from edgeopt.steps.quantize.formats._pairs import add_grid
from edgeopt.steps.quantize.patterns import (
    PRODUCTS,
    WEIGHTED,
    channel_bias,
    has_weights,
    multiplications,
    name_of,
    takes_integers,
    weight_axis,
)
from edgeopt.steps.quantize.scheme import Scheme

_MOST = 0.5


@dataclass(frozen=True, slots=True)
class GridTensor:
    """A tensor on a grid: its value is scale * (values - zero)."""

    values: Value
    scale: Value
    zero: Value


def place_matrices(graph: Graph, scheme: Scheme) -> Mapping[str, int]:
    """Rewrite the integer MatMul and Gemm nodes on the grids of the scheme, in place; return how many.

    Args:
        graph: The float model; it is edited.
        scheme: What runs on integers.
    """
    return place_products(graph, scheme, lambda source: _quantized(graph, source, scheme))


def place_products(graph: Graph, scheme: Scheme, quantize: Callable[[Value], GridTensor]) -> Mapping[str, int]:
    """Rewrite the integer MatMul and Gemm nodes, in place; return how many.

    Args:
        graph: The float model; it is edited.
        scheme: What runs on integers.
        quantize: Puts what a node reads on a grid; called once for each tensor.
    """
    quantized: dict[Value, GridTensor] = {}
    nodes = [node for node in plain_products(graph) if scheme.is_integer(node)]
    for node in nodes:
        source = node.inputs[0]
        assert source is not None
        if source not in quantized:
            quantized[source] = quantize(source)
        _rewrite(graph, node, quantized[source], scheme)
    graph.remove_unused()
    return {"matrix products on integers": len(nodes)} if nodes else {}


def plain_products(graph: Graph) -> list[Node]:
    """Return the products of a tensor and one constant matrix, to which at most a bias is added."""
    nodes = [node for node in graph.nodes(*PRODUCTS) if is_plain(node) and takes_integers(graph, node)]
    return [node for node in nodes if graph.constant(node.inputs[0]) is None]


def is_made_of_products(graph: Graph) -> bool:
    """Whether matrix products with constant weights, and not convolutions, do most of the multiplications.

    Where sizes are free, as in a model of texts of any length, nobody knows how many there are; but where there are
    only products, each weight is multiplied with every row.
    """
    work = {node: multiplications(graph, node) for node in graph.nodes(*WEIGHTED) if has_weights(graph, node)}
    if not all(work.values()) and all(node.op_type in PRODUCTS for node in work):
        weights = {node: graph.constant(node.inputs[1]) for node in work}
        work = {node: 0 if weight is None else weight.size for node, weight in weights.items()}
    return sum(work.get(node, 0) for node in plain_products(graph)) > _MOST * sum(work.values())


def is_plain(node: Node) -> bool:
    """Whether a product has no factors and no transposed first matrix."""
    return not attribute(node, "transA", 0) and attribute(node, "alpha", 1.0) == attribute(node, "beta", 1.0) == 1.0


def _quantized(graph: Graph, source: Value, scheme: Scheme) -> GridTensor:
    grid, name = scheme.affines[name_of(source)], name_of(source)
    scale, zero = add_grid(graph, name, grid)
    made = graph.insert("QuantizeLinear", [source, scale, zero], name=f"{name}_quantize")
    return GridTensor(made.outputs[0], scale, zero)


def _rewrite(graph: Graph, node: Node, source: GridTensor, scheme: Scheme) -> None:
    weight = graph.constant(node.inputs[1])
    assert weight is not None
    axis = weight_axis(node) % weight.ndim
    stored = scheme.quantized_weight(graph, node)
    values = stored.values.T if node.op_type == "Gemm" and axis == 0 else stored.values
    last, bias = product_bias(graph, node, values.shape[-1])
    channels = np.broadcast_to(stored.scale, (values.shape[-1],))
    inputs: list[Value | None] = [
        source.values,
        graph.add_initializer(f"{node.name}_weight", np.ascontiguousarray(values)),
        source.scale,
        graph.add_initializer(f"{node.name}_weight_scale", np.ascontiguousarray(channels)),
        source.zero,
        graph.add_initializer(f"{node.name}_weight_zero_point", np.zeros(channels.shape, np.int8)),
        graph.add_initializer(f"{node.name}_bias", bias) if bias is not None else None,
    ]
    made = graph.insert(
        "MatMulIntegerToFloat", inputs, domain="com.microsoft", name=f"{node.name}_MatMulIntegerToFloat"
    )
    graph.replace(last, made.outputs[0], keep_name=True)  # its grid is known by it


def product_bias(graph: Graph, node: Node, out: int) -> tuple[Value, NDArray[np.float32] | None]:
    """Return the value that the product stands for, its bias included, and the bias.

    Args:
        graph: The model.
        node: MatMul or Gemm.
        out: How many columns it makes.
    """
    made = node.outputs[0]
    if node.op_type == "Gemm":
        return made, channel_bias(graph, node)
    added = graph.sole_consumer(made, "Add")
    constants = [graph.constant(input_) for input_ in added.inputs if input_ is not made] if added is not None else []
    if added is None or len(constants) != 1 or constants[0] is None or constants[0].shape != (out,):
        return made, None
    return added.outputs[0], np.ascontiguousarray(constants[0], np.float32)
