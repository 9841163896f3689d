"""Weights that stay in files of their own: engines map them into memory, so that they are never loaded twice.

Nothing here needs onnx; what writes names and places of weights into a graph is in `graph/files/outside_weights.py`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgeopt.errors import InvalidFileError
from edgeopt.system.disk.files import open_beside

ALIGNED_BYTES = 4096
"""Each tensor begins at a page, as mapping asks for."""
LEAST_BYTES = 64 << 10
"""Smaller constants are loaded: they may be shapes, which are computed with."""
_CHUNK_BYTES = 1 << 22
_HASHES: dict[tuple[int, int, int, int], str] = {}
"""Hashes of content by device, inode, size and time of change: gigabytes are hashed once, under all their links."""
_NUMBER = 4
"""Bytes of a float: a file in which one begins elsewhere is no file for engines."""
_WHOLE = 0.95
"""A file of which so much is wanted is linked as it is, not copied."""


@dataclass(frozen=True, slots=True)
class Outside:
    """A serialized graph, and the files with its weights in one folder or below it."""

    graph: bytes
    folder: Path
    files: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class StoredPiece:
    """Where the numbers of one tensor lie."""

    file: Path
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class PieceLayout:
    """One file that holds all pieces: where each begins in it, and whether it is a file that is there already."""

    pieces: tuple[StoredPiece, ...]
    offsets: tuple[int, ...]
    whole: Path | None
    """The file that holds all pieces in their places; None: they are copied one behind the other."""

    @property
    def size_bytes(self) -> int:
        """The size of the file in bytes."""
        if self.whole is not None:
            return self.whole.stat().st_size
        return max((at + piece.length for at, piece in zip(self.offsets, self.pieces, strict=True)), default=0)

    @property
    def sha256(self) -> str:
        """Hash of the file's content, whether it is written yet or not."""
        if self.whole is not None:
            return sha256_of(self.whole)
        digest = hashlib.sha256()
        for chunk in self._content():
            digest.update(chunk)
        return digest.hexdigest()

    def write(self, path: Path, *, may_link: bool = False) -> None:
        """Write the file, whole or not at all.

        Args:
            path: Of the file.
            may_link: Whether a link to a file that is there already does, where the disk has links: what is written
                into one name is then in the other too.

        Raises:
            InvalidFileError: If the folder is not writable or the disk is full.
        """
        if may_link and self._linked(path):
            return
        with open_beside(path) as file:
            for chunk in self._content():
                file.write(chunk)

    def _linked(self, path: Path) -> bool:
        if self.whole is None:
            return False
        link = path.with_name(f".{path.name}.{os.getpid()}.link")  # never opened to write: that would change both
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            os.link(self.whole.resolve(), link)
            link.replace(path)
        except OSError:  # another disk, or a system without links
            return False
        finally:
            with contextlib.suppress(OSError):
                link.unlink(missing_ok=True)
        return True

    def _content(self) -> Iterator[bytes]:
        if self.whole is not None:
            yield from bytes_of_piece(StoredPiece(self.whole, 0, self.size_bytes))
            return
        written = 0
        for at, piece in zip(self.offsets, self.pieces, strict=True):
            yield bytes(at - written)
            yield from bytes_of_piece(piece)
            written = at + piece.length


def lay_out(pieces: Sequence[StoredPiece]) -> PieceLayout:
    """Return how pieces lie in one file: as they are where one file holds little else, otherwise at pages in a row."""
    files = {piece.file for piece in pieces}
    wanted = sum(piece.length for piece in set(pieces))
    is_aligned = all(piece.offset % _NUMBER == 0 for piece in pieces)  # not in the middle of a protobuf
    if is_aligned and len(files) == 1 and wanted >= _WHOLE * (whole := next(iter(files))).stat().st_size:
        return PieceLayout(tuple(pieces), tuple(piece.offset for piece in pieces), whole)
    places, kept, end = dict[StoredPiece, int](), list[StoredPiece](), 0
    for other in dict.fromkeys(pieces):
        places[other] = -(-end // ALIGNED_BYTES) * ALIGNED_BYTES
        end = places[other] + other.length
        kept.append(other)
    return PieceLayout(tuple(kept), tuple(places[piece] for piece in kept), None)


def bytes_of_piece(piece: StoredPiece) -> Iterator[bytes]:
    """Yield the bytes of a piece, some megabytes at a time."""
    with piece.file.open("rb") as file:
        file.seek(piece.offset)
        left = piece.length
        while left:
            chunk = file.read(min(left, _CHUNK_BYTES))
            if not chunk:
                raise InvalidFileError(
                    f"{piece.file} is shorter than the model says", remedy="keep the external data files whole"
                )
            left -= len(chunk)
            yield chunk


def sha256_of(path: Path) -> str:
    """Return the hash of a file's content; of one that did not change since it was asked last it is remembered."""
    content = _content_of(path)
    if content not in _HASHES:
        with path.open("rb") as file:
            _HASHES[content] = hashlib.file_digest(file, "sha256").hexdigest()
    return _HASHES[content]


def remember_sha256(path: Path, digest: str) -> None:
    """Take up the hash of a file's content that is known already."""
    _HASHES[_content_of(path)] = digest


def _content_of(path: Path) -> tuple[int, int, int, int]:
    facts = path.stat()
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns
