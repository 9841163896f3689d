"""Names, types and shapes of a graph's constants, read from its file alone: nothing is loaded, and onnx not needed.

Source: onnx.proto, ModelProto.graph = 7, GraphProto.initializer = 5, TensorProto.dims = 1, data_type = 2, name = 8,
raw_data = 9, external_data = 13.
"""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass
from pathlib import Path

from edgeopt.graph.files.message_fields import fields_of, number_at

GRAPH, INITIALIZER = 7, 5
_DIMS, _TYPE, _NAME, _RAW, _OUTSIDE = 1, 2, 8, 9, 13
_BITS = {1: 32, 2: 8, 3: 8, 4: 16, 5: 16, 6: 32, 7: 64, 9: 8, 10: 16, 11: 64, 16: 16, 21: 4, 22: 4}
"""Bits of a number, by TensorProto.DataType."""
FLOAT16, BFLOAT16 = 10, 16
"""Types of constants, by the numbers that ONNX gives them."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant of a graph; its numbers lie in the file or outside."""

    name: str
    type_number: int
    shape: tuple[int, ...]
    file: str = ""
    """Where its numbers lie outside, relative to the folder of the graph; empty: in the graph."""
    offset: int = 0
    """Where they begin in that file, or in the graph's; 0 in the graph: they are not written as bytes."""

    @property
    def size_bytes(self) -> int:
        """Size of its numbers; 0: they are texts."""
        return math.prod(self.shape) * _BITS.get(self.type_number, 0) // 8


def constants_of(file: Path) -> list[Constant]:
    """Return the constants of a graph; none where the file is no graph, which whoever opens it says."""
    try:
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return [
                constant_at(data, *tensor[2:])
                for graph in fields_of(data, 0, len(data))
                if graph[0] == GRAPH
                for tensor in fields_of(data, *graph[2:])
                if tensor[0] == INITIALIZER
            ]
    except (OSError, ValueError, IndexError):  # empty, cut off, or of another format
        return []


def constant_at(data: mmap.mmap | bytes, start: int, end: int) -> Constant:
    """Return the constant that lies between two places of a serialized graph.

    Raises:
        ValueError: If none does.
    """
    shape, type_number, name, offset, place = list[int](), 0, b"", 0, dict[str, str]()
    for number, value, begin, after in fields_of(data, start, end):
        if number == _DIMS:
            shape += [value] if begin == after else _numbers(data, begin, after)
        elif number == _TYPE:
            type_number = value
        elif number == _NAME:
            name = data[begin:after]
        elif number == _RAW:
            offset = begin
        elif number == _OUTSIDE:
            texts = [data[first:last].decode("utf-8", "replace") for _, _, first, last in fields_of(data, begin, after)]
            place[texts[0]] = texts[-1]
    if file := place.get("location", ""):
        offset = int(place.get("offset", 0))
    return Constant(name.decode("utf-8", "replace"), type_number, tuple(shape), file, offset)


def _numbers(data: mmap.mmap | bytes, place: int, end: int) -> list[int]:
    numbers = list[int]()
    while place < end:
        value, place = number_at(data, place)
        numbers.append(value)
    return numbers
