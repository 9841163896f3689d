"""Make one Reshape of a chain of Reshape, Squeeze, Unsqueeze and Flatten whose last shape is known."""

from __future__ import annotations

import numpy as np

from edgeopt.graph.graph import Graph
from edgeopt.passes import Pass, Phase

_OPS = ("Reshape", "Squeeze", "Unsqueeze", "Flatten")


def merge_reshapes(graph: Graph) -> int:
    """Return how many nodes of a chain were taken out."""
    merged = 0
    for node in graph.nodes(*_OPS):
        first, shape = graph.sole_producer(node.inputs[0]), graph.shape(node.outputs[0])
        if first is None or first.op_type not in _OPS or first.domain not in ("", "ai.onnx"):
            continue
        if shape is None or 0 in shape:  # Reshape reads a 0 as "as it was"
            continue
        target = graph.add_initializer(f"{node.name}_shape", np.array(shape, np.int64))
        new = graph.insert("Reshape", [first.inputs[0], target], before=node, name=node.name or "Reshape")
        merged += graph.bypass(node, keep=new)
        graph.remove(first)
    return merged


PASS = Pass(merge_reshapes, Phase.SIMPLIFY)
