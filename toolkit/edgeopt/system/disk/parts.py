"""Parts of a large file, read one by one; it must stay as it was when it was first seen.

A file that is mapped into memory and cut off meanwhile ends the process without a word (SIGBUS on Linux and macOS).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from edgeopt.errors import InvalidFileError
from edgeopt.system.disk.files import require_regular, require_there

_WAIT = "wait until nothing writes it any more, and run the command again"


@dataclass(frozen=True, slots=True)
class FileParts:
    """A file as it was when it was first seen."""

    path: Path
    remedy: str
    """Remedy where it cannot be read."""
    size_bytes: int
    _state: tuple[int, ...]

    def require_same(self) -> None:
        """Raise InvalidFileError where it is not as it was any more."""
        self.read(0, 0)

    def read(self, start: int, size_bytes: int) -> bytes:
        """Return so many bytes from one place on.

        Raises:
            InvalidFileError: If it cannot be read, or was written, cut off or replaced since it was first seen.
        """
        try:
            with self.path.open("rb") as stream:
                stream.seek(start)
                data = stream.read(size_bytes)
                state = _state_of(os.fstat(stream.fileno()))  # after the read, as it may have been written meanwhile
        except OSError as error:
            text = f"{self.path} cannot be read any more: {error.strerror or error}"
            raise InvalidFileError(text, remedy=self.remedy) from error
        if state != self._state or len(data) != size_bytes:
            raise InvalidFileError(f"{self.path} changed while it was read", remedy=_WAIT)
        return data


def parts_of(path: Path, *, remedy: str) -> FileParts:
    """Return a file whose parts are read one by one.

    Args:
        path: A regular file.
        remedy: What to do where it cannot be read.

    Raises:
        InvalidFileError: If it is absent, or no regular file.
    """
    require_regular(path, remedy=remedy)
    facts = require_there(path, remedy=remedy)
    return FileParts(path, remedy, facts.st_size, _state_of(facts))


def _state_of(facts: os.stat_result) -> tuple[int, ...]:
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns
