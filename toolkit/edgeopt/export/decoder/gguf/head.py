"""The head of a `.gguf` file, walked before the package `gguf` reads it: it would count to 2^60 where a file says so.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (format, versions 2 and 3).
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Final

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_SIZES: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a value, by its type."""
_STRING, _ARRAY = 8, 9
_MOST_VALUES: Final = 1 << 23
"""Most values of all arrays: a vocabulary of a million tokens has three, and the package reads one by one."""
_MOST_KEYS, _MOST_TENSORS, _MOST_DIMENSIONS = 1 << 16, 1 << 18, 8


def require_bounded_head(file: Path) -> None:
    """Raise unless the head of a file can be read in a bounded time.

    Raises:
        ValueError: If it is no such head, or says more than the file holds.
    """
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        _Head(data).walk()


class _Head:
    def __init__(self, data: mmap.mmap) -> None:
        self._data, self._at, self._values = data, 0, 0

    def walk(self) -> None:
        if self._take(4) != _MAGIC:
            raise ValueError("it does not begin with GGUF")
        version = self._number("<I")
        if version not in _VERSIONS:
            raise ValueError(f"version {version} is none of {', '.join(map(str, _VERSIONS))}")
        tensors, keys = self._number("<Q"), self._number("<Q")
        if tensors > _MOST_TENSORS or keys > _MOST_KEYS:
            raise ValueError(f"it says that it holds {tensors} tensors and {keys} keys")
        for _ in range(keys):
            self._text()
            self._value(self._number("<I"))
        for _ in range(tensors):
            self._text()
            dimensions = self._number("<I")
            if dimensions > _MOST_DIMENSIONS:
                raise ValueError(f"a tensor has {dimensions} dimensions")
            self._skip(8 * dimensions + 4 + 8)

    def _value(self, kind: int) -> None:
        if kind == _STRING:
            self._text()
        elif kind == _ARRAY:
            inner, count = self._number("<I"), self._number("<Q")
            self._values += count
            if self._values > _MOST_VALUES:
                raise ValueError(f"its arrays hold {self._values} values")
            if inner == _STRING:
                for _ in range(count):
                    self._text()
            else:
                self._skip(count * self._size(inner))
        else:
            self._skip(self._size(kind))

    def _size(self, kind: int) -> int:
        if kind not in _SIZES:
            raise ValueError(f"a value has the type {kind}")
        return _SIZES[kind]

    def _text(self) -> None:
        self._skip(self._number("<Q"))

    def _number(self, form: str) -> int:
        return int(struct.unpack(form, self._take(struct.calcsize(form)))[0])

    def _take(self, count: int) -> bytes:
        begin = self._at
        self._skip(count)
        return self._data[begin : self._at]

    def _skip(self, count: int) -> None:
        if count > len(self._data) - self._at:
            raise ValueError("it says more than it holds")
        self._at += count
