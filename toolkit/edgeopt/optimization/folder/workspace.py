"""The output folder of `optimize`: candidates on disk at once, and found again.

One run at a time writes there. What is found is of a run with the same description, and hashed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from edgeopt.errors import InvalidFileError, Note, NoteKind
from edgeopt.graph.files.outside import sha256_of
from edgeopt.graph.model import weights_beside
from edgeopt.optimization.candidate import Candidate, candidate_from_json
from edgeopt.optimization.folder.handover import Handover
from edgeopt.system.disk.files import write_beside
from edgeopt.system.disk.locks import lock_folder
from edgeopt.system.toml import read_json

MARK = "run.json"
_STEPS = "candidates/steps.json"
_TOOL = "edgeopt optimize"
_SCHEMA = 3
_OTHER_FOLDER = "choose an empty folder with -o"


def holds_run(folder: Path, mark: str) -> bool:
    """Return whether an output folder holds an earlier run; False: it is new, or empty.

    Args:
        folder: Where everything goes.
        mark: File that a run of such a kind leaves there.

    Raises:
        InvalidFileError: If it holds something else, or cannot be looked at.
    """
    try:
        if folder.is_file():
            raise InvalidFileError(f"{folder} is a file", remedy="choose a folder with -o")
        present = (
            sorted(path.name for path in folder.iterdir() if not path.name.startswith(".")) if folder.exists() else []
        )
    except OSError as error:
        raise InvalidFileError(
            f"{folder} cannot be read: {error.strerror}", remedy="choose another folder with -o"
        ) from error
    if present and mark not in present:
        raise InvalidFileError(f"{folder} holds something else: {', '.join(present[:3])}", remedy=_OTHER_FOLDER)
    return bool(present)


def lock_run(folder: Path) -> IO[bytes]:
    """Lock the output folder of a run: two runs at once would mix their forms.

    Raises:
        InvalidFileError: If it cannot be written.
        EdgeoptError: If another run writes there.
    """
    return lock_folder(folder, held="another run writes into", remedy="choose another folder with -o")


class Workspace:
    """One output folder of one run: the same model, recipe, target, plan and data. Locked until its `with` ends."""

    def __init__(self, folder: Path, key: str, lock: IO[bytes], before: Mapping[str, Any]) -> None:
        """Hold a folder that is locked.

        Args:
            folder: Where everything goes.
            key: Of the run; only what has the same is taken up.
            lock: Released when the `with` ends.
            before: What the mark of an earlier run there says; nothing where there was none.
        """
        self.folder, self.key, self.before = folder, key, before
        self.handover: Handover | None = None
        """Account of the machine that made the candidates; None: this machine makes them."""
        self.notes = list[Note]()
        """Notes for the user on what lay in the folder."""
        self.described: Mapping[str, Any] = {}
        """Description of the run."""
        self._lock, self._hashes = lock, dict[str, str]()

    @classmethod
    def open(cls, folder: Path, description: Mapping[str, Any], *, resume: bool = False) -> Workspace:
        """Create or take up an output folder, and lock it.

        Args:
            folder: Where everything goes.
            description: What makes the run this run; only what has the same is found again.
            resume: Whether the steps that an earlier run finished stay finished.

        Raises:
            InvalidFileError: If the folder holds something else, or cannot be written.
            EdgeoptError: If another run writes there.
        """
        key = hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()[:16]
        before = _require_ours(folder)
        lock = lock_run(folder)
        if not resume:
            (folder / _STEPS).unlink(missing_ok=True)
        mark = {"tool": _TOOL, "schema": _SCHEMA, "key": key, "run": description}
        write_beside(folder / MARK, json.dumps(mark, indent=2) + "\n")
        workspace = cls(folder, key, lock, before)
        workspace.described = description
        return workspace

    def __enter__(self) -> Workspace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.close()

    def store(self, candidate: Candidate, model: bytes | None) -> None:
        """Write a candidate: first its model (None: it is there), then its figures, with the hash of its files."""
        if model is not None:
            write_beside(self.folder / candidate.file, model)
            self._hashes[candidate.file] = hashlib.sha256(model).hexdigest()
        files = (*_files(candidate), *self._weights(candidate))
        hashes = {file: self._hashes.get(file) or self._hash(file) for file in files}
        self._hashes |= hashes
        values = {"key": self.key, "files": hashes, "candidate": dataclasses.asdict(candidate)}
        text = json.dumps(values, indent=2, allow_nan=False)
        write_beside((self.folder / candidate.file).with_name("candidate.json"), text + "\n")

    def find(self, file: str) -> Candidate | None:
        """Return the finished candidate of this very run at that path, or None: absent, torn or changed since."""
        path = (self.folder / file).with_name("candidate.json")
        try:
            values = read_json(path, remedy="")
            if values["key"] != self.key:
                return None
            candidate, hashes = candidate_from_json(values["candidate"]), dict(values["files"])
            changed = [
                value for value in {**dict.fromkeys(_files(candidate)), **hashes} if self._hash(value) != hashes[value]
            ]
        except (InvalidFileError, OSError, ValueError, KeyError, TypeError, AttributeError):
            return None  # absent, torn or of another version: the candidate is made again
        if changed:
            self.notes.append(Note(NoteKind.WARNING, f"{changed[0]} was changed since it was written: made again"))
            return None
        self._hashes |= hashes
        return candidate

    def finish(self, step: str, files: Sequence[str]) -> None:
        """Write that a step is finished, and which candidates it made: one that was interrupted is no such."""
        write_beside(self.folder / _STEPS, json.dumps({"key": self.key, "steps": {**self._steps(), step: [*files]}}))

    def finished(self, step: str) -> tuple[str, ...] | None:
        """Return the files of the candidates of a finished step of this very run; None where it is not finished."""
        files = self._steps().get(step)
        return None if files is None else tuple(files)

    def _steps(self) -> dict[str, list[str]]:
        try:
            values = read_json(self.folder / _STEPS, remedy="")
            return dict(values["steps"]) if values["key"] == self.key else {}
        except (InvalidFileError, KeyError, TypeError, ValueError):
            return {}

    def path(self, file: str) -> Path:
        """Return the absolute place of a file of the run."""
        return self.folder / file

    def read(self, file: str) -> bytes:
        """Return a file of a candidate.

        Raises:
            InvalidFileError: If it is not what was written.
        """
        try:
            data = (self.folder / file).read_bytes()
        except OSError as error:
            raise InvalidFileError(f"{self.folder / file} cannot be read: {error.strerror}", remedy=_AGAIN) from error
        if hashlib.sha256(data).hexdigest() != self._hashes.get(file):
            raise InvalidFileError(f"{self.folder / file} was changed since it was written", remedy=_AGAIN)
        return data

    def write(self, file: str, data: bytes | str) -> Path:
        """Write a file of the run, whole or not at all."""
        write_beside(self.folder / file, data)
        return self.folder / file

    def _weights(self, candidate: Candidate) -> tuple[str, ...]:
        """Return the file in which a candidate's weights lie, where they lie outside."""
        file = weights_beside(Path(candidate.file)).as_posix()
        return (file,) if (self.folder / file).is_file() else ()

    def _hash(self, file: str) -> str:
        return sha256_of(self.folder / file)


