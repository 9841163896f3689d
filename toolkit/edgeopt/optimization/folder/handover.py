"""Candidates that one machine made and another takes up: the folder goes there, and the same command goes on in it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgeopt.errors import InvalidFileError, Note, NoteKind
from edgeopt.system.disk.files import write_beside
from edgeopt.system.machine.processor import cpu_name
from edgeopt.system.toml import read_json

_FILE = "handover.json"
_OWN = frozenset({"target", "packages", "alternatives"})
"""Parts of a run's description that differ between machines; of the target the name stays."""
_PLACES = ("calib", "eval")
"""Parts of its plan that are places of files, whose contents the description has as well."""


@dataclass(frozen=True, slots=True)
class MadeHere:
    """Candidates on disk, ready for a device elsewhere."""

    model: str
    """The source as the device takes it: as it was named here, or the file or folder that it was exported to."""
    folder: Path
    """Output folder of the run."""


@dataclass(frozen=True, slots=True)
class Handover:
    """Account of the machine that made the candidates, beside them."""

    run: Mapping[str, Any]
    """Description of its run."""
    made_on: str
    """Its processor's name."""
    steps: tuple[str, ...]
    """Steps of its plan; of a model that writes its forms, of a pipeline its stages."""
    notes: tuple[Note, ...]
    """Its notes on the run as a whole."""

    def why_another(self, description: Mapping[str, Any]) -> str:
        """Return by what a run differs from the one whose candidates these are; empty: by nothing."""
        before, now = _shared(self.run), _shared(json.loads(json.dumps(description)))
        return ", ".join(sorted(name for name in {*before, *now} if before.get(name) != now.get(name)))

    @property
    def told(self) -> tuple[Note, ...]:
        """Where the candidates come from, and what that machine had to tell."""
        return (Note(NoteKind.INFO, f"candidates were made on another machine: {self.made_on}"), *self.notes)


def read_handover(folder: Path) -> Handover | None:
    """Return what another machine left in a folder; None where none did, or what it left cannot be read."""
    try:
        values = read_json(folder / _FILE, remedy="")
        notes = [Note(NoteKind(each["kind"]), *_rest(each)) for each in values["notes"]]
        steps = tuple(str(name) for name in values["steps"])
        return Handover(dict(values["run"]), str(values["made_on"]), steps, tuple(notes))
    except (InvalidFileError, KeyError, TypeError, ValueError, AttributeError):
        return None


def handed_over(folder: Path, description: Mapping[str, Any], *, resume: bool) -> Handover | None:
    """Return what another machine left for this very run; None where it left nothing, or the run begins anew.

    Args:
        folder: Output folder of the run.
        description: Of the run, as plain values.
        resume: Whether what an earlier run left there is taken up.
    """
    handover = read_handover(folder) if resume else None
    return None if handover is None or handover.why_another(description) else handover


def _rest(values: Mapping[str, Any]) -> tuple[str, str, tuple[str, ...], str]:
    """Return the fields of a note behind its kind."""
    return values["detail"], values["hint"], tuple(values["names"]), values["more"]


def hand_over(folder: Path, run: Mapping[str, Any], steps: Sequence[str], notes: Sequence[Note]) -> None:
    """Write that all candidates are made, so that another machine takes them up.

    Args:
        folder: Output folder of the run, with all of them.
        run: Description of the run.
        steps: That were planned.
        notes: To tell in its report.
    """
    values = {"made_on": cpu_name(), "steps": [*steps], "notes": [asdict(note) for note in notes], "run": run}
    write_beside(folder / _FILE, json.dumps(values, indent=2) + "\n")


def forget_handover(folder: Path) -> None:
    """Remove what an earlier run left: its candidates are made again."""
    (folder / _FILE).unlink(missing_ok=True)


def _shared(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return what machines share of the description of one run."""
    values = {name: value for name, value in description.items() if name not in _OWN}
    if "plan" in values:
        values["plan"] = {name: value for name, value in dict(values["plan"]).items() if name not in _PLACES}
    return values
