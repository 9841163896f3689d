"""A picture in the body of a request: its size is known before it is decoded, so that a few bytes become no gigabytes.

Source: PNG (W3C) IHDR; JPEG (ITU-T T.81) SOF; WebP (RFC 9649); BMP, BITMAPINFOHEADER.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from edgeopt.graph.tensors import Frame
from edgeopt.recipes.inputs.pictures import decode_picture
from edgeopt.runtime.serve.refused import RefusedError

LARGE_PIXELS = 10_000_000
"""More take 30 MB and a good part of a second: they are taken one at a time. A frame of 4K has 8.3 million."""
_MOST_SCANS = 64
"""Scans of a JPEG: a progressive one has about ten, and each costs a pass over all pixels, however few bytes it has."""
_SCAN = b"\xff\xda"
_MOST_SEGMENTS = 1000
"""Before the size of a JPEG."""
_JPEG = b"\xff\xd8"
_NO_SIZE = frozenset((0x01, *range(0xD0, 0xDA)))
"""Markers of JPEG without a length."""
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


def size_of(data: bytes) -> tuple[int, int] | None:
    """Return (height, width) of a PNG, JPEG, WebP or BMP; None of anything else."""
    try:
        if data.startswith(b"\x89PNG\r\n\x1a\n") and data[12:16] == b"IHDR":
            return _number(data, 20, 4), _number(data, 16, 4)
        if data.startswith(_JPEG):
            return _of_jpeg(data)
        if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
            return _of_webp(data)
        if data.startswith(b"BM") and _number(data, 14, 4, little=True) >= 40:
            sides = (int.from_bytes(data[i : i + 4], "little", signed=True) for i in (22, 18))
            height, width = (abs(side) for side in sides)
            return height, width
    except IndexError:
        return None
    return None


def require_bounded(data: bytes, most_pixels: int) -> int:
    """Return how many pixels a picture has; nothing is decoded.

    Raises:
        RefusedError: If it is none, or would take too much memory or time.
    """
    size = size_of(data)
    if size is None:
        raise _none()
    if size[0] * size[1] > most_pixels:
        text = f"the picture has {size[1]}x{size[0]} pixels, more than {most_pixels}, the limit of this server"
        raise RefusedError(413, text, code="picture_too_large")
    scans = data.count(_SCAN) if data.startswith(_JPEG) else 0
    if scans > _MOST_SCANS:
        text = f"the JPEG has {scans} scans, more than {_MOST_SCANS}: store it anew"
        raise RefusedError(413, text, code="picture_too_large")
    return size[0] * size[1]


def read_frame(data: bytes) -> Frame:
    """Return a picture, whose size is allowed, as (height, width, 3) BGR.

    Raises:
        RefusedError: If it does not decode.
    """
    frame = decode_picture(data)
    if frame is None:
        raise _none()
    return frame


def _none() -> RefusedError:
    return RefusedError(400, "the body is no picture: send a PNG, JPEG, WebP or BMP", code="invalid_picture")


def _number(data: bytes, at: int, size: int, *, little: bool = False) -> int:
    part = data[at : at + size]
    if len(part) < size:
        raise IndexError
    return int.from_bytes(part, "little" if little else "big")


def _of_jpeg(data: bytes) -> tuple[int, int] | None:
    for marker, at in islice(_segments(data), _MOST_SEGMENTS):
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
