"""Which smaller sizes a network is tried at: multiples of its strides."""

from __future__ import annotations

import math

from edgeopt.graph.graph import Graph, Node, attribute
from edgeopt.recipes.recipe import Recipe
from edgeopt.steps.resolution.smaller import Size

SHARES = (0.92, 0.85, 0.77)
"""Shares of the sides: 0.85, 0.72 and 0.59 of the pixels; the mildest first."""
_LEAST = 0.5
_SHRINKING = ("Conv", "MaxPool", "AveragePool", "LpPool")


def smaller_sizes(size: Size, unit: int) -> tuple[Size, ...]:
    """Return smaller heights and widths, the largest first, each the multiple of `unit` next to its share.

    Args:
        size: Height and width.
        unit: Pixels that the network makes one cell of.
    """
    result = dict.fromkeys(_at(size, share, unit) for share in SHARES)
    least = tuple(_LEAST * side for side in size)
    return tuple(pair for pair in result if pair != size and all(a >= b for a, b in zip(pair, least, strict=True)))


def _at(size: Size, share: float, unit: int) -> Size:
    height, width = (min(unit * max(round(side * share / unit), 1), side) for side in size)
    return height, width


def stride_of(graph: Graph, recipe: Recipe) -> int:
    """Return how many pixels of the input the coarsest cell of a network has along a side.

    Args:
        graph: With shapes.
        recipe: Its strides count too.
    """
    graph.infer_shapes()
    strides = {input_.name: 1.0 for input_ in graph.inputs}
    for node in graph.nodes():
        known = [strides[input_.name] for input_ in node.inputs if input_ is not None and input_.name in strides]
        factor = _factor(graph, node) if known else 0.0
        strides |= {output.name: max(known) * factor for output in node.outputs if factor}
    return math.lcm(max(1, round(max(strides.values()))), *recipe.postprocess.strides)


def _factor(graph: Graph, node: Node) -> float:
    """Return how many cells of a node's input lie under one of its output; 0: its output has no rows and columns."""
    before, after = (graph.shape(value) for value in (node.inputs[0], node.outputs[0]))
    if before is None or after is None or len(after) != 4 or max(after[2:]) == 1:
        return 0.0
    if node.op_type in _SHRINKING:
        return float(max(attribute(node, "strides", (1,))))
    if node.op_type in ("Resize", "ConvTranspose", "SpaceToDepth", "DepthToSpace", "Slice") and len(before) == 4:
        return before[3] / after[3]
    return 1.0
