"""The output folder of `optimize`: candidates on disk at once, and taken up again. It measures nothing."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from edgeopt.candidate import Candidate, candidate_from_json
from edgeopt.errors import InvalidFileError
from edgeopt.files import write_beside

MARK = "run.json"
_OURS = frozenset({MARK, "candidates", "bundle", "report.json", "report.md", "boxes.png"})


class Workspace:
    """One output folder, belonging to one run: the same model, recipe, target and plan."""

    def __init__(self, folder: Path, key: str) -> None:
        self.folder, self.key = folder, key

    @classmethod
    def open(cls, folder: Path, description: dict[str, Any]) -> Workspace:
        """Create or take up an output folder.

        Args:
            folder: Where everything goes.
            description: What makes the run this run; its hash decides what `--resume` may take up.

        Raises:
            InvalidFileError: If the folder holds something else, or cannot be written.
        """
        key = hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()[:16]
        if folder.is_file():
            raise InvalidFileError(f"{folder} is a file", remedy="choose a folder with -o")
        try:
            present = {one.name for one in folder.iterdir()} if folder.exists() else set()
        except OSError as error:
            raise InvalidFileError(
                f"{folder} cannot be read: {error.strerror}", remedy="choose another folder with -o"
            ) from error
        foreign = sorted(name for name in present - _OURS if not name.startswith("."))
        if foreign and MARK not in present:
            raise InvalidFileError(
                f"{folder} holds something else: {', '.join(foreign[:3])}", remedy="choose an empty folder with -o"
            )
        write_beside(folder / MARK, json.dumps({"key": key, **description}, indent=2) + "\n")
        return cls(folder, key)

    def store(self, candidate: Candidate, model: bytes | None) -> None:
        """Write a candidate: first its model (None: it is there), then its figures."""
        if model is not None:
            write_beside(self.folder / candidate.file, model)
        values = {"key": self.key, "candidate": dataclasses.asdict(candidate)}
        text = json.dumps(values, indent=2, allow_nan=False)
        write_beside((self.folder / candidate.file).with_name("candidate.json"), text + "\n")

    def find(self, file: str) -> Candidate | None:
        """Return the finished candidate of this very run at that path, or None."""
        path = (self.folder / file).with_name("candidate.json")
        try:
            values = json.loads(path.read_text("utf-8"))
            if values["key"] != self.key or not (self.folder / file).is_file():
                return None
            return candidate_from_json(values["candidate"])
        except (OSError, ValueError, KeyError, TypeError):
            return None  # absent, torn or of another version: the candidate is made again

    def path(self, file: str) -> Path:
        """Return the absolute place of a file of the run."""
        return self.folder / file

    def write(self, file: str, data: bytes | str) -> Path:
        """Write a file of the run, whole or not at all."""
        write_beside(self.folder / file, data)
        return self.folder / file
