"""A network of MNN with the facts that MNN's own files lack: `model.mnn`.

It is MNN's file as its converter wrote it, so that every app with MNN loads it, and behind it, where MNN does not read:
the facts (JSON), their length in bytes (uint32, little-endian), 8 bytes `EDGE-MNN`. The JSON holds `inputs` and
`outputs`: name, type and shape of each in the ONNX model, as MNN has no 64-bit integers and may add axes.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Any

from edgeopt.errors import InvalidFileError
from edgeopt.graph.tensors import TensorSpec

SUFFIX = ".mnn"
MAGIC = b"EDGE-MNN"
_TAIL = struct.Struct("<I8s")
ENDS = _TAIL.size
"""Bytes at the end by which a file is recognised."""
RESULTS = frozenset({"float32", "int32", "int64"})
"""Types of outputs; every input is float32."""
_MOST_DIMENSIONS = 64
"""Dimensions of an input or an output; NumPy has no more."""
"""Remedy for a model that the engine does not take."""


@dataclass(frozen=True, slots=True)
class MnnFile:
    """The contents of one file."""

    network: bytes
    """MNN's own file."""
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def to_bytes(self) -> bytes:
        """Return the contents of the file."""
        named = {"inputs": self.inputs, "outputs": self.outputs}
        facts = json.dumps({key: [[spec.name, spec.dtype, [*spec.shape]] for spec in named[key]] for key in named})
        written = facts.encode()
        return self.network + written + _TAIL.pack(len(written), MAGIC)


def is_mnn(end: bytes) -> bool:
    """Whether data that end so are a file of ours."""
    return end.endswith(MAGIC)


def read_mnn_file(data: bytes, name: str) -> MnnFile:
    """Read the contents of one file.

    Args:
        data: The contents.
        name: Called so in errors.

    Raises:
        InvalidFileError: If edgeopt did not write it, or it is cut off or damaged.
    """
    try:
        length, magic = _TAIL.unpack(data[-ENDS:])
        end = len(data) - ENDS - length
        if magic != MAGIC or end <= 0:
            raise ValueError
        values = json.loads(data[end:-ENDS])
        inputs = tuple(_spec(spec, frozenset({"float32"})) for spec in values["inputs"])
        outputs = tuple(_spec(spec, RESULTS) for spec in values["outputs"])
        if not outputs or len({spec.name for spec in inputs}) < len(inputs):
            raise ValueError
    except (struct.error, ValueError, LookupError, TypeError, RecursionError) as error:
        raise InvalidFileError(
            f"{name} is no file of MNN that edgeopt wrote, or it is cut off or damaged: it does not say what it reads",
            remedy="give the ONNX model, which edgeopt converts, or make the bundle anew",
        ) from error
    return MnnFile(data[:end], inputs, outputs)


def _spec(values: Any, types: frozenset[str]) -> TensorSpec:
    name, dtype, shape = values
    if not isinstance(name, str) or dtype not in types or not isinstance(shape, list) or len(shape) > _MOST_DIMENSIONS:
        raise ValueError
    if any(type(size) is not int or size < 1 for size in shape):
        raise ValueError
    return TensorSpec(name, dtype, tuple(shape))
