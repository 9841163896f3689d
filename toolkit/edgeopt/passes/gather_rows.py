"""Gather whole rows by one index each, in place of an index for every number that was widened from it.

PyTorch writes `x.gather(1, index.expand(-1, -1, 4))` as an Expand and a GatherElements: YOLO26 and YOLOv10 choose
boxes, points and masks so. OpenVINO 2026.4 takes the Slice before such a node out and refuses what is left (YOLO26's
poses and masks); every engine computes fewer indices.
Source: ONNX GatherElements-13, Gather-13.
"""

from __future__ import annotations

import numpy as np

from edgeopt.graph.graph import Graph, Node, Value, attribute
from edgeopt.passes import Pass, Phase

_LIST = np.array([-1], np.int64)


def gather_rows(graph: Graph) -> int:
    """Return how many GatherElements nodes became a Gather."""
    made = 0
    for node in graph.nodes("GatherElements"):
        rows = _rows_of(graph, node)
        if rows is None:
            continue
        flat = graph.insert("Reshape", [rows, graph.add_initializer(f"{node.name}_list", _LIST)], before=node)
        axis = attribute(node, "axis", 0)
        gathered = graph.insert("Gather", [node.inputs[0], flat.outputs[0]], {"axis": axis}, before=node)
        made += graph.bypass(node, keep=gathered)
    return made


def _rows_of(graph: Graph, node: Node) -> Value | None:
    """Return the indices before they were widened, where each is that of a whole row; None: they are not."""
    expand = graph.producer(node.inputs[1], "Expand")
    if expand is None:
        return None
    data, wide, narrow = map(graph.shape, (node.inputs[0], node.inputs[1], expand.inputs[0]))
    if data is None or wide is None or narrow is None or len(narrow) != len(data):
        return None
    axis = attribute(node, "axis", 0) % len(data)
    others = [place for place in range(len(data)) if place != axis]
    is_row = all(narrow[place] == 1 and wide[place] == data[place] for place in others)
    return expand.inputs[0] if is_row and narrow[axis] == wide[axis] else None


PASS = Pass(gather_rows, Phase.SIMPLIFY)
