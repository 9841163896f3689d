"""What the two steps that embed a part of the recipe share: nodes written one by one, joined to a model's ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, compose, helper, numpy_helper

from edgeopt.errors import UnsupportedError
from edgeopt.graph.model import Model
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
from edgeopt.runtime.availability import is_compiled
from edgeopt.steps._canonical import upgrade_opset
from edgeopt.system.target import Target

_LEAST_OPSET = 13
"""From here on the ops that are written take their axes and sizes as inputs; ReduceMax and ReduceMin do from 18 on."""
_REDUCE_INPUTS = 18
_RESERVED = {FRAME, FRAME_SCALE, FRAME_OFFSET, BOXES, SCORES, CLASSES, POINTS, MASKS, CLASS_MAP}
PREFIX = "model/"
"""Of all names of a model that uses one of ours."""
Operand = str | NDArray[Any]
"""A tensor by name, or a constant."""


class Nodes:
    """Nodes in the order in which they are written. `nodes("Add", a, b)` returns the name of the sum."""

    def __init__(self, prefix: str, opset: int) -> None:
        """Begin without nodes.

        Args:
            prefix: Of all names.
            opset: Of the model that they are joined to.
        """
        self.written: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._prefix, self._opset = prefix, opset

    def __call__(self, op: str, *inputs: Operand, **attributes: Any) -> str:
        """Write a node of one output and return the name of that output."""
        return self.several(op, *inputs, count=1, **attributes)[0]

    def several(self, op: str, *inputs: Operand, count: int, **attributes: Any) -> tuple[str, ...]:
        """Write a node of `count` outputs and return their names."""
        number = len(self.written)
        outputs = tuple(f"{self._prefix}/{op}_{number}" + (f"_{i}" if i else "") for i in range(count))
        names = [self._name(one) for one in inputs]
        self.written.append(helper.make_node(op, names, list(outputs), name=outputs[0], **attributes))
        return outputs

    def _name(self, operand: Operand) -> str:
        if isinstance(operand, str):
            return operand
        name = f"{self._prefix}/constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(operand), name))
        return name

    def call(self, name: str, tensor: str) -> None:
        """Give the tensor that one of the nodes makes a name of its own."""
        for node in self.written:
            node.input[:] = [name if one == tensor else one for one in node.input]
            node.output[:] = [name if one == tensor else one for one in node.output]

    def cast(self, tensor: Operand, dtype: str) -> str:
        """Write a tensor in another type, by NumPy's word."""
        return self("Cast", tensor, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def columns(self, tensor: str, start: int, end: int) -> str:
        """Cut columns out of a matrix."""
        return self("Slice", tensor, ints(start), ints(end), ints(1))

    def largest(self, tensor: str, axis: int) -> str:
        """Reduce one axis of a tensor to its largest value."""
        return self._reduced("ReduceMax", tensor, axis)

    def smallest(self, tensor: str, axis: int) -> str:
        """Reduce one axis of a tensor to its smallest value."""
        return self._reduced("ReduceMin", tensor, axis)

    def _reduced(self, op: str, tensor: str, axis: int) -> str:
        if self._opset >= _REDUCE_INPUTS:
            return self(op, tensor, ints(axis), keepdims=0)
        return self(op, tensor, axes=[axis], keepdims=0)

    def positions(self, mask: str) -> str:
        """Return where a vector of booleans is true."""
        return self("Squeeze", self("NonZero", mask), ints(0))


def ints(*values: int) -> NDArray[np.int64]:
    """Return a vector of whole numbers."""
    return np.array(values, np.int64)


def floats(*values: float) -> NDArray[np.float32]:
    """Return a vector of numbers."""
    return np.array(values, np.float32)


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
    kept = [one for one in proto.graph.input if one.name != name]
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
