"""A picture in the body of a request: its size is known before it is decoded, so that a few bytes become no gigabytes.

Source: PNG (W3C) IHDR; JPEG (ITU-T T.81) SOF; WebP (RFC 9649); BMP, BITMAPINFOHEADER.
"""

from __future__ import annotations

from edgeopt.graph.tensors import Frame, ReducedPicture, require_picture
from edgeopt.recipes.inputs.jpeg import JPEG, ReducedDecoding, number_at, read_jpeg_head
from edgeopt.runtime.serve.refused import RefusedError

LARGE_PIXELS = 10_000_000
"""More take 30 MB and a good part of a second: they are taken one at a time. A frame of 4K has 8.3 million."""
_MOST_SCANS = 64
"""Scans of a JPEG: a progressive one has about ten, and each costs a pass over all pixels, however few bytes it has."""
_SCAN = b"\xff\xda"


def size_of(data: bytes) -> tuple[int, int] | None:
    """Return (height, width) of a PNG, JPEG, WebP or BMP; None of anything else."""
    try:
        if data.startswith(b"\x89PNG\r\n\x1a\n") and data[12:16] == b"IHDR":
            return number_at(data, 20, 4), number_at(data, 16, 4)
        if data.startswith(JPEG):
            head = read_jpeg_head(data)
            return None if head is None else (head.stored_height, head.stored_width)
        if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
            return _of_webp(data)
        if data.startswith(b"BM") and number_at(data, 14, 4, little=True) >= 40:
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
    scans = data.count(_SCAN) if data.startswith(JPEG) else 0
    if scans > _MOST_SCANS:
        text = f"the JPEG has {scans} scans, more than {_MOST_SCANS}: store it anew"
        raise RefusedError(413, text, code="picture_too_large")
    return size[0] * size[1]


def read_frame(data: bytes) -> Frame:
    """Return a picture, whose size is allowed, as (height, width, 3) BGR.

    Raises:
        RefusedError: If it does not decode.
    """
    return require_picture(read_sample(data, None))


def read_sample(data: bytes, decoding: ReducedDecoding | None) -> Frame | ReducedPicture:
    """Return a picture, whose size is allowed, whole or as `decoding` says.

    Raises:
        RefusedError: If it does not decode.
    """
    from edgeopt.recipes.inputs.pictures import decode_sample  # with OpenCV, which a server of texts does without

    sample = decode_sample(data, decoding)
    if sample is None:
        raise _none()
    return sample


def _none() -> RefusedError:
    return RefusedError(400, "the body is no picture: send a PNG, JPEG, WebP or BMP", code="invalid_picture")


def _of_webp(data: bytes) -> tuple[int, int] | None:
    kind = data[12:16]
    if kind == b"VP8X":
        return number_at(data, 27, 3, little=True) + 1, number_at(data, 24, 3, little=True) + 1
    if kind == b"VP8L":
        bits = number_at(data, 21, 4, little=True)
        return (bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1
    if kind == b"VP8 ":
        return number_at(data, 28, 2, little=True) & 0x3FFF, number_at(data, 26, 2, little=True) & 0x3FFF
    return None
