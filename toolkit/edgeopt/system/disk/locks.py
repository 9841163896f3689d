"""A folder that one process at a time writes into, and a file that processes take turns to hold."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from typing import IO

from edgeopt.errors import EdgeoptError, InvalidFileError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_LOCK = ".lock"
_LOOK_S = 0.2


def lock_folder(folder: Path, *, held: str, remedy: str) -> IO[bytes]:
    """Return an open file that no other process holds; the system lets go of it when the process ends, however it ends.

    Args:
        folder: Created where it is absent.
        held: What holds it where it is held, such as `another run writes into`.
        remedy: What to do then, or where the folder cannot be written.

    Raises:
        InvalidFileError: If the folder cannot be written.
        EdgeoptError: If another process holds it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / _LOCK).open("ab")
    except OSError as error:
        problem = f"{folder} cannot be written: {error.strerror or error}"
        raise InvalidFileError(problem, remedy=f"{remedy}, free disk space or correct the permissions") from error
    try:
        if sys.platform == "win32":
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        is_held = isinstance(error, BlockingIOError | PermissionError)
        problem = f"{held} {folder}" if is_held else f"{folder} cannot be locked: {error}"
        raise EdgeoptError(problem, remedy=f"wait for it, or {remedy}") from error
    return file


@contextmanager
def hold(path: Path, *, is_shared: bool = False, on_wait: Callable[[], None] | None = None) -> Iterator[IO[bytes]]:
    """Wait until a file is free, and hold it; processes that inherit it hold it on.

    Args:
        path: Of the file, which is made where it is absent.
        is_shared: Whether others may hold it beside, which share it as well; on Windows nobody does.
        on_wait: Called once where it is not free; what it raises ends the waiting.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        if not _is_taken(file, is_shared):
            if on_wait:
                on_wait()
            _wait(file, is_shared)
        yield file


def _is_taken(file: IO[bytes], is_shared: bool) -> bool:
    """Take a file that is free; return whether it was."""
    try:
        if sys.platform == "win32":
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(file, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _wait(file: IO[bytes], is_shared: bool) -> None:
    if sys.platform == "win32":
        while not _is_taken(file, is_shared):
            sleep(_LOOK_S)
    else:
        fcntl.flock(file, fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX)
