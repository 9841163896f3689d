"""Take out nodes and stored constants that no output needs."""

from __future__ import annotations

from edgeopt.graph.graph import Graph
from edgeopt.passes import Pass, Phase


def remove_unused(graph: Graph) -> int:
    """Return how many nodes and constants were taken out."""
    return graph.remove_unused()


PASS = Pass(remove_unused, Phase.SIMPLIFY)
