"""The ranges that the quantizers at the ends of an INT8 model hold."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model

_KEEPS_NUMBERS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
"""Ops that move numbers and change none, such as the turn to channels last before the first quantizer."""


def held_ranges(model: Model) -> dict[str, tuple[float, float]]:
    """Return by input and output the least and the largest number that its own quantizer holds.

    An end without a quantizer of one scale is left out: what it is fed first is computed in float.
    """
    graph = Graph.from_model(model)
    ranges = dict(_of_inputs(graph))
    for value in graph.outputs:
        node = graph.producer(value)
        while node is not None and node.op_type in _KEEPS_NUMBERS:
            node = graph.producer(node.inputs[0])
        if node is not None and node.op_type == "DequantizeLinear" and value.name and (held := _held(graph, node)):
            ranges[value.name] = held
    return ranges


def _of_inputs(graph: Graph) -> Iterator[tuple[str, tuple[float, float]]]:
    for value in graph.inputs:
        readers = graph.consumers(value)
        while len(readers) == 1 and readers[0].op_type in _KEEPS_NUMBERS:
            readers = graph.consumers(readers[0].outputs[0])
        held = [_held(graph, node) for node in readers if node.op_type == "QuantizeLinear"]
        if value.name and held and len(held) == len(readers) and held[0] is not None and len(set(held)) == 1:
            yield value.name, held[0]


def _held(graph: Graph, node: ir.Node) -> tuple[float, float] | None:
    """Return the range of a grid of one scale: (least - zero point) x scale to (largest - zero point) x scale."""
    inputs = [*node.inputs, None][:3]
    scale, zero_point = graph.constant(inputs[1]), graph.constant(inputs[2])
    if scale is None or scale.size != 1 or zero_point is None or zero_point.size != 1:
        return None
    if zero_point.dtype.kind not in "iu":  # 8-bit floats
        return None
    integers, step, zero = np.iinfo(zero_point.dtype), float(scale.reshape(-1)[0]), int(zero_point.reshape(-1)[0])
    return (integers.min - zero) * step, (integers.max - zero) * step
