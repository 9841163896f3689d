"""Files are written whole or not at all. It knows no format."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from edgeopt.errors import InvalidFileError


def write_beside(path: Path, data: bytes | str) -> None:
    """Write a whole file or nothing: write a neighbour, flush it to disk, rename it.

    Raises:
        InvalidFileError: If the folder is not writable or the disk is full; `path` is then as it was.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("wb") as file:
            file.write(data.encode("utf-8") if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        raise InvalidFileError(
            f"{path} cannot be written: {error.strerror or error}",
            remedy="choose another folder with -o, free disk space or correct the permissions",
        ) from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
