"""Normalization by stored and by computed means."""

from __future__ import annotations

import numpy as np

from edgeopt.executors.mnn.conversion.rewriting import MnnGraph
from edgeopt.graph.graph import Node, attribute


def _batch(graph: MnnGraph, node: Node) -> None:
    if attribute(node, "training_mode", 0) or any(output.uses() for output in node.outputs[1:]):
        raise graph.refuse(node, "in training")
    numbers = [graph.numbers(node, place) for place in range(1, 5)]
    if any(array is None for array in numbers):
        raise graph.refuse(node, "without its numbers")
    gamma, beta, mean, variance = (np.asarray(array, np.float64) for array in numbers)
    scale = gamma / np.sqrt(variance + attribute(node, "epsilon", 1e-5))
    shape = graph.shape(node.inputs[0])
    row = (1, -1, *(1,) * (len(shape) - 2))
    weight, bias = (array.astype(np.float32).reshape(row) for array in (scale, beta - mean * scale))
    scaled = graph.add(node, "Mul", [node.inputs[0], weight], shape)
    graph.put(node, graph.add(node, "Add", [scaled, bias], shape))


def _layer(graph: MnnGraph, node: Node) -> None:
    """Write both rows: MNN takes them only together, and along the last axis."""
    shape = graph.shape(node.inputs[0])
    scale, bias = graph.numbers(node, 1), graph.numbers(node, 2)
    is_last = attribute(node, "axis", -1) % len(shape) == len(shape) - 1
    if not is_last or scale is None or any(output.uses() for output in node.outputs[1:]):
        raise graph.refuse(node, "over several axes, or with its means read")
    rows = [
        np.ascontiguousarray(np.broadcast_to(row, shape[-1:]), np.float32)
        for row in (scale.reshape(-1), np.zeros(1) if bias is None else bias.reshape(-1))
    ]
    epsilon = attribute(node, "epsilon", 1e-5)
    made = graph.add(node, "LayerNormalization", [node.inputs[0], *rows], shape, axis=-1, epsilon=epsilon)
    graph.put(node, made)


def _instance(graph: MnnGraph, node: Node) -> None:
    if graph.numbers(node, 1) is None or graph.numbers(node, 2) is None:
        raise graph.refuse(node, "without its numbers")


def _neighbours(graph: MnnGraph, node: Node) -> None:
    if len(graph.shape(node.inputs[0])) != 4:
        raise graph.refuse(node, "over other axes than two")


OPS = {
    "BatchNormalization": _batch,
    "LayerNormalization": _layer,
    "InstanceNormalization": _instance,
    "LRN": _neighbours,
}
