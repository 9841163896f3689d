"""How often the labels of one folder were looked at: each further look has a level of its own."""

from __future__ import annotations

import json

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.measurement.accuracy.judgement import LEVEL, LOOKS
from edgeopt.pipeline.run import Run
from edgeopt.system.text import plural
from edgeopt.system.toml import read_json

FILE = "candidates/looks.json"


def count_look(run: Run, labels: str, *, are_added: bool = False) -> float:
    """Count a look at labels, and return the level at which it proves; after `LOOKS` of them none proves.

    The same labels once more are no new look. A first look at whole labels is wrong in at most `LEVEL`; each look at
    labels that a person adds, and each later one, in a third of it.

    Args:
        run: Of the folder.
        labels: What tells these labels from others, such as a hash.
        are_added: Whether a person adds labels, so that more looks are to come.
    """
    looks = _read(run)
    if labels not in looks:
        looks.append(labels)
        run.workspace.write(FILE, json.dumps(looks))
    number = looks.index(labels) + 1
    if number == 1 and not are_added:
        return LEVEL
    told = f"look {number} of {LOOKS} at labels that are added: each proves at {LEVEL / LOOKS:.1%}"
    if number > LOOKS:
        told = f"labels were looked at {plural(number, 'time')}: nothing more is proven by adding some"
        run.labels_prove = False
    run.context.notes.append(Note(NoteKind.INFO, told))
    return LEVEL / LOOKS


def _read(run: Run) -> list[str]:
    try:
        known = read_json(run.workspace.path(FILE), remedy="")
    except EdgeoptError:
        return []
    return [str(one) for one in known] if isinstance(known, list) else []
