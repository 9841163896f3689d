"""A WAV that still comes, as a recorder writes it into a pipe: its head first, then samples without end."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

from edgeopt.errors import InvalidFileError
from edgeopt.graph.sound import Sound
from edgeopt.recipes.inputs.wav_files import decode_wav

_PART_S = 0.1
"""Samples are passed on in parts of so many seconds."""
_MOST_HEAD = 1 << 20
"""Bytes before the samples, at most."""
_UNKNOWN = b"\xff\xff\xff\xff"


def read_wav_stream(file: BinaryIO, text: str) -> Iterator[Sound]:
    """Yield the sound of a WAV part by part as it comes, its channels averaged.

    Args:
        file: Is read to its end; its head need not know how long it is.
        text: What it is called in an error.

    Raises:
        InvalidFileError: If it is no WAV, compressed, or holds NaN.
    """
    head = file.read(12)
    if head[:4] != b"RIFF" or head[8:12] != b"WAVE":
        problem = "it is empty" if not head else "it is no WAV"
        raise InvalidFileError(f"{text}: {problem}", remedy="pipe one in: ffmpeg -i IN -ar 16000 -ac 1 -f wav -")
    form = b""
    while True:
        name, size = _chunk(file, text)
        if name == b"data":
            break
        if size > _MOST_HEAD:
            raise InvalidFileError(f"{text}: its head is wrong", remedy="write a WAV, for example with ffmpeg -f wav -")
        content = file.read(size + size % 2)
        form = content[:size] if name == b"fmt " else form
    if len(form) < 16:
        raise InvalidFileError(f"{text}: it has no chunk fmt", remedy="write a WAV, for example with ffmpeg -f wav -")
    rate, _, block = struct.unpack_from("<IIH", form, 4)
    before = b"RIFF" + _UNKNOWN + b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"\0" * (len(form) % 2)
    decode_wav(before + b"data" + _UNKNOWN + bytes(block), text)  # refuses a head that asks for terabytes at once
    size = block * max(round(rate * _PART_S), 1)
    while len(part := file.read(size)) >= block:
        yield decode_wav(before + b"data" + _UNKNOWN + part, text)


def _chunk(file: BinaryIO, text: str) -> tuple[bytes, int]:
    head = file.read(8)
    if len(head) < 8:
        raise InvalidFileError(f"{text}: it has no chunk data", remedy="write a WAV, for example with ffmpeg -f wav -")
    return head[:4], int.from_bytes(head[4:], "little")
