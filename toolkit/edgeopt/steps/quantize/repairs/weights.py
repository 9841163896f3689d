"""Repair weights and biases with the samples that calibration kept: rounding with inputs, and bias correction."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.graph import Graph, Node, attribute
from edgeopt.steps.quantize.calibration.calibrate import Calibration
from edgeopt.steps.quantize.grids.weights import QuantizedWeight, smallest_scale_for_bias
from edgeopt.steps.quantize.patterns import key, name_of, reads_along
from edgeopt.steps.quantize.repairs import gptq
from edgeopt.steps.quantize.repairs.bias_correction import mean_shift
from edgeopt.steps.quantize.scheme import Scheme, candidates

_MOST_COLUMNS = 2048
"""Above it the inverse of a layer's inputs takes longer than the rest of the search."""


def repair_weights(
    graph: Graph,
    scheme: Scheme,
    calibration: Calibration,
    *,
    rounding: bool = True,
    biases: bool = True,
    ends_at_s: float = math.inf,
) -> Scheme:
    """Return the scheme with weights rounded on their real inputs and biases corrected.

    Args:
        graph: The float model.
        scheme: What runs on integers.
        calibration: With samples of the inputs of each layer; a layer that sums them over another axis than they
            were taken along is left as it is.
        rounding: Whether to round 1x1 convolutions and matrices by GPTQ.
        biases: Whether to correct biases.
        ends_at_s: On the monotonic clock; layers after it are rounded to nearest.
    """
    weights, shifted = dict(scheme.weights), dict(scheme.biases)
    for node in candidates(graph, scheme.rules):
        source = node.inputs[0]
        seen = calibration.observations.get(name_of(source)) if source is not None else None
        if seen is None or source is None or not reads_along(graph, node, seen.axis):
            continue
        inputs = scheme.affines[name_of(source)].round_trip(seen.samples)
        real, quantized = _nearest(graph, node, scheme)
        in_time = rounding and time.monotonic() < ends_at_s
        if in_time and _is_matrix(node, real) and inputs.shape[1] <= _MOST_COLUMNS:
            quantized = gptq.rounded(quantized, real, inputs, reduce_range=scheme.reduces_range(graph, node))
            weights[key(node)] = quantized
        if biases and node.op_type == "Conv":
            shift = mean_shift(
                real, quantized.real, seen.samples.mean(axis=0), inputs.mean(axis=0), attribute(node, "group", 1)
            )
            shifted[key(node)] = _bias(graph, node) + shift
    return replace(scheme, weights=weights, biases=shifted)


def _bias(graph: Graph, node: Node) -> NDArray[np.float32]:
    bias = graph.constant(node.inputs[2]) if len(node.inputs) > 2 else None
    weight = graph.constant(node.inputs[1])
    assert weight is not None
    return np.zeros(weight.shape[0], np.float32) if bias is None else bias


def _nearest(graph: Graph, node: Node, scheme: Scheme) -> tuple[NDArray[np.float32], QuantizedWeight]:
    weight, source = graph.constant(node.inputs[1]), node.inputs[0]
    assert weight is not None
    assert source is not None
    smallest = None
    if node.op_type == "Conv":
        smallest = smallest_scale_for_bias(_bias(graph, node), scheme.affines[name_of(source)].scale)
    return weight, scheme.quantized_weight(graph, node, smallest)


def _is_matrix(node: Node, weight: NDArray[np.float32]) -> bool:
    return weight.ndim == 2 or (attribute(node, "group", 1) == 1 and set(weight.shape[2:]) == {1})
