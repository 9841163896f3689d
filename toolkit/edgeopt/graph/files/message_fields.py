"""The fields of a protobuf message where they lie in a file: nothing is loaded, and no package needed.

Source: https://protobuf.dev/programming-guides/encoding; onnx.proto, TensorProto.external_data = 13,
data_location = 14.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator

_VARINT, _LONG, _BYTES, _SHORT = 0, 1, 2, 5
_MOST_BITS = 64
_EXTERNAL_DATA, _IS_EXTERNAL = 13, bytes([14 << 3, 1])
"""Number of a field of a constant, and `data_location = EXTERNAL` as it is written."""

Field = tuple[int, int, int, int]
"""Number, value, and where it begins and ends; the value is that of a number, else 0."""


def fields_of(data: mmap.mmap | bytes, place: int, end: int) -> Iterator[Field]:
    """Yield the fields of a message; of those with a length only where they lie."""
    while place < end:
        key, place = number_at(data, place)
        number, kind = key >> 3, key & 7
        value, length = 0, 0
        if kind == _VARINT:
            value, place = number_at(data, place)
        elif kind == _BYTES:
            length, place = number_at(data, place)
        elif kind in (_LONG, _SHORT):
            length = 8 if kind == _LONG else 4
        else:
            raise ValueError(f"no field of a message has the kind {kind}")
        if place + length > end:
            raise ValueError("a field ends behind its message")
        yield number, value, place, place + length
        place += length


def number_at(data: mmap.mmap | bytes, place: int) -> tuple[int, int]:
    """Return the number that begins at a place, and where it ends."""
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place
        if shift > _MOST_BITS:
            raise ValueError("a number has too many bytes")


def head_of(number: int, length: int) -> bytes:
    """Return what stands before the content of a field that has a length."""
    made = bytearray()
    for value in (number << 3 | _BYTES, length):
        left = value
        while left > 127:
            made.append(left & 127 | 128)
            left >>= 7
        made.append(left)
    return bytes(made)


def text_field(number: int, text: str) -> bytes:
    """Return a field that holds a text."""
    data = text.encode()
    return head_of(number, len(data)) + data


def number_field(number: int, value: int) -> bytes:
    """Return a field that holds a number; its own number is below 16."""
    head = head_of(number, value)  # its key says that bytes follow; the kind of a number is 0
    return bytes([head[0] & ~7]) + head[1:]


def external_data(file: str, offset: int, length: int) -> bytes:
    """Return the fields of a constant that say where its numbers lie outside of the graph."""
    made = b""
    for key, value in (("location", file), ("offset", str(offset)), ("length", str(length))):
        entry = text_field(1, key) + text_field(2, value)
        made += head_of(_EXTERNAL_DATA, len(entry)) + entry
    return made + _IS_EXTERNAL


def copied(
    data: mmap.mmap | bytes,
    begin: int,
    end: int,
    wanted: int,
    replaced: Callable[[int, int], bytes | None],
    *,
    is_dropped: bool = False,
) -> bytes:
    """Return a message in which fields of one number are replaced, or dropped; None: a field stays as it is."""
    made, at = bytearray(), begin
    for number, _, first, last in fields_of(data, begin, end):
        new = replaced(first, last) if number == wanted else None
        if new is None:
            made += data[at:last]
        elif not is_dropped:
            made += head_of(number, len(new)) + new
        at = last
    return bytes(made)
