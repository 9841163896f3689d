"""Products on integers whose input grids are found as the model runs, for engines that find them within the product."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from edgeopt.graph.graph import Graph, Node, Value

TABLES = "constant int8 weights about 0 whose scales are above zero"
"""The only tables of a product that engines take, in words."""


@dataclass(frozen=True, slots=True)
class FoundProduct:
    """A MatMulIntegerToFloat that reads a DynamicQuantizeLinear: rows * (scale * weights) + bias."""

    rows: Value
    """In float; its last axis is multiplied."""
    weights: NDArray[np.int8]
    """(inputs, outputs), about 0."""
    scale: NDArray[np.float32]
    """(outputs,), finite, above zero and not subnormal."""
    bias: NDArray[np.float32] | None
    """(outputs,)"""


def found_product(graph: Graph, node: Node) -> FoundProduct | None:
    """Return what a MatMulIntegerToFloat multiplies; None where its grid is stored, or its weights are not `TABLES`."""
    quantizer = graph.producer(node.inputs[0], "DynamicQuantizeLinear")
    inputs = [*node.inputs, *[None] * 7][:7]
    read = [inputs[0], inputs[2], inputs[4]]
    if quantizer is None or quantizer.inputs[0] is None or read != [*quantizer.outputs]:
        return None
    weights, scale, zero, bias = (graph.constant(inputs[place]) for place in (1, 3, 5, 6))
    if weights is None or scale is None or weights.dtype != np.int8 or weights.ndim != 2:
        return None
    is_middle = inputs[5] is None or (zero is not None and not zero.any())
    columns = weights.shape[1]
    if not is_middle or scale.size not in (1, columns):
        return None
    if inputs[6] is not None and (bias is None or bias.size != columns):
        return None
    steps = np.ascontiguousarray(np.broadcast_to(scale.astype(np.float32).reshape(-1), (columns,)))
    if not is_step(steps):
        return None
    added = None if bias is None else bias.astype(np.float32).reshape(-1)
    return FoundProduct(quantizer.inputs[0], weights, steps, added)


def is_step(scale: NDArray[Any] | np.floating[Any]) -> bool:
    """Whether all scales are finite, above zero and not subnormal."""
    return bool((np.isfinite(scale) & (scale >= np.finfo(np.float32).tiny)).all())


def derive_shapes(graph: Graph) -> None:
    """Derive the shapes of what products make, in place, and of what follows: onnx does not know the op."""
    for node in graph.nodes("MatMulIntegerToFloat", domain="com.microsoft"):
        made, weights = node.outputs[0], graph.constant(node.inputs[1])
        if graph.shape(made) is not None or weights is None:
            continue
        graph.infer_shapes()
        rows = graph.shape(node.inputs[0])
        if rows is not None:
            made.shape, made.type = ir.Shape([*rows[:-1], weights.shape[-1]]), ir.TensorType(ir.DataType.FLOAT)
