"""How often the labels of one folder were looked at: each further look has a level of its own."""

from __future__ import annotations

import json

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.measurement.accuracy.bootstrap import Scored
from edgeopt.measurement.accuracy.judgement import LEVEL, LOOKS
from edgeopt.pipeline.run import Run
from edgeopt.system.text import plural
from edgeopt.system.toml import read_json

FILE = "candidates/looks.json"


def count_look(run: Run, scored: Scored | None) -> float:
    """Count a look at labels, and return the level at which it proves; after `LOOKS` of them none proves.

    The same labels once more are no new look. A first look is wrong in at most `LEVEL`, each later one, at labels that
    were added, in a third of it.

    Args:
        run: Of the folder.
        scored: Of the original on these labels; None without labels.
    """
    if scored is None:
        return LEVEL
    looks = _read(run)
    if scored.pictures_sha256 not in looks:
        looks.append(scored.pictures_sha256)
        run.workspace.write(FILE, json.dumps(looks))
    number = looks.index(scored.pictures_sha256) + 1
    if number == 1:
        return LEVEL
    told = f"look {number} of {LOOKS} at labels that were added: it proves at {LEVEL / LOOKS:.1%}"
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
