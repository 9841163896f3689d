"""Programs that were converted before: a conversion takes seconds, and one model is opened in many processes.

They lie below the user's own caches, by the content of the model and of what converts it.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from edgeopt.errors import InvalidFileError
from edgeopt.executors.executorch.file import is_program
from edgeopt.system.disk.caches import cache_folder
from edgeopt.system.disk.files import write_beside

_MOST, _MOST_BYTES = 64, 1 << 30
"""Programs that are kept; a search makes some dozens."""
_HASH_BYTES = 32
"""Length of the SHA-256 behind each program: a full disk, or a machine that went off, leaves half a program."""
_MOST_UNWRITTEN = 8
_unwritten: dict[bytes, bytes] = {}
"""Programs by the hash of their model, where no disk takes them: this process at least converts each once."""
_CONVERTERS = ("executorch", "_torch", "_conversion")
"""Folders whose code decides what a program is."""


def kept_program(model: bytes) -> bytes | None:
    """Return what was converted of a serialized model before; None: nothing, or nothing whole."""
    if unwritten := _unwritten.get(hashlib.sha256(model).digest()):
        return unwritten
    file = _file_of(model)
    if file is None:
        return None
    try:
        data = file.read_bytes()
    except OSError:
        return None
    program, stored = data[:-_HASH_BYTES], data[-_HASH_BYTES:]
    if hashlib.sha256(program).digest() != stored or not is_program(program):
        return None
    with suppress(OSError):  # a folder that may be read alone
        os.utime(file)
    return program


def keep_program(model: bytes, program: bytes) -> None:
    """Keep what was converted of a serialized model, and let the oldest go; a full disk is no fault."""
    file = _file_of(model)
    if file is None or not _is_written(file, program + hashlib.sha256(program).digest()):
        _unwritten[hashlib.sha256(model).digest()] = program
        while len(_unwritten) > _MOST_UNWRITTEN:
            del _unwritten[next(iter(_unwritten))]
        return
    with suppress(OSError):
        count, size_bytes = 0, 0
        for kept in sorted(file.parent.glob("*.pte"), key=lambda path: path.stat().st_mtime, reverse=True):
            count, size_bytes = count + 1, size_bytes + kept.stat().st_size
            if count > _MOST or (size_bytes > _MOST_BYTES and kept != file):
                kept.unlink(missing_ok=True)


def _is_written(file: Path, data: bytes) -> bool:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_beside(file, data)
    except (OSError, InvalidFileError):
        return False
    return True


def _file_of(model: bytes) -> Path | None:
    try:
        folder = cache_folder() / "executorch"
    except RuntimeError:  # a user without a home
        return None
    return folder / f"{hashlib.sha256(_converter() + hashlib.sha256(model).digest()).hexdigest()[:32]}.pte"


@cache
def _converter() -> bytes:
    """Return what stands for the code that converts: another version makes other programs."""
    digest = hashlib.sha256()
    for package in ("executorch", "torch"):
        with suppress(PackageNotFoundError):
            digest.update(f"{package} {version(package)} ".encode())
    for name in _CONVERTERS:
        for path in sorted((Path(__file__).parents[1] / name).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.digest()
