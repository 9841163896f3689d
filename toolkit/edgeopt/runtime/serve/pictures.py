"""A picture in the body of a request: its size is known before it is decoded, so that a few bytes become no gigabytes.

Source: PNG (W3C) IHDR; JPEG (ITU-T T.81) SOF; WebP (RFC 9649); BMP, BITMAPINFOHEADER.
"""

from __future__ import annotations

from collections.abc import Iterator

from edgeopt.graph.tensors import Frame
from edgeopt.recipes.pictures import decode_picture
from edgeopt.runtime.serve.refused import RefusedError

MOST_PIXELS = 50_000_000
"""150 MB when decoded."""
_NO_SIZE = frozenset((0x01, *range(0xD0, 0xDA)))
"""Markers of JPEG without a length."""
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


def size_of(data: bytes) -> tuple[int, int] | None:
    """Return (height, width) of a PNG, JPEG, WebP or BMP; None of anything else."""
    try:
        if data.startswith(b"\x89PNG\r\n\x1a\n") and data[12:16] == b"IHDR":
            return _number(data, 20, 4), _number(data, 16, 4)
        if data.startswith(b"\xff\xd8"):
            return _of_jpeg(data)
        if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
            return _of_webp(data)
        if data.startswith(b"BM") and _number(data, 14, 4, little=True) >= 40:
            sides = (int.from_bytes(data[i : i + 4], "little", signed=True) for i in (22, 18))
            height, width = (abs(one) for one in sides)
            return height, width
    except IndexError:
        return None
    return None


def read_frame(data: bytes) -> Frame:
    """Return a picture as (height, width, 3) BGR.

    Raises:
        RefusedError: If it is none, or has too many pixels.
    """
    size = size_of(data)
    if size is not None and size[0] * size[1] > MOST_PIXELS:
        told = f"the picture has {size[1]}x{size[0]} pixels, more than {MOST_PIXELS}"
        raise RefusedError(413, told, code="picture_too_large")
    frame = decode_picture(data) if size is not None else None
    if frame is None:
        raise RefusedError(400, "the body is no picture: send a PNG, JPEG, WebP or BMP", code="invalid_picture")
    return frame


def _number(data: bytes, at: int, size: int, *, little: bool = False) -> int:
    part = data[at : at + size]
    if len(part) < size:
        raise IndexError
    return int.from_bytes(part, "little" if little else "big")


def _of_jpeg(data: bytes) -> tuple[int, int] | None:
    for marker, at in _segments(data):
        if marker in _FRAMES:
            return _number(data, at + 3, 2), _number(data, at + 5, 2)
    return None


def _segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the marker of each segment, and where its length stands."""
    at = 2
    while at + 4 <= len(data):
        if data[at] != 0xFF:
            return
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
        elif marker in _NO_SIZE:
            at += 2
        else:
            yield marker, at + 2
            at += 2 + max(_number(data, at + 2, 2), 2)


def _of_webp(data: bytes) -> tuple[int, int] | None:
    kind = data[12:16]
    if kind == b"VP8X":
        return _number(data, 27, 3, little=True) + 1, _number(data, 24, 3, little=True) + 1
    if kind == b"VP8L":
        bits = _number(data, 21, 4, little=True)
        return (bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1
    if kind == b"VP8 ":
        return _number(data, 28, 2, little=True) & 0x3FFF, _number(data, 26, 2, little=True) & 0x3FFF
    return None
