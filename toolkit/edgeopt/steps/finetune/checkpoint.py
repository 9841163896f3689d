"""Where a training stands, on disk: enough to go on to the same bytes."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.system.disk.files import write_beside

_FACTS = "facts"
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where a training stands after a step."""

    key: str
    """Hash of what is trained, on what and how; another training takes nothing of it up."""
    facts: Mapping[str, Any]
    """Plain values."""
    arrays: Arrays = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write it whole or not at all.

        Raises:
            InvalidFileError: If the folder is not writable or the disk is full.
        """
        text = np.frombuffer(json.dumps({"key": self.key, **self.facts}).encode(), np.uint8)
        stream = io.BytesIO()
        everything: dict[str, Any] = {_FACTS: text, **self.arrays}
        np.savez(stream, **everything)
        write_beside(path, stream.getvalue())


def read_checkpoint(path: Path, key: str) -> Checkpoint | None:
    """Return what a training of this key left; None where there is nothing whole of it.

    Args:
        path: Of the file.
        key: See `Checkpoint.key`.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            facts = json.loads(archive[_FACTS].tobytes())
            if facts.pop("key") != key:
                return None
            return Checkpoint(key, facts, {name: archive[name] for name in archive.files if name != _FACTS})
    except (OSError, ValueError, KeyError, AttributeError, EOFError, zipfile.BadZipFile):
        return None
