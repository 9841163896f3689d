"""Store equal constants once: same type, same shape, same bytes."""

from __future__ import annotations

from edgeopt.graph.graph import Graph
from edgeopt.passes import Pass, Phase


def deduplicate_initializers(graph: Graph) -> int:
    """Return how many constants were found stored twice."""
    removed = graph.deduplicate_initializers()
    if removed:
        graph.remove_unused()
    return removed


PASS = Pass(deduplicate_initializers, Phase.SIMPLIFY)
