"""QuantizeLinear and DequantizeLinear: their scales and zero points, and constants stored as integers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.graph import Graph, Node, Value
from edgeopt.steps.quantize.grids.affine import Affine
from edgeopt.steps.quantize.patterns import name_of


def add_grid(graph: Graph, name: str, grid: Affine) -> list[Value]:
    """Return scale and zero point of the tensor `name` as constants."""
    return [
        graph.add_initializer(f"{name}_scale", np.array(grid.scale, np.float32)),
        graph.add_initializer(f"{name}_zero_point", np.array(grid.zero_point, grid.dtype)),
    ]


def store_integers(
    graph: Graph, node: Node, index: int, integers: NDArray[Any], scale: NDArray[np.float32], axis: int
) -> None:
    """Make input `index` of a node a stored integer constant and its DequantizeLinear.

    Args:
        graph: It is edited.
        node: What reads the constant.
        index: Of its inputs; one that is left out may be given.
        integers: Any shape.
        scale: One number, or one for each place along `axis`.
        axis: Of the integers.
    """
    old = node.inputs[index] if index < len(node.inputs) else None
    name = name_of(old) if old is not None else f"{node.name}_{index}"
    per_axis = scale.size > 1
    scale = scale if per_axis else scale.reshape(())
    values = [
        graph.add_initializer(f"{name}_quantized", integers),
        graph.add_initializer(f"{name}_scale", scale.astype(np.float32)),
        graph.add_initializer(f"{name}_zero_point", np.zeros(scale.shape, integers.dtype)),
    ]
    made = graph.insert("DequantizeLinear", values, {"axis": axis} if per_axis else {}, before=node)
    graph.set_input(node, index, made.outputs[0])
