"""A network of ncnn in one file: `model.ncnn`.

Layout, numbers little-endian: 8 bytes `EDGENCNN`, the version (uint32, 1), the bytes of the JSON and of the text
(uint32 each), 4 bytes of zeros, the bytes of the weights (uint64); then the JSON, the `.param` text with a zero behind
it, zeros up to a multiple of 64 bytes, the `.bin` weights. The JSON holds `inputs` and `outputs`: name, blob, shape and
dims of each. ncnn reads both parts from memory, so an app needs no second file.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass
from typing import Any

from edgeopt.errors import InvalidFileError

SUFFIX = ".ncnn"
MAGIC = b"EDGENCNN"
_VERSION = 1
_HEAD = struct.Struct("<8sIIIIQ")
_ALIGNMENT = 64
"""A cache line; ncnn wants four bytes."""
_MOST_DIMENSIONS = 64
"""Dimensions of an input or an output; NumPy has no more."""


@dataclass(frozen=True, slots=True)
class NcnnPort:
    """An input or an output of the model and the blob of ncnn that carries it."""

    name: str
    blob: str
    shape: tuple[int, ...]
    """As the ONNX model has it, with the leading 1 that ncnn's blobs do not have."""
    dims: tuple[int, ...]
    """The blob's dimensions, the outermost first: those of `shape` without that 1; one dimension above four."""


@dataclass(frozen=True, slots=True)
class NcnnFile:
    """The contents that ncnn loads."""

    param: str
    """The text of layers, version 7767517."""
    weights: bytes
    inputs: tuple[NcnnPort, ...]
    outputs: tuple[NcnnPort, ...]

    def to_bytes(self) -> bytes:
        """Return the contents of one file."""
        text = self.param.encode()
        ports = {"inputs": [asdict(port) for port in self.inputs], "outputs": [asdict(port) for port in self.outputs]}
        described = json.dumps(ports).encode()
        head = _HEAD.pack(MAGIC, _VERSION, len(described), len(text), 0, len(self.weights))
        front = head + described + text
        return front.ljust(_weights_at(len(front)), b"\0") + self.weights


def _weights_at(end: int) -> int:
    """Return where the weights begin: behind the text and a zero."""
    return -(-(end + 1) // _ALIGNMENT) * _ALIGNMENT


def read_ncnn_file(data: bytes, name: str) -> NcnnFile:
    """Read the contents of one file.

    Args:
        data: The contents.
        name: Called so in errors.

    Raises:
        InvalidFileError: If it is no such file, of a later version, or cut off.
    """
    try:
        magic, version, described, text, _, weights = _HEAD.unpack_from(data)
        if magic != MAGIC or version != _VERSION:
            raise ValueError(f"version {version}" if magic == MAGIC else "it begins otherwise")
        start = _HEAD.size + described
        end = start + text
        first = _weights_at(end)
        if first + weights != len(data):
            raise ValueError("it is cut off, or longer than it says")
        ports = json.loads(data[_HEAD.size : start])
        inputs, outputs = (tuple(map(_port, ports[key])) for key in ("inputs", "outputs"))
        return NcnnFile(data[start:end].decode(), data[first:], inputs, outputs)
    except (struct.error, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidFileError(
            f"{name} is no network of ncnn that this version reads: {error}", remedy="make the bundle anew"
        ) from error


def _port(facts: dict[str, Any]) -> NcnnPort:
    shape, dims = (tuple(int(size) for size in facts[key]) for key in ("shape", "dims"))
    if len(shape) > _MOST_DIMENSIONS or any(size < 1 for size in (*shape, *dims)):
        raise ValueError("its shapes are none")
    return NcnnPort(str(facts["name"]), str(facts["blob"]), shape, dims)