@dataclass(frozen=True, slots=True)
class FilesBeside:
    """Files beside the one that was asked for, named after it."""

    file: Path

    def path(self, name: str) -> Path:
        """Return `.a.calibration` for `.calibration`, `a.best-so-far.onnx` for `candidates/x/best-so-far.onnx`."""
        last = Path(name).name
        return self.file.with_name(f"{'.' if last.startswith('.') else ''}{self.file.stem}.{last.removeprefix('.')}")

    def write(self, name: str, data: str | bytes) -> None:
        """Write a file, whole or not at all."""
        write_beside(self.path(name), data)


_AGAIN = "run it again with --resume, which makes that candidate again"


def _files(candidate: Candidate) -> tuple[str, ...]:
    return (candidate.file, candidate.compiled) if candidate.compiled else (candidate.file,)


def _require_ours(folder: Path) -> Mapping[str, Any]:
    """Return what the mark of an earlier run says; nothing where the folder is new or empty.

    Raises:
        InvalidFileError: If it holds something else, or cannot be looked at.
    """
    if not holds_run(folder, MARK):
        return {}
    mark = read_json(folder / MARK, remedy=_OTHER_FOLDER)
    if not isinstance(mark, dict) or mark.get("tool") != _TOOL or mark.get("schema") != _SCHEMA:
        raise InvalidFileError(f"{folder / MARK} is not of a run of this edgeopt", remedy=_OTHER_FOLDER)
    return mark
