"""Conversions of a float model without a search, by precision scheme, for ONNX Runtime, in a browser too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from edgeopt.executors.onnxruntime.providers import CPU, TENSORRT
from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.graph.tensors import Tensors
from edgeopt.steps.convert.float16 import make_float16
from edgeopt.steps.convert.stored_weights import store_weights
from edgeopt.steps.convert.weight_only import is_mostly_matrices, make_weight_only
from edgeopt.steps.quantize.formats.dynamic import make_dynamic
from edgeopt.steps.quantize.formats.matmul_integer import is_made_of_products
from edgeopt.system.declared.target import Target

Conversion = Callable[[Model, Target, Sequence[Tensors]], list[Outcome]]


def is_converted(precision: str, target: Target) -> bool:
    """Whether a precision must be the model's own; other engines, and TensorRT, compute in it whatever the model is."""
    itself = precision == "fp16" and target.providers[0] == TENSORRT
    return target.executor in ("onnxruntime", "browser") and precision in CONVERSIONS and not itself


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

    Nothing for a model whose work is in convolutions. For a page that loads it: weights stored so, computed in float.
    """
    if target.executor == "browser":
        return [store_weights(model)]
    graph = _graph(model)
    made = [make_dynamic(model, target.rules_here)] if is_made_of_products(graph) else []
    return [*made, make_weight_only(model, 8)] if made and is_mostly_matrices(graph) else made


def four_bits(model: Model, _target: Target, _inputs: Sequence[Tensors] = ()) -> list[Outcome]:
    """Return the model with its matrices in INT4, where they hold most of its weights; otherwise nothing."""
    return [make_weight_only(model, 4)] if is_mostly_matrices(_graph(model)) else []


def half(model: Model, _target: Target, inputs: Sequence[Tensors]) -> list[Outcome]:
    """Return the model in float16."""
    return [make_float16(model, inputs)]


def _graph(model: Model) -> Graph:
    graph = Graph.from_model(model)
    graph.infer_shapes()
    return graph


CONVERSIONS: Mapping[str, Conversion] = MappingProxyType({"w8": eight_bits, "w4": four_bits, "fp16": half})
"""Precision scheme -> what makes models of it, the most promising first."""
