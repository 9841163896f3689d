"""Store equal constants once: same type, same shape, same bytes."""

from __future__ import annotations

import hashlib

from edgeopt.graph.graph import Graph, Value
from edgeopt.passes import Pass, Phase


def deduplicate_initializers(graph: Graph) -> int:
    """Return how many constants were found stored twice."""
    kept: dict[tuple[str, tuple[int, ...], bytes], Value] = {}
    removed = 0
    for value in graph.initializers:
        array = graph.constant(value)
        if array is None or array.dtype.kind in "OSU":  # texts have no fixed bytes
            continue
        digest = hashlib.sha256(array.tobytes()).digest()
        first = kept.setdefault((str(value.dtype), array.shape, digest), value)
        removed += value.uses() != () and graph.replace(value, first)
    if removed:
        graph.remove_unused()
    return removed


PASS = Pass(deduplicate_initializers, Phase.SIMPLIFY)
