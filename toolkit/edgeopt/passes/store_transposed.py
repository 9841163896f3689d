"""Store a product's matrix as the product reads it.

    x * Transpose(W)   ->   x * W', W' = Transpose(W) stored

A head that is the embedding is written as its transposition. An engine computes that once and then holds both all the
same, but nothing can store the matrix in fewer bits while it is no constant; the file grows by it.
"""

from __future__ import annotations

import numpy as np

from edgeopt.graph.graph import Graph, Node, attribute
from edgeopt.passes import Pass, Phase


def store_transposed(graph: Graph) -> int:
    """Return how many transposed matrices were stored."""
    stored = sum(_store(graph, node) for node in graph.nodes("Transpose"))
    if stored:
        graph.remove_unused()
    return stored


def _store(graph: Graph, node: Node) -> bool:
    matrix = graph.constant(node.inputs[0])
    readers = graph.consumers(node.outputs[0])
    if matrix is None or matrix.ndim != 2 or attribute(node, "perm", (1, 0)) != (1, 0):
        return False
    if not all(reader.op_type == "MatMul" and reader.inputs[1] is node.outputs[0] for reader in readers):
        return False
    value = graph.add_initializer(f"{node.outputs[0].name}_stored", np.ascontiguousarray(matrix.T))
    return bool(readers) and graph.replace(node.outputs[0], value)


PASS = Pass(store_transposed, Phase.DECODER)
