"""Helpers of the two steps that embed a part of the recipe: nodes joined to a model's ends."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, compose, helper

from edgeopt.errors import UnsupportedError
from edgeopt.graph.model import Model
from edgeopt.graph.nodes import Nodes
from edgeopt.graph.subgraphs import all_nodes
from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.embedded import (
    BOXES,
    CLASS_MAP,
    CLASSES,
    FRAME,
    FRAME_OFFSET,
    FRAME_SCALE,
    MASKS,
    PICTURE,
    POINTS,
    SCORES,
)
from edgeopt.runtime.devices.availability import is_compiled
from edgeopt.steps._canonical import upgrade_opset
from edgeopt.system.declared.target import Target

_LEAST_OPSET = 13
"""Opset from which on the ops that are written take their axes and sizes as inputs."""
_RESERVED = {FRAME, FRAME_SCALE, FRAME_OFFSET, BOXES, SCORES, CLASSES, POINTS, MASKS, CLASS_MAP}
PREFIX = "model/"
"""Prefix of all names of a model that uses one of ours."""


def why_not_embedded(target: Target) -> str:
    """Return why nothing is embedded for a target; empty where it is."""
    if is_compiled(target):
        return f"what compiles for {target.name!r} takes no frames of free size"
    return "" if target.device == "cpu" else f"a frame's ops were never tried on a {target.device}"


def prepared(model: Model, taken: str = FRAME) -> Model:
    """Return the model in an opset that the nodes are written for, without a tensor of a name that they use.

    Args:
        model: It is not changed.
        taken: Name of the input that it is to have.

    Raises:
        UnsupportedError: If onnx cannot bring it into that opset.
    """
    if model.opset < _LEAST_OPSET:
        try:
            model = upgrade_opset(model, _LEAST_OPSET)
        except ValueError as error:
            raise UnsupportedError(
                f"opset {model.opset} does not become {_LEAST_OPSET}: {error}", remedy="export the model again"
            ) from error
    used = {name for node in all_nodes(model.proto.graph) for name in (*node.input, *node.output)}
    if not used & ({taken, *_RESERVED} - {FRAME_SCALE, FRAME_OFFSET}) or any(map(_is_ours, model.inputs)):
        return model
    return Model(compose.add_prefix(model.proto, PREFIX), model.name)


def _is_ours(taken: TensorSpec) -> bool:
    return taken.name in (FRAME, PICTURE) and taken.dtype == "uint8" and len(taken.shape) == 3


def put_before(model: Model, name: str, nodes: Nodes, inputs: Sequence[TensorSpec]) -> Model:
    """Return the model with one input made by nodes.

    Args:
        model: It is not changed.
        name: The input; the last of the nodes gives its value this name.
        nodes: Ready.
        inputs: What the model takes in its place.
    """
    proto = _copy(model, nodes)
    for node in reversed(nodes.written):
        proto.graph.node.insert(0, node)
    kept = [value_info for value_info in proto.graph.input if value_info.name != name]
    del proto.graph.input[:]
    proto.graph.input.extend([*map(_value, inputs), *kept])
    return Model(proto, model.name)


def put_after(model: Model, nodes: Nodes, outputs: Sequence[TensorSpec], *, keep: bool) -> Model:
    """Return the model with nodes behind it.

    Args:
        model: It is not changed.
        nodes: Ready.
        outputs: What they make.
        keep: Whether its own outputs stay.
    """
    proto = _copy(model, nodes)
    proto.graph.node.extend(nodes.written)
    if not keep:
        del proto.graph.output[:]
    proto.graph.output.extend(map(_value, outputs))
    return Model(proto, model.name)


def _copy(model: Model, nodes: Nodes) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    proto.graph.initializer.extend(nodes.constants)
    return proto


def _value(spec: TensorSpec) -> onnx.ValueInfoProto:
    kind: TensorProto.DataType = helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype))
    return helper.make_tensor_value_info(spec.name, kind, list(spec.shape))
