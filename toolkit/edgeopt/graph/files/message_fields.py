"""The fields of a protobuf message where they lie in a file: nothing is loaded, and no package needed.

Source: https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator

_VARINT, _LONG, _BYTES, _SHORT = 0, 1, 2, 5
_MOST_BITS = 64

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
