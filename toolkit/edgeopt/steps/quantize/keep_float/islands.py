"""Choose by local scores which nodes stay in float.

A tensor whose normalised SQNR is below LEAST_DB loses most channels on any single grid. The smallest block
that avoids it is the node that makes it and the nodes that read it, and blocks that touch merge.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from edgeopt.graph.graph import Graph, Node
from edgeopt.steps.quantize.patterns import WEIGHTED, name_of

LEAST_DB = 10.0


def red_tensors(scores_db: Mapping[str, float], least_db: float = LEAST_DB) -> dict[str, float]:
    """Return the tensors that one grid cannot hold, worst first."""
    red = {name: score for name, score in scores_db.items() if score < least_db}
    return dict(sorted(red.items(), key=lambda item: (item[1], item[0])))


def float_island(graph: Graph, red: Set[str]) -> set[Node]:
    """Return the nodes that make or read a tensor of `red`.

    Args:
        graph: The float model.
        red: Names of tensors that must not be quantized.
    """
    island: set[Node] = set()
    for node in graph.nodes():
        touched = (*node.inputs, *node.outputs)
        if any(value is not None and name_of(value) in red for value in touched):
            island.add(node)
    return island


def branch_island(graph: Graph) -> set[Node]:
    """Return the nodes that make what subgraphs read: the layers, and all that lies between them and the subgraph.

    ONNX Runtime 1.32 moves a Transpose or a DequantizeLinear behind ops that only move values, and where it comes to a
    tensor that a branch of If or a body of Loop or Scan reads, it ends the process.

    Args:
        graph: The float model.
    """
    ahead = [node for node in graph.nodes() if any(graph.is_read_inside(made) for made in node.outputs)]
    island: set[Node] = set()
    while ahead:
        node = ahead.pop()
        if node in island:
            continue
        island.add(node)
        if node.op_type not in WEIGHTED:
            ahead += [maker for maker in node.predecessors() if maker is not None]
    return island
