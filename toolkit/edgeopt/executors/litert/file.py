"""The operators of a `.tflite` file, read by the schema that comes with LiteRT."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from edgeopt.system.declared.optional import require


@dataclass(frozen=True, slots=True)
class OperatorLine:
    """One operator of a file."""

    name: str
    """Name of the tensor that it makes."""
    code: str
    arithmetic: str
    """`int8` or `fp32`: of the numbers that it reads."""


def operators_of(data: bytes) -> Iterator[OperatorLine]:
    """Yield the operators of a file in the order in which they run.

    Raises:
        MissingDependencyError: If LiteRT is not installed.
    """
    words = require("ai_edge_litert.schema_py_generated", extra="litert", purpose="reading a .tflite file")
    names = {number: name for name, number in vars(words.BuiltinOperator).items() if isinstance(number, int)}
    model = words.Model.GetRootAs(data, 0)
    graph = model.Subgraphs(0)
    for i in range(graph.OperatorsLength()):
        operator = graph.Operators(i)
        code = model.OperatorCodes(operator.OpcodeIndex())
        made, read = graph.Tensors(operator.Outputs(0)), graph.Tensors(operator.Inputs(0))
        is_integer = read.Type() == words.TensorType.INT8
        number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
        yield OperatorLine(made.Name().decode(), names[number], "int8" if is_integer else "fp32")
