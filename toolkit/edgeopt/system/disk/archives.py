"""Arrays from an .npz of anyone: sizes are checked before memory is asked for, and nothing is unpickled."""

from __future__ import annotations

import math
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from edgeopt.errors import InvalidFileError
from edgeopt.system.disk.files import require_regular
from edgeopt.system.text import short

_MOST_SHARE = 0.5
"""Share of the memory that is free: arrays are loaded whole, and a model works beside them."""
_MOST_ARRAYS = 10_000
_READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_DAMAGED = (
    *(OSError, EOFError, ValueError, SyntaxError, TypeError, OverflowError, RecursionError, MemoryError, IndexError),
    *(tokenize.TokenError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, KeyError),
)
"""Errors that NumPy, zipfile and the parser of an array's head raise for a file that is cut, damaged or of another
kind."""


class _ArrayError(ValueError):
    """Why an array is not read, in one line."""


def read_archive(path: Path, *, remedy: str, most_bytes: int | None = None) -> dict[str, NDArray[Any]]:
    """Return the arrays of an .npz by name.

    Args:
        path: Of a regular file.
        remedy: What to do where it is wrong.
        most_bytes: It may unpack to; None: half of the free memory.

    Raises:
        InvalidFileError: If it is none, holds something else than plain arrays, or more than memory takes.
    """
    require_regular(path, remedy=remedy)
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            if reason := _why_refused(members, most_bytes):
                raise InvalidFileError(f"{path}: {reason}", remedy=remedy)
            return {member.filename.removesuffix(".npy"): _read_member(archive, member) for member in members}
    except _DAMAGED as error:
        raise InvalidFileError(f"{path} is no .npz: {_why_damaged(error)}", remedy=remedy) from error


def _why_refused(members: list[zipfile.ZipInfo], most_bytes: int | None) -> str:
    """Return what an archive holds that is no array, or that memory does not hold; empty where it may be read."""
    if len(members) > _MOST_ARRAYS:
        return f"it holds {len(members)} arrays, more than {_MOST_ARRAYS}"
    names = [member.filename for member in members]
    for one in members:
        if one.flag_bits & 1:
            return f"{short(one.filename)} is encrypted"
        if not one.filename.endswith(".npy"):
            return f"{short(one.filename)} is no array"
    if len(set(names)) < len(names):
        return "two arrays have one name"
    needed = sum(member.file_size for member in members)
    if most_bytes is not None and needed > most_bytes:
        return f"it unpacks to {needed >> 20} MiB, more than {most_bytes >> 20} MiB"
    from edgeopt.system.machine.memory import free_bytes  # psutil, which most never need

    free = free_bytes()
    if needed > _MOST_SHARE * free:
        return f"it unpacks to {needed >> 20} MiB, more than half of the {free >> 20} MiB of memory that are free"
    return ""


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(member) as file:
        shape, dtype = _read_head(file)
        wanted, there = math.prod(shape) * dtype.itemsize, member.file_size - file.tell()
        if dtype.hasobject or wanted > there:
            what = "Python objects" if dtype.hasobject else f"{wanted} bytes in {there}"
            raise _ArrayError(f"{short(member.filename)} claims {what}")
    with archive.open(member) as file:
        array: NDArray[Any] = npy.read_array(file, allow_pickle=False)
        return array


def _read_head(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = npy.read_magic(file)
    if version not in _READERS:
        raise _ArrayError(f"an array has version {version}")
    shape, _, dtype = _READERS[version](file)
    if any(size < 0 for size in shape):
        raise _ArrayError(f"an array has the shape {short(shape)}")
    return shape, dtype


def _why_damaged(error: Exception) -> str:
    """Return the reason in one short line; NumPy's own may run over several, and advise to unpickle."""
    if isinstance(error, _ArrayError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return "it is no archive" if isinstance(error, zipfile.BadZipFile) else "an array is damaged"
