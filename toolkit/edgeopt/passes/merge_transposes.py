"""Make one Transpose of two in a row, or none where the second undoes the first."""

from __future__ import annotations

from edgeopt.graph.graph import Graph, Node, attribute
from edgeopt.passes import Pass, Phase


def merge_transposes(graph: Graph) -> int:
    """Return how many pairs were merged."""
    merged = 0
    for node in graph.nodes("Transpose"):
        first = graph.producer(node.inputs[0], "Transpose")
        if first is None:
            continue
        inner, outer = _permutation(graph, first), _permutation(graph, node)
        if inner is None or outer is None:
            continue
        both = [inner[axis] for axis in outer]
        if both == sorted(both) and graph.bypass(node, keep=first.inputs[0]):
            merged += 1
        elif both != sorted(both):
            graph.set_input(node, 0, first.inputs[0])
            graph.set_attribute(node, "perm", both)
            merged += 1
    if merged:
        graph.remove_unused()
    return merged


def _permutation(graph: Graph, node: Node) -> tuple[int, ...] | None:
    written: tuple[int, ...] = attribute(node, "perm", ())
    rank = graph.rank(node.outputs[0])
    return written or (tuple(reversed(range(rank))) if rank is not None else None)


PASS = Pass(merge_transposes, Phase.SIMPLIFY)
