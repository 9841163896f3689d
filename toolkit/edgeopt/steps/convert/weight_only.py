"""Store the matrices of a model in 4 or 8 bits, a scale for every few weights of a column; activations stay in float.

The kernel rounds activations to 8 bits in blocks of the same length, so that an outlying channel spoils its block
only. What it gains is memory traffic: a product of few rows is faster, one of many rows is not.
Source: com.microsoft.MatMulNBits of ONNX Runtime, accuracy_level 4.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.facts.mixtures import DOWN, UP, mixtures, routers
from edgeopt.graph.graph import Graph, Node, Value, attribute
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.steps.convert.blocks import INT8_ACTIVATIONS, Rounding, fitting_block, to_nearest
from edgeopt.steps.convert.experts import store_experts
from edgeopt.steps.convert.tables import StoredBlocks, place, store_tables
from edgeopt.steps.quantize.calibration.findings import require_finite_weights
from edgeopt.steps.quantize.formats.matmul_integer import plain_products, product_bias
from edgeopt.system.processes.time_limit import require_time

BLOCK = 32
LEAST_ROWS = 64
"""A matrix with fewer inputs has next to nothing to store."""
_MOST = 0.5


def make_weight_only(
    model: Model,
    bits: int = 4,
    block: int = BLOCK,
    wide: Collection[str] = (),
    *,
    wide_block: int = 0,
    rounding: Rounding = to_nearest,
    tables: bool = False,
) -> Outcome:
    """Return the model with its large constant matrices as blocks of integers.

    Args:
        model: A float model.
        bits: 4 or 8.
        block: Weights that share a scale, at most (`fitting_block`); a power of two from 16.
        wide: Names of nodes whose matrix is stored in 8 bits all the same.
        wide_block: Weights that share a scale in those; 0: `block`.
        rounding: How a matrix becomes integers.
        tables: Whether tables of rows that are looked up (embeddings) are stored so too, in 8 bits.

    Raises:
        UnsupportedError: If a weight is NaN or infinite.
        OutOfTime: At the end of a time limit.
    """
    graph = Graph.from_model(model)
    nodes = large_products(graph)
    require_finite_weights(nodes, graph)
    stored = dict[tuple[Value, int], StoredBlocks]()
    for node in nodes:
        require_time()
        form = (8, wide_block or block) if node.name in wide else (bits, block)
        _rewrite(graph, node, *form, rounding, stored)
    changes = {f"matrices in {bits} bits": len(nodes)} if nodes else {}
    if count := store_experts(graph, bits, block, rounding, wide):
        changes[f"matrices of experts in {bits} bits"] = count
    if tables and (found := store_tables(graph, list(stored.values()))):
        changes["tables in blocks"] = found
    graph.remove_unused()
    return Outcome(graph.to_model(), changes)


def is_mostly_matrices(graph: Graph) -> bool:
    """Whether matrices large enough to be stored in blocks hold most of the model's numbers."""
    held = {node.inputs[1]: columns_of(graph, node).size for node in large_products(graph)}
    experts = {value: array.size for value, array in _expert_matrices(graph)}
    every = (graph.constant(value) for value in graph.initializers)
    return sum((held | experts).values()) > _MOST * sum(array.size for array in every if array is not None)


def _expert_matrices(graph: Graph) -> list[tuple[Value, NDArray[np.float32]]]:
    values = [node.inputs[place] for node in mixtures(graph) for place in (UP, DOWN)]
    return [(value, array) for value in values if value and (array := graph.constant(value)) is not None]


def large_products(graph: Graph) -> list[Node]:
    """Return the products whose constant matrix is worth storing in blocks; what chooses experts stays in float."""
    exact = routers(graph)
    nodes = [node for node in plain_products(graph) if node not in exact]
    return [node for node in nodes if product_inputs(graph, node) >= LEAST_ROWS]


def product_inputs(graph: Graph, node: Node) -> int:
    """Return how many numbers each row has that a product takes."""
    return int(columns_of(graph, node).shape[1])


def columns_of(graph: Graph, node: Node) -> NDArray[np.float32]:
    """Return the matrix with one row for each column that it makes: (outputs, inputs)."""
    weight = graph.constant(node.inputs[1])
    assert weight is not None
    return weight if attribute(node, "transB", 0) else weight.T


def _rewrite(
    graph: Graph, node: Node, bits: int, block: int, rounding: Rounding, stored: dict[tuple[Value, int], StoredBlocks]
) -> None:
    columns, weight = columns_of(graph, node), node.inputs[1]
    assert weight is not None
    block = fitting_block(columns.shape[1], block, bits)
    known = weight, attribute(node, "transB", 0)
    if known not in stored:
        stored[known] = place(graph, weight.name or "", columns, rounding(node.name or "", columns, bits, block))
    other = stored[known]
    last, bias = product_bias(graph, node, columns.shape[0])
    inputs: list[Value | None] = [node.inputs[0], other.data, other.scale, other.zero]
    if bias is not None:
        inputs += [None, graph.add_initializer(f"{node.name}_bias", bias)]
    while inputs[-1] is None:
        inputs.pop()
    sizes = {"K": columns.shape[1], "N": columns.shape[0], "bits": bits, "block_size": block}
    attributes = {**sizes, "accuracy_level": INT8_ACTIVATIONS}
    made = graph.insert("MatMulNBits", inputs, attributes, domain="com.microsoft", name=f"{node.name}_MatMulNBits")
    graph.replace(last, made.outputs[0])
