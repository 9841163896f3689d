"""How often the labels of one folder were looked at: all looks together are wrong in `LEVEL` of all cases at most."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.measurement.accuracy.judgement import LEVELS_IN_STAGES, LEVELS_OF_LOOKS, NoProof
from edgeopt.optimization.run import Look, Run
from edgeopt.system.text import plural
from edgeopt.system.toml import read_json

FILE = "candidates/looks.json"


@dataclass(frozen=True, slots=True)
class _Looked:
    """The looks at labels of one original."""

    model: str
    """Fingerprint of the original: labels of another one are another question."""
    in_stages: bool
    """Whether a person added labels from the beginning, so that no look has more than its third."""
    labels: tuple[str, ...] = ()
    """Digest of the labels of each look."""


def count_look(run: Run, labels: str, *, in_stages: bool = False) -> None:
    """Count a look at labels: `run.look` is then the level at which it proves; after the last look none proves.

    The same labels once more are no new look.

    Args:
        run: Of the folder.
        labels: What tells these labels from others, such as a hash.
        in_stages: Whether a person adds labels from the beginning. The first look decides for all that follow.
    """
    looked = _read(run, in_stages=in_stages)
    if labels not in looked.labels:
        looked = _Looked(looked.model, looked.in_stages, (*looked.labels, labels))
        run.workspace.write(FILE, json.dumps(asdict(looked)))
    levels = LEVELS_IN_STAGES if looked.in_stages else LEVELS_OF_LOOKS
    number = looked.labels.index(labels) + 1
    if number > len(levels):
        run.no_proof = run.no_proof or NoProof.OVERUSED
        text = f"labels were looked at {plural(number, 'time')}: nothing more is proven by adding some"
        run.context.notes.append(Note(NoteKind.INFO, text))
        return
    run.look = Look(levels[number - 1], levels[min(number, len(levels) - 1)])
    if number > 1 or looked.in_stages:
        last = ", the last one" if number == len(levels) else ""
        text = f"look {number} of {len(levels)} at labels that are added{last}: it proves at {run.look.level:.1%}"
        run.context.notes.append(Note(NoteKind.INFO, text))


def _read(run: Run, *, in_stages: bool) -> _Looked:
    """Return the looks so far; none where the folder knows of none, or of another original."""
    fingerprint = run.context.original.fingerprint
    try:
        known = read_json(run.workspace.path(FILE), remedy="")
        looked = _Looked(str(known["model"]), bool(known["in_stages"]), tuple(map(str, known["labels"])))
    except (EdgeoptError, KeyError, TypeError):
        return _Looked(fingerprint, in_stages)
    return looked if looked.model == fingerprint and looked.labels else _Looked(fingerprint, in_stages)
