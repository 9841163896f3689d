"""Write a Slice's bounds as plain numbers: counted from 0, inside the dimension, with axes and steps.

Exporters write -1 for the last and 2^63 - 1 for the end; some NPU compilers take neither.
Source: ONNX Slice-13, for steps above zero.
"""

from __future__ import annotations

import numpy as np

from edgeopt.graph.graph import Graph, Node
from edgeopt.passes import Pass, Phase


def make_slice_static(graph: Graph) -> int:
    """Return how many Slice nodes got plain bounds."""
    made = 0
    for node in graph.nodes("Slice"):
        plain, written = _plain_bounds(graph, node), graph.constants(node.inputs[1:])
        if plain is None or (written and [array.tolist() for array in written] == plain):
            continue
        for index, numbers in enumerate(plain, start=1):
            graph.set_input(node, index, np.array(numbers, np.int64))
        made += 1
    return made


def _plain_bounds(graph: Graph, node: Node) -> list[list[int]] | None:
    """Return starts, ends, axes and steps of a Slice of opset 10 or later, None if they stay as they are."""
    shape = node.inputs[0].shape if node.inputs[0] is not None else None
    arrays = graph.constants(value for value in node.inputs[1:] if value is not None)
    if shape is None or not arrays or len(arrays) != len(node.inputs) - 1:
        return None
    starts, ends = arrays[0].tolist(), arrays[1].tolist()
    axes = arrays[2].tolist() if len(arrays) > 2 else list(range(len(starts)))
    steps = arrays[3].tolist() if len(arrays) > 3 else [1] * len(starts)
    axes = [axis % shape.rank() for axis in axes]
    lengths = [size for axis in axes if isinstance(size := shape[axis], int)]
    if min(steps, default=1) < 1 or len(lengths) != len(axes):
        return None
    return [
        [_inside(start, size) for start, size in zip(starts, lengths, strict=True)],
        [_inside(end, size) for end, size in zip(ends, lengths, strict=True)],
        axes,
        steps,
    ]


def _inside(index: int, size: int) -> int:
    return min(max(index + size if index < 0 else index, 0), size)


PASS = Pass(make_slice_static, Phase.SIMPLIFY)
