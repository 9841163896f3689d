"""Compute a large MaxPool from a smaller one of the same tensor, as in a pyramid of growing windows.

The maximum of maxima over windows of k is the maximum over a window of k + r - 1, for a second window of r. At the
picture's edge too: padding is minus infinity, and the clipped windows join without a gap.
"""

from __future__ import annotations

from edgeopt.graph.graph import Graph, Node, Value, attribute
from edgeopt.passes import Pass, Phase

Window = tuple[int, ...]


def cascade_maxpool(graph: Graph) -> int:
    """Return how many MaxPool nodes now read a smaller one's result."""
    pools: dict[Value, list[tuple[Window, Node]]] = {}
    for node in graph.nodes("MaxPool"):
        window, source = _centred_window(graph, node), node.inputs[0]
        if window is not None and source is not None:
            pools.setdefault(source, []).append((window, node))
    cascaded = 0
    for group in pools.values():
        for window, node in group:
            inside = [pair for pair in group if pair[0] != window and _fits(pair[0], window)]
            if inside:
                _read_smaller(graph, node, window, *max(inside, key=lambda pair: pair[0]))
                cascaded += 1
    return cascaded


def _centred_window(graph: Graph, node: Node) -> Window | None:
    """Return the window if it is odd, dense, centred and keeps the picture's size, otherwise None."""
    window: Window = attribute(node, "kernel_shape", ())
    strides: Window = attribute(node, "strides", (1,) * len(window))
    dilations: Window = attribute(node, "dilations", (1,) * len(window))
    pads: Window = attribute(node, "pads", (0,) * 2 * len(window))
    mode: str = attribute(node, "auto_pad", "NOTSET")
    dense = {*strides, *dilations} == {1} and len(node.outputs) == 1
    centred = mode == "SAME_UPPER" or (mode == "NOTSET" and pads == tuple(size // 2 for size in window) * 2)
    return window if dense and centred and all(size % 2 for size in window) else None


def _fits(small: Window, large: Window) -> bool:
    return max(small) > 1 and all(number <= other for number, other in zip(small, large, strict=True))


def _read_smaller(graph: Graph, node: Node, window: Window, small: Window, smaller: Node) -> None:
    rest = [size - done + 1 for size, done in zip(window, small, strict=True)]
    graph.set_input(node, 0, smaller.outputs[0])
    graph.set_attribute(node, "kernel_shape", rest)
    graph.set_attribute(node, "auto_pad", None)
    graph.set_attribute(node, "pads", [size // 2 for size in rest] * 2)


PASS = Pass(cascade_maxpool, Phase.FUSE)
