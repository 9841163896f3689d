"""Count the constant indices of Gather from the front: -1 of an axis of 5 becomes 4.

ONNX allows indices from the end, NPU compilers do not.
Source: ONNX Gather-13.
"""

from __future__ import annotations

import numpy as np

from edgeopt.graph.graph import Graph, attribute
from edgeopt.passes import Pass, Phase


def make_gather_positive(graph: Graph) -> int:
    """Return how many Gather nodes had an index from the end."""
    made = 0
    for node in graph.nodes("Gather"):
        indices, shape = graph.constant(node.inputs[1]), graph.shape(node.inputs[0])
        if indices is None or shape is None or not (indices < 0).any():
            continue
        size = shape[attribute(node, "axis", 0)]
        graph.set_input(node, 1, np.where(indices < 0, indices + size, indices).astype(indices.dtype))
        made += 1
    return made


PASS = Pass(make_gather_positive, Phase.DEVICE)
