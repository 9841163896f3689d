"""The head of a JPEG, of a few hundred bytes: size, kind, orientation; and at what part of its size it may be decoded.

libjpeg computes half, a quarter or an eighth of a picture's rows and columns from fewer coefficients.

Source: ITU-T T.81, Annex B (markers, SOF); Exif 2.3, 4.6 (tag 0x0112).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from edgeopt.recipes.inputs.preprocess import MOST_PIXELS, Preprocess, scaled_size

JPEG = b"\xff\xd8"
_REDUCTIONS = (8, 4, 2)
"""Divisors of the sides, the largest first."""
_MOST_SEGMENTS = 1000
"""Most segments before the size."""
_NO_SIZE = frozenset((0x01, *range(0xD0, 0xDA)))
"""Markers without a length."""
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_APP1, _EXIF = 0xE1, b"Exif\0\0"
_ORIENTATION = 0x0112
_MOST_TAGS = 200
_TURNED = frozenset((5, 6, 7, 8))
"""Orientations in which rows are stored as columns."""
_FROM_RIGHT, _FROM_BOTTOM = frozenset((2, 3, 6, 7)), frozenset((3, 4, 7, 8))
"""Orientations in which the picture's right or lower edge is stored first, once rows are where they belong."""


@dataclass(frozen=True, slots=True)
class JpegHead:
    """Size, kind and orientation of a JPEG, which stand before its pixels."""

    stored_height: int
    stored_width: int
    bits: int
    channels: int
    orientation: int = 1
    """As Exif counts, 1 to 8."""

    @property
    def is_turned(self) -> bool:
        """Whether height and width change places when it is shown."""
        return self.orientation in _TURNED

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the picture as it is shown."""
        size = self.stored_height, self.stored_width
        return size[::-1] if self.is_turned else size

    @property
    def begins_at_right(self) -> bool:
        """Whether columns were stored from the right edge to the left one."""
        return self.orientation in _FROM_RIGHT

    @property
    def begins_at_bottom(self) -> bool:
        """Whether rows were stored from the lower edge to the upper one."""
        return self.orientation in _FROM_BOTTOM


def read_jpeg_head(data: bytes) -> JpegHead | None:
    """Return the head of a JPEG; None of anything else, and where it is damaged."""
    if not data.startswith(JPEG):
        return None
    orientation = 1
    try:
        for marker, at in islice(_segments(data), _MOST_SEGMENTS):
            if marker == _APP1 and orientation == 1 and data.startswith(_EXIF, at + 2):
                orientation = _orientation(data[at + 8 : at + number_at(data, at, 2)])
            if marker in _FRAMES:
                height, width = number_at(data, at + 3, 2), number_at(data, at + 5, 2)
                return JpegHead(height, width, number_at(data, at + 2, 1), number_at(data, at + 7, 1), orientation)
    except IndexError:
        return None
    return None


def _orientation(exif: bytes) -> int:
    """Return the orientation that a block of Exif tells; 1 where it tells none, or is damaged."""
    little = exif.startswith(b"II")
    if not little and not exif.startswith(b"MM"):
        return 1
    try:
        at = number_at(exif, 4, 4, little=little)
        for i in range(min(number_at(exif, at, 2, little=little), _MOST_TAGS)):
            entry = at + 2 + 12 * i
            if number_at(exif, entry, 2, little=little) == _ORIENTATION:
                value = number_at(exif, entry + 8, 2, little=little)
                return value if 1 <= value <= 8 else 1
    except IndexError:
        pass
    return 1


def number_at(data: bytes, at: int, size: int, *, little: bool = False) -> int:
    """Return the number in `size` bytes of a file; raises IndexError behind its end."""
    part = data[at : at + size]
    if len(part) < size:
        raise IndexError
    return int.from_bytes(part, "little" if little else "big")


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
            at += 2 + max(number_at(data, at + 2, 2), 2)


def reduction_of(size: Sequence[int], preprocess: Preprocess, frame: Sequence[int]) -> int:
    """Return by what a JPEG may be decoded smaller so that scaling it to the input enlarges no side: 1, 2, 4 or 8.

    Args:
        size: Height and width of the input.
        preprocess: How it is scaled.
        frame: Height and width of the picture.
    """
    if min(frame) < 1:
        return 1
    target = scaled_size(size, preprocess, frame)
    if math.prod(target) > MOST_PIXELS:
        return 1
    return next((k for k in _REDUCTIONS if all(-(-a // k) >= b for a, b in zip(frame, target, strict=True))), 1)


@dataclass(frozen=True, slots=True)
class ReducedDecoding:
    """JPEG files are decoded at the smallest size that a recipe's input need not enlarge; other files whole."""

    size: tuple[int, ...]
    """Height and width of the input."""
    preprocess: Preprocess

    def reduction(self, head: JpegHead | None) -> int:
        """Return by what a picture is decoded smaller: 1, 2, 4 or 8; 1 where it is no JPEG in colour of 8 bits."""
        if head is None or (head.bits, head.channels) != (8, 3):
            return 1
        return reduction_of(self.size, self.preprocess, head.size)
