"""How a candidate did on the labels that prove, kept for a resumed run: a simulated device takes seconds a sample."""

from __future__ import annotations

import json
from dataclasses import dataclass

from edgeopt.errors import InvalidFileError
from edgeopt.measurement.accuracy.bootstrap import Scored
from edgeopt.optimization.candidate import Candidate
from edgeopt.optimization.run import Run
from edgeopt.system.machine.processor import cpu_name
from edgeopt.system.toml import read_json


@dataclass(frozen=True, slots=True)
class ScoredAnswers:
    """A candidate's answers to the labelled samples, in figures."""

    scored: Scored
    changed: int | None
    """How many answers are not the original's; None where that was not counted."""
    processor: str
    """The host's: integers of a model may be others on another, where they saturate."""
    share: float = 1.0
    """Share of a look's level at which it is tested: forms that are tried until one keeps its accuracy divide it."""


def stored_scores(run: Run, candidate: Candidate, pictures_sha256: str) -> ScoredAnswers | None:
    """Return what an earlier run found of this model on these labels and this processor; None where it did not.

    Args:
        run: Of the folder.
        candidate: What is asked about; made by this very run, it has nothing on disk that holds.
        pictures_sha256: Of the labels and the pictures' names.
    """
    found = _read(run, candidate)
    holds = found and (found.scored.pictures_sha256, found.processor) == (pictures_sha256, cpu_name())
    return found if holds else None


def share_of_level(run: Run, candidate: Candidate) -> float:
    """Return the share of a look's level at which a candidate is tested; other labels do not change it."""
    found = _read(run, candidate)
    return found.share if found else 1.0


def store_scores(run: Run, candidate: Candidate, found: ScoredAnswers) -> None:
    """Keep how a candidate did, beside its model."""
    key, model = run.workspace.key, candidate.sha256
    values = {"key": key, "model": model, "changed": found.changed, "processor": found.processor}
    run.workspace.write(
        _file(candidate), json.dumps({**values, "share": found.share, "scored": found.scored.to_json()})
    )


def _read(run: Run, candidate: Candidate) -> ScoredAnswers | None:
    """Return what lies beside a candidate's model; None where another run or another model left it."""
    if not candidate.is_resumed:
        return None
    try:
        values = read_json(run.workspace.path(_file(candidate)), remedy="")
        if (values["key"], values["model"]) != (run.workspace.key, candidate.sha256):
            return None
        scored = Scored.from_json(values["scored"])
        return ScoredAnswers(scored, values["changed"], values["processor"], float(values["share"]))
    except (InvalidFileError, KeyError, TypeError, ValueError):
        return None


def _file(candidate: Candidate) -> str:
    return f"candidates/{candidate.name}/scored.json"
