"""Replace Shape and Size of a tensor whose shape is known by the numbers.

With `fold_constants` after it, the chains of Shape, Gather, Mul and Concat that exporters write vanish.
"""

from __future__ import annotations

import math

import numpy as np

from edgeopt.graph.graph import Graph, attribute
from edgeopt.passes import Pass, Phase


def make_shape_static(graph: Graph) -> int:
    """Return how many Shape and Size nodes became constants."""
    made = 0
    for node in graph.nodes("Shape", "Size"):
        shape = graph.shape(node.inputs[0])
        if shape is None or graph.is_output(node.outputs[0]):
            continue
        # Slicing as Python does is what Shape-15 asks for, negative and out of range included
        part = shape[attribute(node, "start", 0) : attribute(node, "end", len(shape))]
        number = np.array(part if node.op_type == "Shape" else math.prod(shape), np.int64)
        made += graph.bypass(node, keep=graph.add_initializer(f"{node.name}_static", number))
    return made


PASS = Pass(make_shape_static, Phase.SIMPLIFY)
