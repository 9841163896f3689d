"""A Core ML package read back as an ONNX graph, op by op, by what Apple documents of each: Core ML runs on no Linux.

What is written is checked so: coremltools reads the program back from the file, each op is written in ONNX by its
documented meaning, and ONNX Runtime computes the numbers. It is another way through each op than the writer's, and no
Core ML: what Apple's hardware rounds otherwise, and where Core ML strays from its documentation, it does not show.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onnx import helper

from edgeopt.executors.coreml.package import ReadPackage
from edgeopt.executors.coreml.reading.ops import known_ops
from edgeopt.executors.coreml.reading.reading import MilOp, MilReading, onnx_type, type_of

_OPSET = 20
_READ, _MADE = "read:", "made:"
_SILENT = ("const",)


@dataclass(frozen=True, slots=True)
class MilLine:
    """One op of a program."""

    name: str
    op: str
    arithmetic: str
    """Type of what it makes, in MIL's words."""


@dataclass(frozen=True, slots=True)
class Translation:
    """A program as an ONNX model."""

    model: bytes
    """Its inputs and outputs are called as in the package, behind the words `read:` and `made:`."""
    lines: tuple[MilLine, ...]
    """Its ops, in the order in which they run."""


def translated(package: ReadPackage) -> Translation:
    """Return a package's program as an ONNX model.

    Raises:
        UnsupportedError: If it holds an op whose numbers are not computed here.
    """
    reading, ops, lines = MilReading(), known_ops(), list[MilLine]()
    function = package.program.functions["main"]
    inputs = [_info(f"{_READ}{name}", var) for name, var in function.inputs.items()]
    for name, var in function.inputs.items():
        reading.set(var, f"{_READ}{name}")
    for op in function.operations:
        if op.op_type in _SILENT:
            continue
        wrapped = MilOp(reading, op)
        if op.op_type not in ops:
            raise wrapped.refuse("")
        made = ops[op.op_type](reading, wrapped)
        for var, name in zip(op.outputs, [made] if isinstance(made, str) else made, strict=True):
            reading.set(var, name)
        lines.append(MilLine(str(op.name), str(op.op_type), type_of(op.outputs[0])))
    outputs = [_info(f"{_MADE}{var.name}", var) for var in function.outputs]
    for var, info in zip(function.outputs, outputs, strict=True):
        reading.nodes.append(helper.make_node("Identity", [reading.tensor(var)], [info.name]))
    graph = helper.make_graph(reading.nodes, "package", inputs, outputs, reading.initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=10)
    return Translation(model.SerializeToString(), tuple(lines))


def _info(name: str, var: Any) -> Any:
    return helper.make_tensor_value_info(name, onnx_type(var), [int(size) for size in var.shape])
