"""Sounds from `.wav` files: whole numbers of 8 to 32 bits and floats, any number of channels, which are averaged.

The standard library's `wave` refuses floats, and before Python 3.12 the extensible form, which 24 bits often have.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import InvalidFileError
from edgeopt.graph.sound import Sound
from edgeopt.system.disk.files import read_file

_MOST_BYTES = 1 << 30
"""Most bytes of one file; an hour of 48 kHz stereo in 24 bits is 1.04e9."""
_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_RATES = (1000, 768_000)
_UNKNOWN_BYTES = 0x7FFF0000
"""Size from which on the writer did not know it: a stream, or a recorder that was cut off."""
_REMEDY = "write a WAV of 8, 16, 24 or 32 bits or of floats, for example with ffmpeg -i IN OUT.wav"


def read_wav(path: Path) -> Sound:
    """Return a file's sound, its channels averaged.

    Raises:
        InvalidFileError: If it is no WAV, compressed, empty, or holds NaN.
    """
    return decode_wav(read_file(path, remedy="check the file", most_bytes=_MOST_BYTES), str(path))


def decode_wav(data: bytes, text: str) -> Sound:
    """Return the sound that the bytes of a file hold, its channels averaged.

    Args:
        data: All of them.
        text: What they are called in an error.

    Raises:
        InvalidFileError: If it is no WAV, compressed, empty, or holds NaN.
    """
    try:
        return _decoded(data)
    except (ValueError, struct.error) as error:
        why = str(error) if isinstance(error, ValueError) else "its head is cut"
        raise InvalidFileError(f"{text}: {why}", remedy=_REMEDY) from error


def _decoded(data: bytes) -> Sound:
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        raise ValueError("it is empty" if not data else "it is no WAV")
    parts = list(_chunks(data))
    chunks = {name: part for name, _, part in parts}
    if b"fmt " not in chunks or b"data" not in chunks:
        raise ValueError(f"it has no chunk {'fmt' if b'fmt ' not in chunks else 'data'}")
    form, channels, rate, _, block, bits = struct.unpack_from("<HHIIHH", chunks[b"fmt "])
    if form == _EXTENSIBLE:
        (form,) = struct.unpack_from("<H", chunks[b"fmt "], 24)
    kinds = {_PCM: (8, 16, 24, 32), _FLOAT: (32, 64)}
    if bits not in kinds.get(form, ()):
        raise ValueError(f"it holds {bits} bits in format {form}, which is not read")
    if not channels or block != channels * bits // 8 or not _RATES[0] <= rate <= _RATES[1]:
        raise ValueError(f"its head is wrong: {channels} channels of {bits} bits, {block} bytes together, {rate} Hz")
    told, there = parts[-1][1], len(chunks[b"data"])
    if there + block <= told < _UNKNOWN_BYTES:
        raise ValueError(f"it is cut off: {there} of {told} bytes of its samples are there")
    whole = there // block * block
    if not whole:
        raise ValueError("it holds no sample")
    numbers = _numbers(chunks[b"data"][:whole], form, bits).reshape(-1, channels)
    samples = numbers[:, 0] if channels == 1 else numbers.mean(axis=1, dtype=np.float64)
    if not np.isfinite(samples).all():
        raise ValueError("its samples hold NaN or infinity")
    return Sound(np.ascontiguousarray(samples, np.float32), rate)


def _chunks(data: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    """Yield chunks by name, with the size that their head tells, up to the samples."""
    place = 12
    while place + 8 <= len(data):
        name, size = data[place : place + 4], int.from_bytes(data[place + 4 : place + 8], "little")
        yield name, size, data[place + 8 : place + 8 + size]
        if name == b"data":
            return
        place += 8 + size + size % 2


def _numbers(data: bytes, form: int, bits: int) -> NDArray[np.float32]:
    """Return whole numbers over the largest power of two, floats as they are."""
    if form == _FLOAT:
        return np.frombuffer(data, "<f4" if bits == 32 else "<f8").astype(np.float32)
    if bits == 8:  # the only one without a sign
        return np.asarray((np.frombuffer(data, np.uint8).astype(np.float32) - 128) / 128, np.float32)
    if bits == 24:
        padded = np.zeros((len(data) // 3, 4), np.uint8)
        padded[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        return np.asarray(padded.view("<i4")[:, 0] / 2.0**31, np.float32)
    whole = np.frombuffer(data, "<i2" if bits == 16 else "<i4")
    return np.asarray(whole / 2.0 ** (bits - 1), np.float32)


def write_wav(path: Path, sound: Sound) -> None:
    """Write a sound in 16 bits.

    Raises:
        OSError: If that fails.
    """
    pcm = np.clip(np.rint(sound.samples * 32768.0), -32768, 32767).astype("<i2").tobytes()
    head = struct.pack("<HHIIHH", _PCM, 1, sound.rate_hz, 2 * sound.rate_hz, 2, 16)
    body = b"WAVEfmt " + struct.pack("<I", len(head)) + head + b"data" + struct.pack("<I", len(pcm)) + pcm
    path.write_bytes(b"RIFF" + struct.pack("<I", len(body)) + body)


# A WAV that still comes, as a recorder writes it into a pipe: its head first, then samples without end.

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
