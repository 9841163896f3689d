"""Largest numbers and means of windows: MNN's converter divides by steps that are left out, and ends the process."""

from __future__ import annotations

import numpy as np

from edgeopt.executors._conversion.windows import Windows, counted, lies_in_padding, windows_of
from edgeopt.executors.mnn.conversion.rewriting import MnnGraph
from edgeopt.graph.graph import Node, Value, attribute


def _windows(graph: MnnGraph, node: Node) -> Windows:
    kernel: tuple[int, ...] = attribute(node, "kernel_shape", ())
    dilations: tuple[int, ...] = attribute(node, "dilations", ())
    if len(kernel) != 2 or any(size > 1 for size in dilations):
        raise graph.refuse(node, "over other axes than two, or with holes")
    windows = windows_of(node, kernel, graph.shape(node.inputs[0])[2:], graph.shape(node.outputs[0])[2:])
    if windows is None or lies_in_padding(node, windows):
        raise graph.refuse(node, "with a window that lies in padding alone")
    return windows


def _pooled(
    graph: MnnGraph, node: Node, op: str, value: Value | None, windows: Windows, pads: tuple[int, ...]
) -> Value:
    attributes = {"kernel_shape": windows.kernel, "strides": windows.strides, "pads": pads}
    return graph.add(node, op, [value], graph.shape(node.outputs[0]), **attributes)


def _padded(graph: MnnGraph, node: Node, windows: Windows, number: float) -> Value | None:
    (top, bottom), (left, right) = windows.pads
    pads, shape = (0, 0, top, left, 0, 0, bottom, right), graph.shape(node.inputs[0])
    if not any(pads):
        return node.inputs[0]
    made = (*shape[:2], shape[2] + top + bottom, shape[3] + left + right)
    return graph.add(node, "Pad", [node.inputs[0], np.array(pads), np.array(number, np.float32)], made, mode="constant")


def _largest(graph: MnnGraph, node: Node) -> None:
    if len(node.outputs) > 1 and (node.outputs[1].uses() or graph.graph.is_output(node.outputs[1])):
        raise graph.refuse(node, "with its indices read")
    windows = _windows(graph, node)
    before, behind = zip(*windows.pads, strict=True)
    if before == behind:
        graph.put(node, _pooled(graph, node, "MaxPool", node.inputs[0], windows, (*before, *behind)))
        return
    padded = _padded(graph, node, windows, float(np.finfo(np.float32).min))
    graph.put(node, _pooled(graph, node, "MaxPool", padded, windows, (0, 0, 0, 0)))


def _mean(graph: MnnGraph, node: Node) -> None:
    """Means over what lies in the picture, even padding alone MNN knows; others are weighed after a sum with zeros."""
    windows = _windows(graph, node)
    before, behind = zip(*windows.pads, strict=True)
    counts_padding = bool(attribute(node, "count_include_pad", 0))
    numbers = counted(node, windows, counts_padding=counts_padding)
    if before == behind and (not counts_padding or not any(before)) and not attribute(node, "ceil_mode", 0):
        graph.put(node, _pooled(graph, node, "AveragePool", node.inputs[0], windows, (*before, *behind)))
        return
    made = _pooled(graph, node, "AveragePool", _padded(graph, node, windows, 0.0), windows, (0, 0, 0, 0))
    factor = np.prod(windows.kernel) / numbers
    if (factor != 1).any():
        shape = graph.shape(node.outputs[0])
        made = graph.add(node, "Mul", [made, factor.astype(np.float32)[None, None]], shape)
    graph.put(node, made)


def _over_positions(graph: MnnGraph, node: Node) -> None:
    if len(graph.shape(node.inputs[0])) != 4:
        raise graph.refuse(node, "over other axes than two")


OPS = {
    "MaxPool": _largest,
    "AveragePool": _mean,
    "GlobalAveragePool": _over_positions,
    "GlobalMaxPool": _over_positions,
}
