"""Choose the layers at the entrance of a model that are faster in float.

A layer in float amid integers pays two borders. A run of layers from the input on pays one only, so the best
run is the prefix whose saved time is largest.
"""

from __future__ import annotations

from collections.abc import Mapping

from edgeopt.graph.graph import Graph, Node
from edgeopt.steps.quantize.keep_float.layer_times import LayerTime
from edgeopt.steps.quantize.patterns import WEIGHTED, key

_WORTH = 0.02
"""Share of the integer layers' time that a longer front must save: the profile is no finer."""


def fastest_front(graph: Graph, times: Mapping[str, LayerTime]) -> tuple[set[Node], int]:
    """Return the weighted nodes of the best prefix, and the nanoseconds that it saves.

    Args:
        graph: The float model.
        times: Both times of each layer, by key; layers without one count as equal.
    """
    saved, best, length = 0, 0, 0
    order = graph.nodes(*WEIGHTED)
    least = int(_WORTH * sum(time.integer_ns for time in times.values()))
    for i, node in enumerate(order):
        layer_time = times.get(key(node))
        saved += layer_time.integer_ns - layer_time.float_ns if layer_time is not None else 0
        if saved > max(best, least):
            best, length = saved, i + 1
    return set(order[:length]), best
