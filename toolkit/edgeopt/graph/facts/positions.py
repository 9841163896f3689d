"""How many positions a decoder has a rotation for, read from its file alone: nothing is loaded, and onnx not needed.

A rotary cache is a table with a row a position; a text beyond its last row has none. Only names and shapes of the
graph's constants are read (ONNX: ModelProto.graph = 7, GraphProto.initializer = 5, TensorProto.dims = 1, name = 8).
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

_TABLE = b"cos_cache"
_GRAPH, _INITIALIZER, _DIMS, _NAME = 7, 5, 1, 8
_VARINT, _LONG, _BYTES, _SHORT = 0, 1, 2, 5
_MATRIX, _MOST_BITS = 2, 64

Field = tuple[int, int, int, int]
"""Number, value, and where it begins and ends; the value is that of a number, else 0."""


def positions_of(file: Path) -> int | None:
    """Return the rows of the shortest rotary cache; None: there is none, or the file is no such graph."""
    try:
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return min(_rows(data), default=None)
    except (OSError, ValueError, IndexError):  # empty, cut off, or of another format: whoever opens it says so
        return None


def _rows(data: mmap.mmap) -> Iterator[int]:
    for graph in _fields(data, 0, len(data)):
        if graph[0] != _GRAPH:
            continue
        for tensor in _fields(data, *graph[2:]):
            if tensor[0] == _INITIALIZER and (shape := _table(data, *tensor[2:])):
                yield shape[0]


def _table(data: mmap.mmap, start: int, end: int) -> list[int]:
    """Return the shape of a constant that is a rotary cache; empty: it is none."""
    shape, is_table = list[int](), False
    for number, value, begin, after in _fields(data, start, end):
        if number == _DIMS:
            shape += [value] if begin == after else _numbers(data, begin, after)
        if number == _NAME:
            is_table = _TABLE in data[begin:after]
    return shape if is_table and len(shape) == _MATRIX else []


def _fields(data: mmap.mmap, place: int, end: int) -> Iterator[Field]:
    """Yield the fields of a message; of those with a length only where they lie."""
    while place < end:
        key, place = _number(data, place)
        number, kind = key >> 3, key & 7
        value, length = 0, 0
        if kind == _VARINT:
            value, place = _number(data, place)
        elif kind == _BYTES:
            length, place = _number(data, place)
        elif kind in (_LONG, _SHORT):
            length = 8 if kind == _LONG else 4
        else:
            raise ValueError(f"no field of a message has the kind {kind}")
        yield number, value, place, place + length
        place += length


def _numbers(data: mmap.mmap, place: int, end: int) -> list[int]:
    numbers = list[int]()
    while place < end:
        value, place = _number(data, place)
        numbers.append(value)
    return numbers


def _number(data: mmap.mmap, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place
        if shift > _MOST_BITS:
            raise ValueError("a number has too many bytes")
