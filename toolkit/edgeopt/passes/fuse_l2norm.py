"""Make one LpNormalization of a division by the Euclidean length.

    x / ReduceL2(x)   ->   LpNormalization(x), p = 2

over one axis, also where a tiny lower limit (Clip, Max, or an Expand of it) guards against zero. NPU compilers
refuse ReduceL2. A vector shorter than the limit, but not zero, comes out with length 1.
Source: ONNX LpNormalization-1: a vector of length zero stays zero.
"""

from __future__ import annotations

from edgeopt.graph.graph import Graph, Node, Value, attribute
from edgeopt.passes import Pass, Phase

_MOST_EPSILON = 1e-6
_OPSET_OF_AXES_AS_INPUT = 18


def fuse_l2norm(graph: Graph) -> int:
    """Return how many divisions by a length became an LpNormalization."""
    fused = sum(_fuse(graph, node) for node in graph.nodes("Div"))
    if fused:
        graph.remove_unused()
    return fused


def _fuse(graph: Graph, quotient: Node) -> bool:
    x = quotient.inputs[0]
    length = graph.producer(_without_guard(graph, quotient.inputs[1]), "ReduceL2")
    if x is None or length is None or length.inputs[0] is not x or attribute(length, "keepdims", 1) != 1:
        return False
    axes: tuple[int, ...] = attribute(length, "axes", ())
    if graph.opset >= _OPSET_OF_AXES_AS_INPUT:
        array = graph.constant(length.inputs[1]) if len(length.inputs) > 1 else None
        axes = () if array is None else tuple(int(value) for value in array.reshape(-1))
    if len(axes) != 1:
        return False
    new = graph.insert("LpNormalization", [x], {"axis": axes[0], "p": 2}, before=quotient)
    return graph.bypass(quotient, keep=new)


def _without_guard(graph: Graph, value: Value | None) -> Value | None:
    """Return the length behind an Expand and a lower limit of at most _MOST_EPSILON."""
    expand = graph.producer(value, "Expand")
    if expand is not None:
        value = expand.inputs[0]
    clip, most = graph.producer(value, "Clip"), graph.producer(value, "Max")
    if clip is not None and len(clip.inputs) == 2:
        limit = graph.constant(clip.inputs[1])
        return clip.inputs[0] if limit is not None and 0 <= float(limit.reshape(-1)[0]) <= _MOST_EPSILON else value
    guarded = graph.split_scalar(most) if most is not None else None
    return guarded[0] if guarded is not None and 0 <= guarded[1] <= _MOST_EPSILON else value


PASS = Pass(fuse_l2norm, Phase.DEVICE)
