"""The facts that an ExecuTorch program holds beside its network: names, types and shapes, and what computes each layer.

ExecuTorch's files know places only. A method that returns a constant text is its own way to hand out more.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from edgeopt.errors import InvalidFileError
from edgeopt.graph.tensors import TensorSpec

METHOD = "edgeopt"
"""The method that returns the text."""
_IDENTIFIER, _AT = b"ET12", 4
"""Identifier of every `.pte` file, and its offset in bytes."""
BEGINS = _AT + len(_IDENTIFIER)
"""Remedy for a model that the engine does not take."""


def is_program(data: bytes) -> bool:
    """Whether data begin as an ExecuTorch program does."""
    return data[_AT:BEGINS] == _IDENTIFIER


@dataclass(frozen=True, slots=True)
class ProgramFacts:
    """The text of a program."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    layers: tuple[tuple[str, str, str], ...]
    """Name, op and arithmetic of each."""


def read_facts(call: Callable[[], Any]) -> ProgramFacts:
    """Return what a program tells of itself.

    Args:
        call: Calls its method.

    Raises:
        InvalidFileError: If it has none, as one that others wrote.
    """
    try:
        values = json.loads(call()[0])
        inputs, outputs = (
            tuple(TensorSpec(str(name), str(dtype), tuple(map(int, shape))) for name, dtype, shape in values[key])
            for key in ("inputs", "outputs")
        )
        layers = tuple((str(name), str(op), str(how)) for name, op, how in values["layers"])
    except (RuntimeError, ValueError, LookupError, TypeError) as error:
        raise InvalidFileError(
            "the ExecuTorch program does not name its inputs: edgeopt did not write it",
            remedy="give the ONNX model, which edgeopt converts",
        ) from error
    return ProgramFacts(inputs, outputs, layers)
