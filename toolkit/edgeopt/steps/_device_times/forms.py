"""An INT8 form, as far as its time hangs on it: which layers it computes in float, and what lies between them.

Between a layer on integers and one in float numbers are quantized or dequantized, and in forms with channels last also
transposed: passes over a tensor that the engine runs as ops of their own. A pair between two ops on integers is none:
engines join it with them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import onnx

from edgeopt.graph.model import Model
from edgeopt.steps._device_times.features import BORDERS, LayerFeatures, border_of, features_of
from edgeopt.steps.prune.network.layer_shapes import WEIGHTED, LayerShape

_TURN = "Transpose"
_JOINED = WEIGHTED | {
    *("Add", "Mul", "Sigmoid", "LeakyRelu", "Softmax", "AveragePool", "GlobalAveragePool", "Concat", "Where"),
    *("MaxPool", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Resize", "Slice", "Split", "Gather"),
}
"""Ops that an engine joins with the pairs around them into one on integers."""
_LIMITERS = frozenset({"Relu", "Clip"})
"""Ops that go into the grid of the pair behind them."""
_SUFFIXES = ("_quantize", "_dequantize", "_transpose")


@dataclass(frozen=True, slots=True)
class FormLayers:
    """The layers of an INT8 form."""

    integer: tuple[LayerFeatures, ...]
    """Those on integers, and all that have no weights."""
    in_float: tuple[LayerFeatures, ...]
    """Those with weights that stay in float."""
    borders: tuple[LayerFeatures, ...]
    float_places: frozenset[int]
    """Places of those in float among all layers of the float model."""


def is_predictable(form: Model) -> bool:
    """Whether a form stores its grids, as those do that devices are timed with: what finding them takes is unknown."""
    return "DynamicQuantizeLinear" not in form.op_counts


def layers_of_form(shapes: Sequence[LayerShape], form: Model) -> FormLayers:
    """Return the layers of an INT8 form.

    Args:
        shapes: Layers of its float model.
        form: Made of it, its nodes named after the tensors of the float model.
    """
    graph = form.proto.graph
    makers = {name: node for node in graph.node for name in node.output}
    floats = {
        _tensor(node)
        for node in graph.node
        if node.op_type in WEIGHTED and makers.get(node.input[1], node).op_type != "DequantizeLinear"
    }
    places = frozenset(
        place
        for place, shape in enumerate(shapes)
        if shape.layer.is_weighted and shape.layer.nodes[0].output[0] in floats
    )
    features = [features_of(shape) for shape in shapes]
    return FormLayers(
        integer=tuple(each for place, each in enumerate(features) if place not in places),
        in_float=tuple(features[place] for place in sorted(places)),
        borders=tuple(border for _, border in borders_by_name(shapes, form)),
        float_places=places,
    )


def borders_by_name(shapes: Sequence[LayerShape], form: Model) -> list[tuple[str, LayerFeatures]]:
    """Return the passes between layers that an engine runs, with the names of their nodes.

    Args:
        shapes: As `layers_of_form`.
        form: As `layers_of_form`.
    """
    elements = {name: math.prod(sizes) for shape in shapes for name, sizes in shape.sizes.items()}
    own_turns = {node.output[0] for shape in shapes for node in shape.layer.nodes if node.op_type == _TURN}
    return [
        (node.name, border_of(node.op_type, elements[_tensor(node)]))
        for node in _executed(form.proto.graph)
        if _tensor(node) in elements and node.output[0] not in own_turns
    ]


def _tensor(node: onnx.NodeProto) -> str:
    """Return the tensor of the float model after which a node of a form is called."""
    name = node.name or node.output[0]
    for suffix in (*_SUFFIXES, f"_{node.op_type}"):
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name


def _executed(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Return the nodes between layers that an engine runs by themselves."""
    makers = {name: node for node in graph.node for name in node.output}
    readers: dict[str, list[onnx.NodeProto]] = defaultdict(list)
    for node in graph.node:
        for name in node.input:
            readers[name].append(node)
    constants = {constant.name for constant in graph.initializer}

    def is_integer(node: onnx.NodeProto | None) -> bool:
        if node is not None and node.op_type in _LIMITERS:
            node = makers.get(node.input[0])
        if node is None or node.op_type not in _JOINED:
            return False
        read = [makers[name] for name in node.input if name in makers]
        made = [reader for name in node.output for reader in readers[name]]
        made += [further for each in made if each.op_type in _LIMITERS for further in readers[each.output[0]]]
        behind = [each for each in made if each.op_type not in _LIMITERS]
        reads = bool(read) and all(other.op_type == "DequantizeLinear" for other in read)
        return reads and bool(behind) and all(other.op_type == "QuantizeLinear" for other in behind)

    result = list[onnx.NodeProto]()
    for node in graph.node:
        if node.op_type not in BORDERS or node.input[0] in constants:
            continue
        if node.op_type == "QuantizeLinear" and is_integer(makers.get(node.input[0])):
            continue
        later = readers[node.output[0]]
        if node.op_type == "DequantizeLinear" and later and all(map(is_integer, later)):
            continue
        result.append(node)
    return result
