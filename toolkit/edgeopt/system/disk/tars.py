"""Files of a tar that somebody else made: what is read between two files is bounded, and nothing is written."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Iterator
from typing import IO, Any, cast

_MOST_HEAD = 8 << 20
"""Bytes between two files, which are read whole: names, times, and maps of holes."""


class _Metered:
    """A stream that ends in an error where more is read than was allowed."""

    def __init__(self, stream: Any) -> None:
        self._stream, self.left = stream, _MOST_HEAD

    def read(self, size: int) -> bytes:
        data: bytes = self._stream.read(size)
        self.left -= len(data)
        if self.left < 0:
            raise tarfile.ReadError(f"more than {_MOST_HEAD >> 20} MiB stand between two files")
        return data


def files_of_tar(stream: IO[bytes], *, is_packed: bool = False) -> Iterator[tuple[tarfile.TarInfo, IO[bytes]]]:
    """Yield the regular files of a tar in their order, each with its content, which is read before the next one.

    Args:
        stream: Need not be seekable.
        is_packed: Whether it is compressed with gzip.

    Raises:
        ReadError: If it is none, breaks off, or asks for more memory than names and times take.
    """
    source = _Metered(gzip.GzipFile(fileobj=stream) if is_packed else stream)
    try:
        with tarfile.open(fileobj=cast("IO[bytes]", source), mode="r|") as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isreg() else None
                source.left = _MOST_HEAD + (member.size if content else 0)
                if content is not None:
                    yield member, content
    except (gzip.BadGzipFile, zlib.error, EOFError, RecursionError, ValueError) as error:
        raise tarfile.ReadError(f"it is damaged: {error}") from error
