"""Files are read within a limit, and written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from io import BufferedRandom
from pathlib import Path

from edgeopt.errors import InvalidFileError, UnavailableError

MOST_BYTES = 64 << 20
"""Most bytes of a file that describes something; the largest report of a real run is 1 MiB."""

_POINTERS = (
    (b"version https://git-lfs.github.com/spec/", "Git LFS", "git lfs pull"),
    (b"/annex/objects/", "git-annex", "git annex get"),
)
"""How files begin that stand in a repository for a large one, whose they are, and what fetches the large one."""
_WEB_PAGE = (b"<!doctype", b"<html")
_HEAD_BYTES = 64
RAW_FILE = "download the file itself: on GitHub and Hugging Face, the raw file"
"""Remedy for a web page in a file's place."""
_LONGEST_PATH = 400
"""Characters of a path that a message shows."""


def read_file(path: Path, *, remedy: str, most_bytes: int = MOST_BYTES) -> bytes:
    """Return what a file holds.

    Args:
        path: A regular file: a pipe or a device is never waited for.
        remedy: What to do where it cannot be read.
        most_bytes: A larger file is refused, not loaded.

    Raises:
        InvalidFileError: If it is absent, no regular file, too large, or may not be read.
    """
    size_bytes = require_regular(path, remedy=remedy)
    if size_bytes > most_bytes:
        problem = f"{path} has {size_bytes >> 20} MiB, more than {most_bytes >> 20} MiB"
        raise InvalidFileError(problem, remedy=remedy)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidFileError(_why_unreadable(path, error), remedy=remedy) from error
    _require_content(path, data)
    return data


def require_no_pointer(path: Path) -> None:
    """Raise InvalidFileError where a file only stands for a large one, as Git LFS and git-annex leave it."""
    if is_pointer(path):
        _require_content(path, path.read_bytes())


def require_itself(path: Path) -> None:
    """Raise InvalidFileError where a file stands for a large one, or is a web page that was saved in its place."""
    require_no_pointer(path)
    if is_web_page(_head(path)):
        raise InvalidFileError(f"{path} is a web page, not the file itself", remedy=RAW_FILE)


def is_web_page(head: bytes) -> bool:
    """Return whether a file is HTML, by its first 64 bytes."""
    return head.lstrip().lower().startswith(_WEB_PAGE)


def is_pointer(path: Path) -> bool:
    """Return whether a file only stands for a large one; False where it cannot be read."""
    head = _head(path)
    return any(head.startswith(one) for one, _, _ in _POINTERS)


def _head(path: Path) -> bytes:
    """Return how a file begins; nothing where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(_HEAD_BYTES)
    except (OSError, ValueError):
        return b""


def _require_content(path: Path, data: bytes) -> None:
    for head, tool, command in _POINTERS:
        if data.startswith(head):
            raise InvalidFileError(
                f"{path} is a pointer of {tool}, not the file itself", remedy=f"{command}, in its repository"
            )


def read_text(path: Path, *, remedy: str, most_bytes: int = MOST_BYTES) -> str:
    """Return the UTF-8 text of a file, without the mark that some editors put before it.

    Raises:
        InvalidFileError: As `read_file`, or if it is not UTF-8.
    """
    try:
        return read_file(path, remedy=remedy, most_bytes=most_bytes).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidFileError(f"{path} is not UTF-8 text: {error.reason}", remedy=remedy) from error


def require_there(path: Path, *, remedy: str) -> os.stat_result:
    """Return what the system tells of a path; raise InvalidFileError where nothing is there or nobody may look."""
    try:
        return path.stat()
    except (OSError, ValueError) as error:
        raise InvalidFileError(_why_unreadable(path, error), remedy=remedy) from error


def require_regular(path: Path, *, remedy: str) -> int:
    """Return the size of a regular file in bytes: opening a pipe or a device would wait for whoever writes it.

    Raises:
        InvalidFileError: If it is absent, or no regular file.
    """
    facts = require_there(path, remedy=remedy)
    if not stat.S_ISREG(facts.st_mode):
        raise InvalidFileError(f"{path} is no regular file", remedy=remedy)
    return facts.st_size


def list_folder(path: Path, *, remedy: str) -> list[str]:
    """Return the names in a folder, in order.

    Raises:
        InvalidFileError: If it is absent, no folder, or may not be read.
    """
    try:
        return sorted(os.listdir(path))
    except (OSError, ValueError) as error:
        raise InvalidFileError(_why_unreadable(path, error), remedy=remedy) from error


def _why_unreadable(path: Path, error: OSError | ValueError) -> str:
    text = str(path)
    line = text if len(text) <= _LONGEST_PATH else f"{text[: _LONGEST_PATH // 2]}...{text[-_LONGEST_PATH // 4 :]}"
    if isinstance(error, FileNotFoundError) and path.is_symlink():
        return f"{line} is a link to {str(path.readlink())[:_LONGEST_PATH]}, which does not exist"
    if isinstance(error, FileNotFoundError):
        return f"{line} does not exist"
    reason = error.strerror if isinstance(error, OSError) else None
    return f"{line} cannot be read: {reason or error}"


def require_writable(path: Path) -> None:
    """Raise InvalidFileError unless a file could be written at that path now; nothing is left there."""
    absent = [parent for parent in path.parents if not os.path.lexists(parent)]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        with tempfile.TemporaryFile(prefix=f".{path.name}.", suffix=".part", dir=path.parent):
            pass
    except (OSError, ValueError) as error:
        raise unwritable(path, error) from error
    finally:
        for other in absent:
            with contextlib.suppress(OSError, ValueError):
                other.rmdir()


def unwritable(path: Path, error: OSError | ValueError) -> InvalidFileError:
    """Return the error of a file that cannot be written."""
    reason = error.strerror if isinstance(error, OSError) else None
    return InvalidFileError(
        f"{path} cannot be written: {reason or error}",
        remedy="choose another place, free disk space or correct the permissions",
    )


def write_beside(path: Path, data: bytes | str) -> None:
    """Write a whole file or nothing: write a neighbour, flush it to disk, rename it.

    Raises:
        InvalidFileError: If the folder is not writable or the disk is full; `path` is then as it was.
    """
    with open_beside(path) as file:
        file.write(data.encode("utf-8") if isinstance(data, str) else data)


@contextlib.contextmanager
def open_beside(path: Path, *, is_lasting: bool = True) -> Iterator[BufferedRandom]:
    """Open a neighbour of a file to write and read; at the end of the `with` it takes the file's name.

    Args:
        path: Of the file.
        is_lasting: Whether it is flushed to disk first, so that it is whole even where the power fails.

    Raises:
        InvalidFileError: If the folder is not writable or the disk is full; `path` is then as it was.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("w+b") as file:
            yield file
            file.flush()
            if is_lasting:
                os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


def require_space(folder: Path, size_bytes: int) -> None:
    """Raise where a file of a size does not fit: an engine that writes it would leave half of it without a word.

    Raises:
        UnavailableError: If the disk of the folder has less room.
    """
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < size_bytes:
        raise UnavailableError(
            f"{folder} has room for {free_bytes // 2**20} MiB, {size_bytes // 2**20} MiB are needed",
            remedy="make room, or set TMPDIR to a folder of another disk",
        )
