"""The tensors of `.safetensors` files: a length, a head in JSON, then the numbers one after the other.

The package safetensors maps a file into memory, and a file that is cut off while it is mapped ends the process without
a word (SIGBUS). Here each tensor is read, so that such a file is an error like any other.

Source: https://github.com/huggingface/safetensors (format).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import InvalidFileError
from edgeopt.system.disk.files import read_text, require_itself
from edgeopt.system.disk.parts import FileParts, parts_of

ONE_FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
_FLOATS = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "F64": "<f8"}
_FEW_BITS = {"F4": 4, "F6_": 6, "F8_": 8}
"""How types of floats begin that are not read here, and their bits: with their scales they are weights in blocks."""
_INTEGERS = {"I8": "i1", "U8": "u1", "I16": "<i2", "I32": "<i4", "I64": "<i8"}
LARGE_BYTES = 1_000_000_000
"""Weights in float32 beyond which a graph may be above 2 GB: a table of tokens that is the head too is in it twice."""
_OF_HALVES, _OF_BLOCKS = 2, 8
"""Times that weights of 16 bits, and those in blocks of 4, are larger in float32."""
_MOST_HEAD = 100 << 20
"""Bytes; the format allows no more."""
_REMEDY = "name a folder that save_pretrained wrote, and copy it again if it is damaged"


def is_large(source: Path) -> bool:
    """Return whether a graph of weights may be above 2 GB in float32; its matrices go to files then as it is written.

    Args:
        source: A folder of `.safetensors`, of 16 bits as they mostly are, or a `.gguf` file, whose blocks may become
            floats.
    """
    if source.is_file():
        return _OF_BLOCKS * source.stat().st_size > LARGE_BYTES
    return _OF_HALVES * sum(file.stat().st_size for file in source.glob("*.safetensors")) > LARGE_BYTES


class NamedTensors(Protocol):
    """Tensors under Hugging Face's names."""

    def __contains__(self, name: str) -> bool: ...

    def read(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Return one tensor in float32, or raise where it is not there or of another shape."""
        ...


@dataclass(frozen=True, slots=True)
class _Place:
    file: FileParts
    dtype: str
    """As the format calls it: `BF16`."""
    shape: tuple[int, ...]
    start: int
    size_bytes: int

    def read(self, dtype: str) -> NDArray[Any]:
        data: NDArray[Any] = np.frombuffer(self.file.read(self.start, self.size_bytes), dtype)
        return data.reshape(self.shape)


class TensorFiles:
    """All tensors of a folder by name; each is read when it is asked for."""

    def __init__(self, folder: Path) -> None:
        """Read the heads.

        Raises:
            InvalidFileError: If there is no such file, or one is damaged.
        """
        self.folder = folder
        self._places: dict[str, _Place] = {}
        for file in _files(folder):
            self._places |= _places(file)

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def read(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Return one tensor in float32.

        Args:
            name: Of the tensor.
            shape: That it must have.

        Raises:
            InvalidFileError: If it is not there, of another shape or type, holds NaN or infinity, or its file changed.
        """
        place = self._place(name)
        if place.shape != shape:
            text = f"{'x'.join(map(str, place.shape))}, config.json says {'x'.join(map(str, shape))}"
            raise InvalidFileError(f"{place.file.path}: {name} is {text}", remedy=_REMEDY)
        if place.dtype not in _FLOATS:
            bits = next((bits for begin, bits in _FEW_BITS.items() if place.dtype.startswith(begin)), 0)
            kind = f"a float of {bits} bits, which is not read here" if bits else "which is no float"
            text = f"{place.file.path}: {name} is {place.dtype}, {kind}"
            raise InvalidFileError(text, remedy="save the weights in float32, float16 or bfloat16 first")
        data = place.read(_FLOATS[place.dtype])
        if place.dtype == "BF16":  # the upper half of a float32
            wide = data.astype(np.uint32)
            wide <<= 16
            data = wide.view(np.float32)
        made = np.ascontiguousarray(data, np.float32)
        if not np.isfinite(made).all():
            raise InvalidFileError(f"{place.file.path}: {name} holds NaN or infinity", remedy="train or copy it again")
        return made

    def integers(self, name: str, shape: tuple[int, ...] | None = None) -> NDArray[Any]:
        """Return one tensor of integers as it is stored.

        Args:
            name: Of the tensor.
            shape: That it must have; None: any.

        Raises:
            InvalidFileError: If it is not there, of another shape, or no integers, or its file changed.
        """
        place = self._place(name)
        if place.dtype not in _INTEGERS or (shape is not None and place.shape != shape):
            sides, wanted = ("x".join(map(str, sides)) for sides in (place.shape, shape or ()))
            text = f"{place.dtype} of {sides}, not integers{f' of {wanted}' if shape else ''}"
            raise InvalidFileError(f"{place.file.path}: {name} is {text}", remedy=_REMEDY)
        return place.read(_INTEGERS[place.dtype])

    def shape_of(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor; empty where it is not there."""
        return self._places[name].shape if name in self._places else ()

    def _place(self, name: str) -> _Place:
        if name not in self._places:
            raise InvalidFileError(f"{self.folder} lacks the weights {name}", remedy=_REMEDY)
        return self._places[name]


def _files(folder: Path) -> list[Path]:
    if (folder / ONE_FILE).is_file():
        return [folder / ONE_FILE]
    index = folder / INDEX
    if not index.is_file():
        raise InvalidFileError(f"{folder} holds no {ONE_FILE} and no {INDEX}", remedy=_REMEDY)
    require_itself(index)
    try:
        names = sorted(set(json.loads(read_text(index, remedy=_REMEDY))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidFileError(f"{index} is no index of weights", remedy=_REMEDY) from error
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise InvalidFileError(f"{index} names {name!r}, no file of its folder", remedy=_REMEDY)
    return [folder / name for name in names]


def _places(path: Path) -> dict[str, _Place]:
    file = parts_of(path, remedy=_REMEDY)
    require_itself(path)
    length = struct.unpack("<Q", file.read(0, 8))[0] if file.size_bytes >= 8 else -1
    if not 0 < length <= min(_MOST_HEAD, file.size_bytes - 8):
        raise InvalidFileError(f"{path} is no safetensors file", remedy=_REMEDY)
    try:
        head = json.loads(file.read(8, length))
        return {name: _place(file, value, 8 + length) for name, value in head.items() if name != "__metadata__"}
    except RecursionError as error:
        raise InvalidFileError(f"{path} is damaged: its head nests too deeply", remedy=_REMEDY) from error
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise InvalidFileError(f"{path} is damaged: {str(error)[:200]}", remedy=_REMEDY) from error


def _place(file: FileParts, entry: Mapping[str, Any], after: int) -> _Place:
    start, end = (int(place) for place in entry["data_offsets"])
    shape = tuple(int(side) for side in entry["shape"])
    dtype = str(entry["dtype"])
    numpy_name = (_FLOATS | _INTEGERS).get(dtype)
    width = np.dtype(numpy_name).itemsize if numpy_name else 0
    count = 1
    for side in shape:
        count *= side
    if min(start, *shape, 0) < 0 or after + end > file.size_bytes or (width and end - start != width * count):
        raise ValueError("a tensor lies beyond the file, or has another length than its shape")
    return _Place(file, dtype, shape, after + start, end - start)
