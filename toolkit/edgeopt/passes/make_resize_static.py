"""Write the sizes of a Resize down where they are computed but known from its output's shape.

NPU compilers refuse a Resize with computed sizes. Computed scales stay: rounding has lost them.
"""

from __future__ import annotations

import numpy as np

from edgeopt.graph.graph import Graph, attribute
from edgeopt.passes import Pass, Phase

_SIZES = 3


def make_resize_static(graph: Graph) -> int:
    """Return how many Resize nodes got constant sizes."""
    made = 0
    for node in graph.nodes("Resize"):
        sizes = node.inputs[_SIZES] if len(node.inputs) > _SIZES else None
        shape = graph.shape(node.outputs[0])
        if sizes is None or shape is None or graph.constant(sizes) is not None:
            continue
        policy: str = attribute(node, "keep_aspect_ratio_policy", "stretch")
        axes: tuple[int, ...] = attribute(node, "axes", tuple(range(len(shape))))
        if policy != "stretch":  # the sizes asked for are then not the sizes made
            continue
        graph.set_input(node, _SIZES, np.array([shape[axis] for axis in axes], np.int64))
        made += 1
    return made


PASS = Pass(make_resize_static, Phase.SIMPLIFY)
