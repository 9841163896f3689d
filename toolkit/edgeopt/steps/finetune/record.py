"""The record of a training beside its model: for reports, and for a replay, which takes the weights from there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeopt.errors import EdgeoptError, InvalidFileError
from edgeopt.graph.model import Model, load_model
from edgeopt.system.toml import read_json

if TYPE_CHECKING:
    from edgeopt.steps.finetune.distil import Distilled

RECORD = "training.json"
_AGAIN = "leave --replay out: training gives the same bytes on the same machine with the same packages only"


@dataclass(frozen=True, slots=True)
class Record:
    """One training."""

    student: str
    """Fingerprint of the model that was given."""
    teacher: str
    made: str
    note: str
    """The outcome, in a sentence."""
    steps: tuple[int, ...]
    seconds: tuple[float, ...]
    losses: tuple[float, ...]
    """Losses on held-out pictures, after each of the steps."""

    @classmethod
    def of(cls, student: Model, teacher: Model, made: Distilled) -> Record:
        """Return what a training did."""
        return cls(
            student.fingerprint,
            teacher.fingerprint,
            made.model.fingerprint,
            made.note,
            tuple(check.step for check in made.curve),
            tuple(check.seconds for check in made.curve),
            tuple(check.loss for check in made.curve),
        )

    def to_json(self) -> str:
        """Return it as text; `read_record` reads it back."""
        return json.dumps(asdict(self), indent=2) + "\n"


def read_record(path: Path) -> Record:
    """Return what `Record.to_json` wrote.

    Raises:
        InvalidFileError: If the file is absent or damaged.
    """
    values: Mapping[str, Any] = read_json(path, remedy=_AGAIN)
    try:
        lists: dict[str, Any] = {name: tuple(values[name]) for name in ("steps", "seconds", "losses")}
        words: dict[str, Any] = {name: str(values[name]) for name in ("student", "teacher", "made", "note")}
    except (KeyError, TypeError) as error:
        raise InvalidFileError(f"{path} is no record of a training", remedy=_AGAIN) from error
    return Record(**words, **lists)


def trained_before(folder: Path, student: Model, source: Path) -> tuple[Model, Record]:
    """Return the model that an earlier run trained: its weights are taken as they are stored, nothing is trained.

    Args:
        folder: Of the candidate, in the earlier run's output.
        student: What this run would train.
        source: The earlier run, for errors.

    Raises:
        EdgeoptError: If that run trained another model, or its file was changed since.
    """
    record = read_record(folder / RECORD)
    if record.student != student.fingerprint:
        raise EdgeoptError(f"{source} trained another model than the one made here", remedy=_AGAIN)
    model = load_model(folder / "model.onnx", student.name)
    if model.fingerprint != record.made:
        raise EdgeoptError(f"{folder / 'model.onnx'} was changed since it was trained", remedy=_AGAIN)
    return model, record
