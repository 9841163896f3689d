"""Store the matrices of a model in 4 or 8 bits, a scale for every few weights of a column; activations stay in float.

The kernel rounds activations to 8 bits in blocks of the same length, so that an outlying channel spoils its block
only. What it gains is memory traffic: a product of few rows is faster, one of many rows is not.
Source: com.microsoft.MatMulNBits of ONNX Runtime, accuracy_level 4; symmetric, zero at half of the range.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.graph import Graph, Node, Value, attribute
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.steps.quantize.calibration.findings import require_finite_weights
from edgeopt.steps.quantize.formats.matmul_integer import plain_products, product_bias

BLOCK = 32
LEAST_ROWS = 64
"""A matrix with fewer inputs has next to nothing to store."""
_MOST = 0.5
_STEPS = np.linspace(0.7, 1.0, 13, dtype=np.float32)
"""Parts of the largest weight that the range may cover; clipping a lone outlier costs less than a coarse grid."""
_INT8_ACTIVATIONS = 4


def make_weight_only(model: Model, bits: int = 4, block: int = BLOCK, wide: Collection[str] = ()) -> Outcome:
    """Return the model with its large constant matrices as blocks of integers.

    Args:
        model: A float model.
        bits: 4 or 8.
        block: Weights that share a scale; a power of two from 16.
        wide: Names of nodes whose matrix is stored in 8 bits all the same.

    Raises:
        UnsupportedError: If a weight is NaN or infinite.
    """
    graph = Graph.from_model(model)
    nodes = _large(graph)
    require_finite_weights(nodes, graph)
    stored: dict[tuple[Value, int], tuple[Value, Value]] = {}
    for node in nodes:
        _rewrite(graph, node, 8 if node.name in wide else bits, block, stored)
    graph.remove_unused()
    return Outcome(graph.to_model(), {f"matrices in {bits} bits": len(nodes)} if nodes else {})


def is_mostly_matrices(graph: Graph) -> bool:
    """Whether matrices large enough to be stored in blocks hold most of the model's numbers."""
    held = {node.inputs[1]: _columns(graph, node).size for node in _large(graph)}
    every = (graph.constant(value) for value in graph.initializers)
    return sum(held.values()) > _MOST * sum(one.size for one in every if one is not None)


def _large(graph: Graph) -> list[Node]:
    return [node for node in plain_products(graph) if _columns(graph, node).shape[1] >= LEAST_ROWS]


def _columns(graph: Graph, node: Node) -> NDArray[np.float32]:
    """Return the matrix with one row for each column that it makes: (outputs, inputs)."""
    weight = graph.constant(node.inputs[1])
    assert weight is not None
    return weight if attribute(node, "transB", 0) else weight.T


def _rewrite(
    graph: Graph, node: Node, bits: int, block: int, stored: dict[tuple[Value, int], tuple[Value, Value]]
) -> None:
    columns, weight = _columns(graph, node), node.inputs[1]
    assert weight is not None
    known = weight, attribute(node, "transB", 0)
    if known not in stored:
        integers, scale = quantize_blocks(columns, bits, block)
        packed = integers[..., 0::2] | integers[..., 1::2] << 4 if bits == 4 else integers
        stored[known] = (
            graph.add_initializer(f"{weight.name}_blocks", packed),
            graph.add_initializer(f"{weight.name}_scales", scale),
        )
    last, bias = product_bias(graph, node, columns.shape[0])
    inputs: list[Value | None] = [node.inputs[0], *stored[known]]
    if bias is not None:
        inputs += [None, None, graph.add_initializer(f"{node.name}_bias", bias)]
    sizes = {"K": columns.shape[1], "N": columns.shape[0], "bits": bits, "block_size": block}
    attributes = {**sizes, "accuracy_level": _INT8_ACTIVATIONS}
    made = graph.insert("MatMulNBits", inputs, attributes, domain="com.microsoft", name=f"{node.name}_MatMulNBits")
    graph.replace(last, made.outputs[0])


def quantize_blocks(
    columns: NDArray[np.float32], bits: int, block: int
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Return the integers of each block and its scale: real = scale * (integer - half of the range).

    The largest weight of a block becomes the end of the range that has one step more, or a little beyond it
    where that leaves a smaller square error.

    Args:
        columns: (outputs, inputs).
        bits: 4 or 8.
        block: Neighbouring inputs that share a scale.

    Returns:
        (outputs, blocks, block) with the last block filled up by zeros, and (outputs, blocks).
    """
    outputs, inputs = columns.shape
    blocks = -(-inputs // block)
    filled = np.zeros((outputs, blocks * block), np.float32)
    filled[:, :inputs] = columns
    real = filled.reshape(outputs, blocks, block)
    half = 1 << (bits - 1)
    largest = np.take_along_axis(real, np.abs(real).argmax(axis=-1, keepdims=True), axis=-1)
    best_scale, best_error = np.ones_like(largest), np.full_like(largest, np.inf)
    for part in _STEPS:
        scale = np.where(largest == 0, np.float32(1), largest * (part / np.float32(-half)))
        error = np.square(_round(real, scale, half) * scale - real).sum(axis=-1, keepdims=True)
        best_scale = np.where(error < best_error, scale, best_scale)
        best_error = np.minimum(error, best_error)
    integers = (_round(real, best_scale, half) + half).astype(np.uint8)
    return integers, np.ascontiguousarray(best_scale[..., 0])


def _round(real: NDArray[np.float32], scale: NDArray[np.float32], half: int) -> NDArray[np.float32]:
    steps: NDArray[np.float32] = np.clip(np.rint(real / scale), -half, half - 1)
    return steps
