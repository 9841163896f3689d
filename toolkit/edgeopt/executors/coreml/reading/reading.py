"""The state of one reading: which tensor of an ONNX graph carries which variable of a MIL program.

Floats are float32 in the graph; what the program stores in float16 is rounded behind the op that makes it. Integers
that the program stores in 16 bits have 32 in the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from edgeopt.errors import UnsupportedError
from edgeopt.executors.coreml.loading import PURPOSE
from edgeopt.system.declared.optional import require

_TYPES = {
    "fp32": TensorProto.FLOAT,
    "fp16": TensorProto.FLOAT,
    "int32": TensorProto.INT32,
    "int16": TensorProto.INT32,
    "uint16": TensorProto.INT32,
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "bool": TensorProto.BOOL,
}
"""Types of the graph by MIL's words."""
_STORED = {np.dtype(np.float16): np.float32, np.dtype(np.float64): np.float32, np.dtype(np.int16): np.int32}
_STORED |= {np.dtype(np.uint16): np.int32, np.dtype(np.int64): np.int32}


class MilReading:
    """A program on its way into an ONNX graph."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []
        self._carriers: dict[str, str] = {}
        self._count = 0

    def name(self) -> str:
        """Return a name that nothing has."""
        self._count += 1
        return f"t{self._count}"

    def add(self, op: str, inputs: Sequence[str], *, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node; return the name of its output, or the list of several."""
        names = [self.name() for _ in range(outputs)]
        self.nodes.append(helper.make_node(op, [*inputs], names, **attributes))
        return names[0] if outputs == 1 else names

    def const(self, array: Any, dtype: type | None = None) -> str:
        """Add a constant; return its name."""
        values = np.asarray(array, dtype)
        values = np.ascontiguousarray(values).reshape(values.shape)
        name = self.name()
        self.initializers.append(numpy_helper.from_array(values, name))
        return name

    def row(self, numbers: Sequence[int]) -> str:
        """Add a row of 64-bit integers, as ONNX takes shapes, axes and places."""
        return self.const([*numbers], np.int64)

    def tensor(self, var: Any) -> str:
        """Return the tensor that carries a variable; a constant is written."""
        if var.name not in self._carriers:
            value = np.asarray(var.val)
            self._carriers[var.name] = self.const(value.astype(_STORED.get(value.dtype, value.dtype)))
        return self._carriers[var.name]

    def set(self, var: Any, name: str) -> None:
        """Let a tensor carry a variable, rounded to float16 where that is what the program stores."""
        if type_of(var) == "fp16":
            half = self.add("Cast", [name], to=TensorProto.FLOAT16)
            name = self.add("Cast", [half], to=TensorProto.FLOAT)
        self._carriers[var.name] = name


class MilOp:
    """An op of a program, with its inputs as this reading knows them."""

    def __init__(self, reading: MilReading, op: Any) -> None:
        self._reading, self.op = reading, op

    def var(self, key: str) -> Any:
        """Return a variable that the op reads."""
        return self.op.inputs[key]

    def tensor(self, key: str) -> str:
        """Return the tensor that carries it."""
        return self._reading.tensor(self.var(key))

    def has(self, key: str) -> bool:
        """Whether an input is there."""
        return self.op.inputs.get(key) is not None

    def value(self, key: str) -> Any:
        """Return the numbers of an input that is constant, as floats of 32 bits where they are of 16.

        Raises:
            UnsupportedError: If it is computed.
        """
        value = self.var(key).val
        if value is None:
            raise self.refuse(f"with {key} computed")
        array = np.asarray(value)
        return array.astype(_STORED.get(array.dtype, array.dtype))

    def number(self, key: str) -> Any:
        """Return a single number, word or truth."""
        return self.value(key).reshape(()).item()

    def whole(self, key: str) -> list[int]:
        """Return a row of whole numbers."""
        return [int(number) for number in self.value(key).reshape(-1)]

    def shape(self, key: str) -> tuple[int, ...]:
        """Return the shape of what the op reads."""
        return tuple(int(size) for size in self.var(key).shape)

    @property
    def result(self) -> Any:
        """The first variable that the op makes."""
        return self.op.outputs[0]

    @property
    def made_shape(self) -> tuple[int, ...]:
        """The shape of the first variable that the op makes."""
        return tuple(int(size) for size in self.result.shape)

    def refuse(self, how: str) -> UnsupportedError:
        """Return the error for an op, or a form of it, that this reading does not know."""
        reason = f"the numbers of {self.op.op_type}{f' {how}' if how else ''} ({self.op.name}) are not computed here"
        return UnsupportedError(reason, remedy="compare the package's answers on a device of Apple's")


Read = Callable[[MilReading, MilOp], "str | list[str]"]


def type_of(var: Any) -> str:
    """Return MIL's word for the type of a variable's numbers."""
    types = require("coremltools.converters.mil.mil.types", extra="coreml", purpose=PURPOSE)
    return str(types.builtin_to_string(var.dtype))


def onnx_type(var: Any) -> int:
    """Return the ONNX type of the tensor that carries a variable."""
    return _TYPES[type_of(var)]


def as_array(values: Any) -> NDArray[Any]:
    """Return numbers as an array of float32."""
    return np.asarray(values, np.float32)
