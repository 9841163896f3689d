"""Conversions of a float model without a search, by precision scheme.

They are for ONNX Runtime, in a browser too; products on grids that are found as the model runs, which need no samples,
also for other engines that have them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from edgeopt.executors.onnxruntime import UNFUSED
from edgeopt.executors.onnxruntime.providers import CPU, TENSORRT
from edgeopt.graph.graph import Graph, Value
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.graph.tensors import Tensors
from edgeopt.steps.convert.blocks import nearest_with_zeros, to_nearest
from edgeopt.steps.convert.float16 import make_float16
from edgeopt.steps.convert.weight_only import is_mostly_matrices, make_weight_only
from edgeopt.steps.quantize.calibration.findings import require_finite_weights
from edgeopt.steps.quantize.formats._pairs import store_integers
from edgeopt.steps.quantize.formats.dynamic import make_dynamic
from edgeopt.steps.quantize.formats.matmul_integer import is_made_of_products
from edgeopt.steps.quantize.grids.weights import quantize_weight
from edgeopt.steps.quantize.patterns import WEIGHTED, name_of, weight_axis
from edgeopt.system.declared.target import Target
from edgeopt.system.machine.processor import cpu_architecture

Conversion = Callable[[Model, Target, Sequence[Tensors]], list[Outcome]]
_ONNXRUNTIME = ("onnxruntime", "browser")


def is_converted(precision: str, target: Target) -> bool:
    """Whether a precision must be the model's own; other engines, and TensorRT, compute in it whatever the model is."""
    if target.executor not in _ONNXRUNTIME:
        return precision == "w8" and "dynamic" in target.int8.forms
    itself = precision == "fp16" and target.providers[0] == TENSORRT
    return precision in CONVERSIONS and not itself


def why_not_converted(precision: str, target: Target, may_quantize: bool) -> str:
    """Return why a precision must not be offered; empty if it may.

    Args:
        precision: One of CONVERSIONS.
        target: Whose engine would run it.
        may_quantize: Whether the user left the step quantize in.
    """
    if precision == "fp16" and target.providers[0] == CPU and target.processor.architecture != "arm64":
        return "this processor has no kernels in float16, so that every op would be cast and cast back"
    return "" if precision == "fp16" or may_quantize else "the step quantize is left out"


def eight_bits(model: Model, target: Target, _inputs: Sequence[Tensors] = ()) -> list[Outcome]:
    """Return the model with its matrices in INT8: by columns, and by blocks that activations are rounded with too.

    Nothing for a model whose work is in convolutions, and blocks for ONNX Runtime alone. For a page that loads it:
    weights stored so, computed in float.
    """
    if target.executor == "browser":
        return [store_weights(model)]
    graph = _graph(model)
    made = [make_dynamic(model, target.rules_here)] if is_made_of_products(graph) else []
    has_blocks = target.executor in _ONNXRUNTIME and is_mostly_matrices(graph)
    return [*made, make_weight_only(model, 8)] if made and has_blocks else made


def four_bits(model: Model, target: Target, _inputs: Sequence[Tensors] = ()) -> list[Outcome]:
    """Return the model with its matrices in INT4, where they hold most of its weights; otherwise nothing.

    Made here for Arm its blocks have zeros: without them Arm computes other numbers than those that are judged here.
    """
    is_for_arm = "arm64" in (*target.architectures, target.processor.architecture)
    rounding = nearest_with_zeros if is_for_arm and cpu_architecture() != "arm64" else to_nearest
    return [make_weight_only(model, 4, rounding=rounding)] if is_mostly_matrices(_graph(model)) else []


def half(model: Model, _target: Target, inputs: Sequence[Tensors]) -> list[Outcome]:
    """Return the model in float16."""
    return [make_float16(model, inputs)]


def _graph(model: Model) -> Graph:
    graph = Graph.from_model(model)
    graph.infer_shapes()
    return graph


CONVERSIONS: Mapping[str, Conversion] = MappingProxyType({"w8": eight_bits, "w4": four_bits, "fp16": half})
"""Precision scheme -> what makes models of it, the most promising first."""


# Store the weights of a model in 8 bits, and compute in float: the session dequantizes them once, as it is created.
#
# A model that goes over the wire each time an app loads it is a third to a quarter of its size so, at the same speed:
# where an engine has no fast integer kernels, bytes are what INT8 is for.

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
