"""The operators of a `.tflite` file, read by the schema that comes with LiteRT."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from edgeopt.system.declared.optional import require

_DATA = {"TRANSPOSE_CONV": 2}
"""Place of the numbers among the inputs, where a shape comes first."""


@dataclass(frozen=True, slots=True)
class OperatorLine:
    """One operator of a file."""

    name: str
    """Name of the tensor that it makes."""
    code: str
    arithmetic: str
    """`int8`; `dynamic int8`, of floats that the operator rounds by itself; or `fp32`."""


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
        made = graph.Tensors(operator.Outputs(0))
        number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
        types = [graph.Tensors(place).Type() for place in operator.InputsAsNumpy() if place >= 0]
        data = types[_DATA.get(names[number], 0)]
        is_mixed = data == words.TensorType.FLOAT32 and words.TensorType.INT8 in types
        arithmetic = "int8" if data == words.TensorType.INT8 else "dynamic int8" if is_mixed else "fp32"
        yield OperatorLine(made.Name().decode(), names[number], arithmetic)
