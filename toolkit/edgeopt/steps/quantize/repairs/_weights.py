"""Repair weights and biases with the samples that calibration kept."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.files.large_constants import held_outside
from edgeopt.graph.graph import Graph, Node
from edgeopt.steps.quantize.calibration.calibrate import Calibration
from edgeopt.steps.quantize.grids.weights import smallest_scale_for_bias
from edgeopt.steps.quantize.patterns import key, name_of, reads_along
from edgeopt.steps.quantize.repairs import IntegerLayer, Setting, weight_repairs
from edgeopt.steps.quantize.scheme import Scheme, candidates


def repair_weights(
    graph: Graph,
    scheme: Scheme,
    calibration: Calibration,
    settings: Mapping[str, Setting],
    *,
    ends_at_s: float = math.inf,
) -> Scheme:
    """Return the scheme with weights and biases repaired.

    Args:
        graph: The float model.
        scheme: What runs on integers.
        calibration: With samples of the inputs of each layer; a layer that sums them over another axis than they
            were taken along is left as it is.
        settings: How each repair of weights is made, by its name; other repairs are passed over.
        ends_at_s: On the monotonic clock; slow repairs leave layers after it as they are.
    """
    wanted = [(weight_repair, settings[name]) for name, weight_repair in weight_repairs().items() if name in settings]
    weights, biases = dict(scheme.weights), dict(scheme.biases)
    for node in candidates(graph, scheme.rules):
        mine = [(weight_repair, setting) for weight_repair, setting in wanted if weight_repair.concerns(node)]
        layer = _layer(graph, node, scheme, calibration) if mine else None
        if layer is None:
            continue
        repaired = layer
        for weight_repair, setting in mine:
            if not weight_repair.is_slow or time.monotonic() < ends_at_s:
                repaired = weight_repair.repair(repaired, setting)
        if repaired.quantized is not layer.quantized:
            weights[key(node)] = replace(repaired.quantized, values=held_outside(repaired.quantized.values))
        if repaired.bias is not None and repaired.bias is not layer.bias:
            biases[key(node)] = repaired.bias
    return replace(scheme, weights=weights, biases=biases)


def _layer(graph: Graph, node: Node, scheme: Scheme, calibration: Calibration) -> IntegerLayer | None:
    """Return a layer rounded to nearest, with its real inputs; None where those say nothing of it."""
    source, weight = node.inputs[0], graph.constant(node.inputs[1])
    seen = calibration.observations.get(name_of(source)) if source is not None else None
    if seen is None or source is None or not reads_along(graph, node, seen.axis):
        return None
    assert weight is not None
    affine = scheme.affines[name_of(source)]
    bias = _bias(graph, node, weight) if node.op_type == "Conv" else None
    smallest = None if bias is None else smallest_scale_for_bias(bias, affine.scale)
    quantized = scheme.quantized_weight(graph, node, smallest)
    return IntegerLayer(graph, node, scheme, weight, bias, seen.samples, affine.round_trip(seen.samples), quantized)


def _bias(graph: Graph, node: Node, weight: NDArray[np.float32]) -> NDArray[np.float32]:
    bias = graph.constant(node.inputs[2]) if len(node.inputs) > 2 else None
    return np.zeros(weight.shape[0], np.float32) if bias is None else bias
