"""Find the float tensor that an integer tensor stands for, so that both can be compared.

By its name first; then what the integer model left out behind it is followed in the float model: normalisations
and constants that went into the weights, and a Relu or Clip that the end of a grid replaces.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from edgeopt.graph.graph import Graph, Node, Value
from edgeopt.steps.quantize.inspection.tensors import QuantizedTensor, is_stored
from edgeopt.steps.quantize.patterns import LIMITERS, WEIGHTED, limits, readers_through

_SAME_VALUES = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Transpose", "Identity", "Cast")
"""Ops that change how a tensor is written, not what it says."""
_AFFINE = ("Mul", "Add", "Sub", "Div")
_SUMS = (*WEIGHTED, *_AFFINE, "BatchNormalization", "InstanceNormalization")
_MADE = re.compile(
    r"(_[A-Za-z0-9]+(_\d+)?_output_\d+|_quantized|_(Q|Deq)uantizeLinear(_Output|_Input)?(_\d+)?|_(de)?quantized?)$"
)
"""Ending that edgeopt and ONNX Runtime append to a float tensor's name for the integer tensor in its place."""
_RELU6 = 6.0
Limits: TypeAlias = tuple[float, float]
NO_LIMITS: Limits = (-math.inf, math.inf)


@dataclass(frozen=True, slots=True)
class Counterpart:
    """A float tensor, and the limits between which both sides are compared."""

    name: str
    limits: Limits = NO_LIMITS
    """Limits of the Relu or Clip behind the float tensor."""
    later: Limits = NO_LIMITS
    """Limits of the activation that the integer model still has behind its tensor: what lies beyond is lost anyway."""


class Values:
    """The values of a graph by name."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        made = (output for node in graph.nodes() for output in node.outputs)
        self.by_name: dict[str, Value] = {str(input_.name): input_ for input_ in (*graph.inputs, *made) if input_.name}


def counterpart(values: Values, floats: Values, tensor: str) -> Counterpart | None:
    """Return what an integer tensor stands for in a float model; None where that has nothing of its name.

    Args:
        values: Of the integer model.
        floats: Of the float model.
        tensor: Name of the integer tensor.
    """
    names = list(_names(values.graph, values.by_name[tensor]))
    known = next((name for name in names if name in floats.by_name), None)
    shortened = (short for name in names for short in _shortened(name) if short in floats.by_name)
    if known is None and (known := next(shortened, None)) is None:
        return None
    readers = list(readers_through(values.graph, values.by_name[tensor], _SAME_VALUES))
    return _behind(floats.graph, floats.by_name[known], values.graph, readers)


def own_counterpart(values: Values, tensor: QuantizedTensor) -> Counterpart | None:
    """Return the float tensor of the integer model itself that is rounded to this one, if there is one.

    Behind a sum, a quantization range that starts at 0 was chosen for what a Relu leaves of it, so the Relu is implied.
    """
    value = values.by_name[tensor.name]
    maker = values.graph.producer(value)
    source = maker.inputs[0] if maker is not None and "QuantizeLinear" in maker.op_type else None
    if source is None or not source.name:
        return None
    readers = list(readers_through(values.graph, value, _SAME_VALUES))
    kept = _common_limits(values.graph, readers)
    if kept is not None:
        return Counterpart(source.name, kept, kept)
    summed = values.graph.producer(source)
    if summed is not None and summed.op_type in _SUMS:
        return Counterpart(source.name, natural_limits(tensor))
    return Counterpart(source.name)


def natural_limits(tensor: QuantizedTensor) -> Limits:
    """Return between which ends of its grid a tensor ends by itself: zero as Relu has it, six as Relu6."""
    info = np.iinfo(tensor.dtype)
    if tensor.zero_points != (info.min,):
        return NO_LIMITS
    scale = tensor.scales[0]
    return 0.0, _RELU6 if abs((info.max - info.min) * scale - _RELU6) <= scale / 2 else math.inf


def _names(graph: Graph, value: Value) -> Iterator[str]:
    """Yield the names under which the float model may know a tensor: what was rounded, itself, what reads it."""
    source: Value | None = value
    while source is not None:
        yield str(source.name)
        maker = graph.producer(source)
        source = maker.inputs[0] if maker is not None and maker.op_type in _SAME_VALUES else None
    for node in graph.consumers(value):
        if node.op_type == "DequantizeLinear":
            yield str(node.outputs[0].name)


def _shortened(name: str) -> Iterator[str]:
    while (short := _MADE.sub("", name)) != name:
        yield short
        name = short


def _behind(floats: Graph, value: Value, integers: Graph, readers: list[Node]) -> Counterpart:
    """Follow what the integer model did before it rounded, and the float model does behind `value`."""
    while (node := floats.sole_consumer(value)) is not None:
        if node.op_type in ("Identity", "Dropout") or _is_folded(floats, node, value, integers, readers):
            value = node.outputs[0]
            continue
        if node.op_type in LIMITERS:
            later = _common_limits(integers, readers) or NO_LIMITS
            return Counterpart(str(value.name), limits(floats, node) or NO_LIMITS, later)
        break
    return Counterpart(str(value.name))


def _is_folded(floats: Graph, node: Node, value: Value, integers: Graph, readers: list[Node]) -> bool:
    """Whether a node of constants behind a weighted one went into its weights: the integer model has none there."""
    maker = floats.producer(value)
    if maker is None or maker.op_type not in (*WEIGHTED, *_AFFINE, "BatchNormalization"):
        return False
    if node.op_type == "BatchNormalization":
        return all(other.op_type != "BatchNormalization" for other in readers)
    if node.op_type not in _AFFINE or floats.split(node) is None:
        return False
    alike = [other for other in readers if other.op_type.removeprefix("QLinear") == node.op_type]
    return not any(
        is_stored(integers, input_) for reader in alike for input_ in reader.inputs[:4] if input_ is not None
    )


def _common_limits(graph: Graph, readers: list[Node]) -> Limits | None:
    """Return the limits that all readers have in common; None where one of them limits nothing."""
    result = {limits(graph, node) if node.op_type in LIMITERS else None for node in readers}
    return result.pop() if len(result) == 1 else None
