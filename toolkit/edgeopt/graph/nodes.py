"""Nodes written one by one, with their constants."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from edgeopt.graph.tensors import ints

_REDUCE_INPUTS = 18
"""The opset from which on ReduceMax and ReduceMin take their axes as inputs."""
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
        names = [self._name(input_) for input_ in inputs]
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
            node.input[:] = [name if value_info == tensor else value_info for value_info in node.input]
            node.output[:] = [name if value_info == tensor else value_info for value_info in node.output]

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
