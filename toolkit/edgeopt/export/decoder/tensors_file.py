"""The tensors of `.safetensors` files, by name and in float32."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import InvalidFileError
from edgeopt.system.disk.files import require_there
from edgeopt.system.text import printable

ONE_FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
_FLOATS = frozenset(("F32", "F16", "BF16", "F64"))
_INTEGERS = frozenset(("I8", "U8", "I16", "I32", "I64"))
LARGE_BYTES = 1_000_000_000
"""Weights in float32 beyond which a graph may be above 2 GB: a table of tokens that is the head too is in it twice."""
_OF_HALVES, _OF_BLOCKS = 2, 8
"""Times that weights of 16 bits, and those in blocks of 4, are larger in float32."""
_MOST_MAPPED = 64 << 20
"""Bytes read before a file is opened anew: what was read of it stays in memory, as a part of the file, until then."""
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
class _Stored:
    """A tensor as its file has it."""

    file: Path
    dtype: str
    """As the format calls it: `BF16`."""
    shape: tuple[int, ...]
    values: Callable[[], NDArray[Any]]
    """Reads it."""


class TensorFiles:
    """All tensors of a folder by name; each is read when it is asked for."""

    def __init__(self, folder: Path) -> None:
        """Read the heads.

        Raises:
            InvalidFileError: If there is no such file, or one is damaged.
        """
        self.folder = folder
        self._opened: dict[Path, Any] = {}
        self._read_bytes = 0
        self._files = {name: file for file in _files(folder) for name in self._open(file).keys()}  # noqa: SIM118

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def read(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Return one tensor in float32.

        Args:
            name: Of the tensor.
            shape: That it must have.

        Raises:
            InvalidFileError: If it is not there, of another shape, no floats, or holds NaN or infinity.
        """
        stored = self._stored(name)
        if stored.shape != shape:
            text = f"{'x'.join(map(str, stored.shape))}, config.json says {'x'.join(map(str, shape))}"
            raise InvalidFileError(f"{stored.file}: {name} is {text}", remedy=_REMEDY)
        if stored.dtype not in _FLOATS:
            raise InvalidFileError(
                f"{stored.file}: {name} is {stored.dtype}, which is no float", remedy="save the weights in float first"
            )
        data = stored.values()
        if stored.dtype == "BF16":  # the upper half of a float32
            wide = data.view(np.uint16).astype(np.uint32)
            wide <<= 16
            data = wide.view(np.float32)
        made = np.ascontiguousarray(data, np.float32)
        if not np.isfinite(made).all():
            raise InvalidFileError(f"{stored.file}: {name} holds NaN or infinity", remedy="train or copy it again")
        return made

    def integers(self, name: str, shape: tuple[int, ...] | None = None) -> NDArray[Any]:
        """Return one tensor of integers as it is stored.

        Args:
            name: Of the tensor.
            shape: That it must have; None: any.

        Raises:
            InvalidFileError: If it is not there, of another shape, or no integers.
        """
        stored = self._stored(name)
        if stored.dtype not in _INTEGERS or (shape is not None and stored.shape != shape):
            sides, wanted = ("x".join(map(str, sides)) for sides in (stored.shape, shape or ()))
            text = f"{stored.dtype} of {sides}, not integers{f' of {wanted}' if shape else ''}"
            raise InvalidFileError(f"{stored.file}: {name} is {text}", remedy=_REMEDY)
        return stored.values()

    def shape_of(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor; empty where it is not there."""
        return self._stored(name).shape if name in self else ()

    def _stored(self, name: str) -> _Stored:
        if name not in self:
            raise InvalidFileError(f"{self.folder} lacks the weights {name}", remedy=_REMEDY)
        file = self._files[name]
        entry = self._open(file).get_slice(name)
        return _Stored(file, entry.get_dtype(), tuple(entry.get_shape()), lambda: self._values(file, name))

    def _values(self, file: Path, name: str) -> NDArray[Any]:
        data: NDArray[Any] = self._open(file).get_tensor(name)
        self._read_bytes += data.nbytes
        if self._read_bytes > _MOST_MAPPED:
            self._opened.clear()
            self._read_bytes = 0
        return data

    def _open(self, file: Path) -> Any:
        if file not in self._opened:
            self._opened[file] = _opened(file)
        return self._opened[file]


def _files(folder: Path) -> list[Path]:
    if (folder / ONE_FILE).is_file():
        return [folder / ONE_FILE]
    index = folder / INDEX
    if not index.is_file():
        raise InvalidFileError(f"{folder} holds no {ONE_FILE} and no {INDEX}", remedy=_REMEDY)
    try:
        names = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidFileError(f"{index} is no index of weights", remedy=_REMEDY) from error
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise InvalidFileError(f"{index} names {name!r}, no file of its folder", remedy=_REMEDY)
    return [folder / name for name in names]


def _opened(file: Path) -> Any:
    """Open a file; its numbers are read when they are asked for."""
    import ml_dtypes  # noqa: F401, gives NumPy the type bfloat16, by whose name safetensors asks for it
    from safetensors import SafetensorError, safe_open

    require_there(file, remedy=_REMEDY)
    try:
        return safe_open(file, "np")
    except (SafetensorError, OSError) as error:
        reason = printable(str(error)).removeprefix("Error while deserializing header: ")[:200]
        raise InvalidFileError(f"{file} is damaged, or no safetensors file: {reason}", remedy=_REMEDY) from error
