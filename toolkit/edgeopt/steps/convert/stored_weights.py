"""Store the weights of a model in 8 bits, and compute in float: the session dequantizes them once, as it is created.

A model that goes over the wire each time an app loads it is a third to a quarter of its size so, at the same speed:
where an engine has no fast integer kernels, bytes are what INT8 is for.
"""

from __future__ import annotations

from edgeopt.executors.onnxruntime import UNFUSED
from edgeopt.graph.graph import Graph, Value
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.steps.quantize.calibration.findings import require_finite_weights
from edgeopt.steps.quantize.formats._pairs import store_integers
from edgeopt.steps.quantize.grids.weights import quantize_weight
from edgeopt.steps.quantize.patterns import WEIGHTED, name_of, weight_axis

_LEAST = 1024
"""Weights of a layer below which scales and names take as many bytes as are saved."""


def store_weights(model: Model) -> Outcome:
    """Return the model with the large weights of its layers as integers, a scale for each output channel.

    Args:
        model: A float model, opset 13 or later.

    Raises:
        UnsupportedError: If a weight is NaN or infinite.
    """
    graph = Graph.from_model(model)
    layers = [node for node in graph.nodes(*WEIGHTED) if _is_stored(graph, node.inputs[1])]
    require_finite_weights(layers, graph)
    for node in layers:
        value = node.inputs[1]
        weight = graph.constant(value)
        assert value is not None
        assert weight is not None
        axis = weight_axis(node) % weight.ndim
        stored = quantize_weight(name_of(value), weight, axis)
        store_integers(graph, node, 1, stored.values, stored.scale, axis)
    graph.remove_unused()
    changes = {"weights stored in 8 bits": len(layers)} if layers else {}
    return Outcome(graph.to_model(), changes, options=UNFUSED)


def _is_stored(graph: Graph, value: Value | None) -> bool:
    weight = graph.constant(value)
    return weight is not None and weight.dtype == "float32" and weight.ndim >= 2 and weight.size >= _LEAST
