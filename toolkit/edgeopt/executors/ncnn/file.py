"""A network of ncnn in one file: `model.ncnn`.

Layout, numbers little-endian: 8 bytes `EDGENCNN`, the version (uint32; 2 where an input is a picture, else 1), the
bytes of the JSON and of the text (uint32 each), 4 bytes of zeros, the bytes of the weights (uint64); then the JSON, the
`.param` text with a zero behind it, zeros up to a multiple of 64 bytes, the `.bin` weights. The JSON holds `inputs` and
`outputs`: name, blob, shape and dims of each, of a picture its dtype too. ncnn reads both parts from memory, so an app
needs no second file.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from edgeopt.errors import InvalidFileError
from edgeopt.system.text import short

SUFFIX = ".ncnn"
MAGIC = b"EDGENCNN"
_VERSION, _WITH_PICTURES = 1, 2
"""Earlier versions of edgeopt read the first alone, and say so of the other."""
_HEAD = struct.Struct("<8sIIIIQ")
_ALIGNMENT = 64
"""A cache line; ncnn wants four bytes."""
_MOST_OF_A_BLOB = 4
WEIGHTED = frozenset(
    {
        "Convolution",
        "ConvolutionDepthWise",
        "Convolution1D",
        "ConvolutionDepthWise1D",
        "Deconvolution",
        "DeconvolutionDepthWise",
        "InnerProduct",
    }
)
"""Layers with weights."""
MAKES_MEMORY = WEIGHTED | {"Pooling", "DeepCopy"}
"""Layers that write elsewhere than into what they read, and never hand it on as it is."""
PICTURE_CHANNELS = 3
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
    dtype: str = "float32"
    """uint8 of a picture (height, width, 3), whose planes the blob holds as floats."""

    @property
    def is_picture(self) -> bool:
        """Whether pixels become the blob's planes as they are handed to ncnn."""
        return self.dtype == "uint8"

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        values = asdict(self)
        return values if self.is_picture else {key: value for key, value in values.items() if key != "dtype"}


@dataclass(frozen=True, slots=True)
class NcnnFile:
    """The contents that ncnn loads."""

    param: str
    """The text of layers, version 7767517."""
    weights: bytes
    inputs: tuple[NcnnPort, ...]
    outputs: tuple[NcnnPort, ...]

    @property
    def ports(self) -> dict[str, list[dict[str, Any]]]:
        """Inputs and outputs as plain values."""
        named = {"inputs": self.inputs, "outputs": self.outputs}
        return {key: [port.to_json() for port in ports] for key, ports in named.items()}

    def to_bytes(self) -> bytes:
        """Return the contents of one file."""
        text = self.param.encode()
        described = json.dumps(self.ports).encode()
        version = _WITH_PICTURES if any(port.is_picture for port in self.inputs) else _VERSION
        head = _HEAD.pack(MAGIC, version, len(described), len(text), 0, len(self.weights))
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
        if magic != MAGIC or version not in (_VERSION, _WITH_PICTURES):
            raise ValueError(f"version {version}" if magic == MAGIC else "it begins otherwise")
        start = _HEAD.size + described
        end = start + text
        first = _weights_at(end)
        if first + weights != len(data):
            raise ValueError("it is cut off, or longer than it says")
        ports = json.loads(data[_HEAD.size : start])
        inputs, outputs = (tuple(map(_port, ports[key])) for key in ("inputs", "outputs"))
        file = NcnnFile(data[start:end].decode("ascii"), data[first:], inputs, outputs)
        _check_text(file)
        return file
    except (struct.error, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise InvalidFileError(
            f"{name} is no network of ncnn that this version reads: {error}", remedy="make the bundle anew"
        ) from error


@dataclass(frozen=True, slots=True)
class LayerLine:
    """One line of the text."""

    kind: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parameters: Mapping[str, str]

    def number(self, key: int, default: int) -> int:
        """Return a whole number among its parameters."""
        value = self.parameters.get(str(key), "")
        return int(value) if value else default


def layer_lines(param: str) -> Iterator[LayerLine]:
    """Yield the layers of a text.

    Raises:
        ValueError: If a line is none of a layer.
    """
    for line in param.splitlines()[2:]:
        kind, name, reads, makes, *words = line.split()
        first, last = int(reads), int(reads) + int(makes)
        if not 0 <= first <= last <= len(words):
            raise ValueError(f"layer {short(name)} has too few words")
        parameters = dict(word.split("=", 1) for word in words[last:])
        yield LayerLine(kind, name, tuple(words[:first]), tuple(words[first:last]), parameters)


def _check_text(file: NcnnFile) -> None:
    """Refuse what would end the process, not only the call.

    Inputs are shown to ncnn in the caller's memory, and a layer that works in place dies of that: see `fusions.py`.

    Raises:
        ValueError: If a line or a name is wrong.
    """
    lines = [*layer_lines(file.param)]
    given = {blob for line in lines if line.kind == "Input" for blob in line.outputs}
    made = {blob for line in lines for blob in line.outputs}
    if any(given & set(line.inputs) and line.kind not in MAKES_MEMORY for line in lines):
        raise ValueError("a layer writes over an input")
    names = [port.name for port in (*file.inputs, *file.outputs)]
    if {port.blob for port in file.inputs} != given or len(names) != len(set(names)) or not file.outputs:
        raise ValueError("its inputs and outputs are not those of its layers")
    if not {port.blob for port in file.outputs} <= made:
        raise ValueError("nothing makes one of its outputs")


def _port(facts: dict[str, Any]) -> NcnnPort:
    shape, dims = (tuple(int(size) for size in facts[key]) for key in ("shape", "dims"))
    if (
        len(shape) > _MOST_DIMENSIONS
        or not 1 <= len(dims) <= _MOST_OF_A_BLOB
        or any(size < 1 for size in (*shape, *dims))
    ):
        raise ValueError("its shapes are none")
    if math.prod(shape) != math.prod(dims):
        raise ValueError("a shape and its blob differ")
    name, blob, dtype = facts["name"], facts["blob"], facts.get("dtype", "float32")
    if not isinstance(name, str) or not isinstance(blob, str) or not blob.isascii():
        raise ValueError("a name that is none")
    if dtype not in ("float32", "uint8") or (dtype == "uint8" and shape != (*dims[1:], PICTURE_CHANNELS)):
        raise ValueError("an input that is neither float32 nor a picture")
    return NcnnPort(name, blob, shape, dims, dtype)
