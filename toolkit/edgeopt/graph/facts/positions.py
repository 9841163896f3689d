"""How many positions a decoder has a rotation for, read from its file alone: nothing is loaded, and onnx not needed.

A rotary cache is a table with a row a position; a text beyond its last row has none. Only names and shapes of the
graph's constants are read (ONNX: ModelProto.graph = 7, GraphProto.initializer = 5, TensorProto.dims = 1, name = 8).
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

from edgeopt.graph.files.message_fields import fields_of, number_at

_TABLE = b"cos_cache"
_GRAPH, _INITIALIZER, _DIMS, _NAME = 7, 5, 1, 8
_MATRIX = 2


def positions_of(file: Path) -> int | None:
    """Return the rows of the shortest rotary cache; None: there is none, or the file is no such graph."""
    try:
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return min(_rows(data), default=None)
    except (OSError, ValueError, IndexError):  # empty, cut off, or of another format: whoever opens it says so
        return None


def _rows(data: mmap.mmap) -> Iterator[int]:
    for graph in fields_of(data, 0, len(data)):
        if graph[0] != _GRAPH:
            continue
        for tensor in fields_of(data, *graph[2:]):
            if tensor[0] == _INITIALIZER and (shape := _table(data, *tensor[2:])):
                yield shape[0]


def _table(data: mmap.mmap, start: int, end: int) -> list[int]:
    """Return the shape of a constant that is a rotary cache; empty: it is none."""
    shape, is_table = list[int](), False
    for number, value, begin, after in fields_of(data, start, end):
        if number == _DIMS:
            shape += [value] if begin == after else _numbers(data, begin, after)
        if number == _NAME:
            is_table = _TABLE in data[begin:after]
    return shape if is_table and len(shape) == _MATRIX else []


def _numbers(data: mmap.mmap, place: int, end: int) -> list[int]:
    numbers = list[int]()
    while place < end:
        value, place = number_at(data, place)
        numbers.append(value)
    return numbers
