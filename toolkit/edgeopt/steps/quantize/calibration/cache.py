"""Chunks of a calibration on disk, so that nothing is computed twice.

An entry belongs to one model, one way of watching it and the very numbers of its images; it is written whole or
not at all, and read only if its checksum is right.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgeopt.errors import Note, NoteKind
from edgeopt.graph.tensors import Tensors
from edgeopt.steps.quantize.calibration.observation import Part
from edgeopt.system.disk.files import open_beside
from edgeopt.system.machine.environment import package_versions
from edgeopt.system.text import plural

_VERSION = 4
"""Version of what an entry holds and of how it is computed."""
_SUM_BYTES = 32


class Cache:
    """The entries of one calibration in a folder."""

    def __init__(self, folder: Path, description: Mapping[str, Any]) -> None:
        """Take up a folder, which need not exist.

        Args:
            folder: Where entries lie; those of other models may lie there too.
            description: Plain values that decide what an image gives: the model, the tensors, the seed.
        """
        engines = {
            name: package_version
            for name, package_version in package_versions().items()
            if name.startswith(("onnxruntime", "numpy"))
        }
        text = json.dumps({"version": _VERSION, "engines": engines, **description}, sort_keys=True)
        self._folder, self._start = folder, hashlib.blake2b(text.encode(), digest_size=16)
        self._damaged = 0

    def key(self, frames: Sequence[Tensors], first: int) -> str:
        """Return the name under which what `frames` show is kept; `first` is the number of the first."""
        digest = self._start.copy()
        digest.update(str(first).encode())
        for frame in frames:
            for name, value in frame.items():
                digest.update(f"{name} {value.dtype} {value.shape}".encode())
                digest.update(np.ascontiguousarray(value).data)
        return digest.hexdigest()

    def read(self, key: str) -> Part | None:
        """Return an entry, or None if it is absent or damaged."""
        try:
            data = self._path(key).read_bytes()
        except OSError:
            return None
        try:
            if hashlib.sha256(data[:-_SUM_BYTES]).digest() != data[-_SUM_BYTES:]:
                raise ValueError("the checksum is wrong")
            with np.load(io.BytesIO(data[:-_SUM_BYTES]), allow_pickle=False) as arrays:
                return Part.from_arrays({name: arrays[name] for name in arrays.files})
        except (ValueError, KeyError, EOFError, zipfile.BadZipFile):
            self._damaged += 1
            return None

    def write(self, key: str, part: Part) -> None:
        """Keep an entry.

        Raises:
            InvalidFileError: If the folder is not writable or the disk is full.
        """
        with open_beside(self._path(key)) as file:
            np.savez(file, **part.to_arrays())  # type: ignore[arg-type]  # its stub takes the names for its own flag
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").digest()
            file.write(digest)

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.calibration"

    @property
    def notes(self) -> tuple[Note, ...]:
        """A note where entries were damaged."""
        if not self._damaged:
            return ()
        detail = f"{plural(self._damaged, 'damaged calibration chunk')} in {self._folder} computed again"
        return (Note(NoteKind.INFO, detail),)
