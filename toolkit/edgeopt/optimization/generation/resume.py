"""The remains of an interrupted `optimize` of a language model, and what `--resume` takes up of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgeopt.errors import InvalidFileError
from edgeopt.graph.files.outside import sha256_of
from edgeopt.graph.model import Model
from edgeopt.optimization.folder.handover import Handover, forget_handover, handed_over
from edgeopt.optimization.generation.result import LANGUAGE_RUN
from edgeopt.system.declared.target import Target
from edgeopt.system.disk.files import write_beside
from edgeopt.system.machine.environment import package_versions

MODEL = "model.onnx"
_DONE = "done.json"
_NOT_WHOLE = "the machine that made the forms ran out of time, or it was changed on the way"


@dataclass(frozen=True, slots=True)
class Left:
    """The forms of one run in its output folder, each in a folder of its own."""

    folder: Path
    run: str
    """Hash of models, target, text and packages: a form is taken up only by a run with the same hash."""
    resumes: bool
    """Whether finished forms are taken up."""
    graphs: tuple[str, ...] = (MODEL,)
    """Files of a form."""
    described: Mapping[str, Any] = field(default_factory=dict)
    """Description of the run, which machines compare."""
    handover: Handover | None = None
    """Account of another machine that made the forms; None: this machine makes them."""

    @property
    def is_complete(self) -> bool:
        """Whether another command made all forms already, and they are whole."""
        return self.handover is not None and all(map(self.is_finished, self.handover.steps))

    def why_not_here(self, form: str, why_none: str) -> str:
        """Return why there is no form, where another machine made them.

        Args:
            form: That is not finished.
            why_none: Why that machine made none, where it left the form out.
        """
        assert self.handover is not None
        return _NOT_WHOLE if form in self.handover.steps else why_none

    def place(self, form: str) -> Path:
        """Return the folder of a form."""
        return self.folder / "candidates" / form

    def is_finished(self, form: str) -> bool:
        """Return whether a form was made by such a run, and is whole."""
        values, files = _read(self.place(form) / _DONE), self._graphs(form)
        is_of_run = self.resumes and values.get("run") == self.run
        return is_of_run and all(file.is_file() for file in files) and values.get("sha256") == _hash(files)

    def finish(self, form: str) -> None:
        """Mark a form as made."""
        values = {"run": self.run, "sha256": _hash(self._graphs(form))}
        write_beside(self.place(form) / _DONE, json.dumps(values) + "\n")

    def _graphs(self, form: str) -> list[Path]:
        return [self.place(form) / name for name in self.graphs]


def mark_folder(
    folder: Path,
    name: str,
    models: Sequence[Model],
    target: Target,
    calibration: Sequence[Sequence[int]],
    *,
    resumes: bool,
    graphs: tuple[str, ...] = (MODEL,),
) -> Left:
    """Mark an output folder as that of a run, and return what is left there of an earlier one.

    Args:
        folder: That is written.
        name: Of the model.
        models: The original, a model or its parts.
        target: Of the run.
        calibration: Windows of the text that forms are fitted to.
        resumes: Whether finished forms are taken up.
        graphs: Files of a form.

    Raises:
        InvalidFileError: If it is to be resumed and holds another run.
    """
    mark = folder / LANGUAGE_RUN
    described = {
        "models": [model.fingerprint for model in models],
        "target": repr(target),
        "profile": target.name,
        "calibration": _hash_of([[*window] for window in calibration]),
        "packages": package_versions(),
    }
    handover = handed_over(folder, described, resume=resumes)
    described = dict(handover.run) if handover else described
    run = _hash_of(described)
    if resumes and mark.is_file() and _read(mark).get("run") != run:
        raise InvalidFileError(
            f"{folder} holds a run of another model, target, text or software",
            remedy="leave --resume out, or name its folder",
        )
    if handover is None:
        forget_handover(folder)
    write_beside(mark, json.dumps({"tool": "edgeopt optimize", "language model": name, "run": run}) + "\n")
    return Left(folder, run, resumes, graphs, described, handover)


def _hash_of(values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _hash(files: Sequence[Path]) -> str:
    """Return the hashes of models and of the files with their weights."""
    return " ".join(sha256_of(path) for file in files for path in sorted(file.parent.glob(f"{file.name}*")))


def _read(file: Path) -> Mapping[str, Any]:
    try:
        values = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}
