"""Read the constants of a model, and write others under the same names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from edgeopt.graph.model import Model
from edgeopt.steps.prune.network.layers import Layer

Array = NDArray[Any]


def constants_of(model: Model) -> dict[str, Array]:
    """Return the numbers of all initializers and Constant nodes of the main graph, by name."""
    arrays = {constant.name: numpy_helper.to_array(constant) for constant in model.proto.graph.initializer}
    for node in model.proto.graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            arrays[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    return arrays


def with_weights(model: Model, weights: Mapping[str, Array], biases: Mapping[Layer, Array]) -> Model:
    """Return the model with other weights and biases, under the same names.

    A bias that several nodes read is stored once more, for its layer alone, and so is one that there was not.

    Args:
        model: It is not changed.
        weights: By the constant's name.
        biases: Shape (outputs,), as they are added to the product.
    """
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    stored = constants_of(model)
    readers = Counter(name for node in proto.graph.node for name in node.input)
    makers = {node.output[0]: node for node in proto.graph.node}
    changed = dict(weights)
    for layer, bias in biases.items():
        scaled = bias / layer.bias_scale
        if layer.bias:
            like = stored[layer.bias]
            scaled = scaled.astype(like.dtype).reshape(like.shape)
        else:
            scaled = scaled.astype(stored[layer.weight].dtype)
        if layer.bias and readers[layer.bias] == 1:
            changed[layer.bias] = scaled
            continue
        name = _free_name(f"{layer.name}_bias", readers)
        _read_bias(makers[layer.bias_node], layer.bias or "", name)
        proto.graph.initializer.append(numpy_helper.from_array(scaled, name))
    _store(proto.graph, changed)
    return Model(proto, model.name)


def _free_name(wanted: str, taken: Counter[str]) -> str:
    name = wanted
    while name in taken:
        name += "_"
    taken[name] = 1
    return name


def _read_bias(node: onnx.NodeProto, old: str, name: str) -> None:
    """Let a node read another bias."""
    if old:
        node.input[list(node.input).index(old)] = name
    elif len(node.input) > 2:
        node.input[2] = name
    else:
        node.input.append(name)


def _store(graph: onnx.GraphProto, changed: Mapping[str, Array]) -> None:
    for constant in graph.initializer:
        if constant.name in changed:
            constant.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(changed[constant.name]), constant.name))
    for node in graph.node:
        if node.op_type == "Constant" and node.output[0] in changed:
            node.attribute[0].t.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(changed[node.output[0]])))
