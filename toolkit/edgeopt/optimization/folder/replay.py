"""An earlier run's decisions, read from its output folder: which INT8 models, and which candidate.

Every INT8 candidate has its `decisions.json` beside its model; the report names the choice. What was pruned or trained
is taken as it lies there, by its hash.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from edgeopt.errors import EdgeoptError, InvalidFileError, Note, NoteKind
from edgeopt.graph.model import Model, load_model
from edgeopt.graph.outcome import Outcome
from edgeopt.optimization.candidate import Candidate
from edgeopt.optimization.choice.selection import Chosen
from edgeopt.optimization.plan import calibrated_steps
from edgeopt.optimization.report.result import RESULT, read_report
from edgeopt.optimization.result import ModelReport
from edgeopt.recipes.inputs.frames import Frames, calibration_fingerprint
from edgeopt.runtime.devices.availability import is_compiled
from edgeopt.steps.quantize.search.decisions_file import (
    DECISIONS,
    StoredDecisions,
    read_decisions,
)
from edgeopt.system.declared.target import Target

_REMEDY = "name the output folder of edgeopt optimize, its report.json, or a decisions.json"

_SEARCH = "quantize"
"""The candidate that the search for the target's own engine makes first."""


@dataclass(frozen=True, slots=True)
class Replay:
    """The decisions of one earlier run."""

    source: Path
    model: str
    """Fingerprint of the model as it came."""
    target: str
    """Empty where a file of decisions alone was named."""
    threads: int
    chosen: str
    decided: Mapping[str, StoredDecisions]
    """Decisions by candidate."""
    candidates: Mapping[str, Candidate] = field(default_factory=dict)
    """Candidates by name; none where a file of decisions alone was named."""
    embedded: tuple[str, ...] = ()
    """Parts of the recipe that its bundle held."""
    cores: str = ""
    """Those that engines were held to; see `Plan`."""
    is_reduced: bool = False
    """Whether its bundle has JPEG files decoded at a part of their size."""

    def of(self, name: str) -> Sequence[StoredDecisions]:
        """Return what decided the candidates of one search: `quantize`, `quantize-2` and so on."""
        result = [self.decided[name]] if name in self.decided else []
        while f"{name}-{len(result) + 1}" in self.decided and result:
            result.append(self.decided[f"{name}-{len(result) + 1}"])
        return result

    def outcomes(self, step: str, model: Model) -> Sequence[Outcome]:
        """Return the models of a step that costs accuracy, as they lie there: measured or trained, not made again.

        Args:
            step: Its name.
            model: What this run gives to the step.

        Raises:
            EdgeoptError: If it was given another model there.
            InvalidFileError: If a model is gone or was changed.
        """
        mine, outcomes = (
            [candidate for candidate in self.candidates.values() if candidate.steps[-1:] == (step,)],
            list[Outcome](),
        )
        for other in mine:
            if self.candidates[other.parent].sha256 != model.fingerprint:
                raise EdgeoptError(
                    f"the model before {step} is not that of {self.source}",
                    remedy="give the options of that run, and install its packages",
                )
            made = load_model(self.source / other.file, other.name)
            if made.fingerprint != other.sha256:
                raise InvalidFileError(f"{self.source / other.file} was changed since it was written", remedy=_REMEDY)
            note = Note(NoteKind.INFO, f"as {self.source} has it")
            outcomes.append(Outcome(made, other.changes, (note, *other.notes), other.options))
        return outcomes

    def files_beside(self, candidate: str) -> Mapping[str, str]:
        """Return what else a step wrote about a candidate there, as text by the file's name."""
        folder = (self.source / self.candidates[candidate].file).parent
        own = {"candidate.json", DECISIONS}
        return {file.name: file.read_text("utf-8") for file in sorted(folder.glob("*.json")) if file.name not in own}

    @property
    def fingerprint(self) -> str:
        """SHA-256 of what it decides."""
        made = {name: stored_decisions.made for name, stored_decisions in self.decided.items()}
        made |= {name: candidate.sha256 for name, candidate in self.candidates.items() if name not in made}
        return hashlib.sha256(json.dumps([self.chosen, made], sort_keys=True).encode()).hexdigest()

    @property
    def form(self) -> StoredDecisions | None:
        """The decisions of the chosen INT8 form, or else the first of the target's own engine, if any."""
        own = self.of(_SEARCH)
        chosen = self.decided.get(self.chosen)
        return chosen if any(chosen is stored_decisions for stored_decisions in own) else next(iter(own), None)

    def require_same(self, model: Model, target: Target) -> None:
        """Raise unless this run is about the same model and target, and nothing but an engine judges its INT8 forms.

        Raises:
            EdgeoptError: If it is not.
        """
        if is_compiled(target):
            raise EdgeoptError(
                f"{target.name} is compiled for: its compiler decides, and no report can be replayed",
                remedy="leave --replay out",
            )
        if model.fingerprint != self.model:
            raise EdgeoptError(f"{self.source} is the report of another model", remedy="name the report of this one")
        if self.target and target.name != self.target:
            raise EdgeoptError(
                f"{self.source} is the report of target {self.target}, not of {target.name}",
                remedy=f"pass --target {self.target}",
            )

    def require_calibration(self, frames: Frames) -> None:
        """Raise unless the frames that calibrate are those of the report.

        Raises:
            EdgeoptError: If they are not.
        """
        kept = {stored_decisions.calibration for stored_decisions in self.decided.values()}
        if kept and kept != {calibration_fingerprint(frames)}:
            raise EdgeoptError(
                f"{self.source} is the report of another calibration set than {frames.source}",
                remedy="pass the pictures of that run with --calib",
            )

    def choose_again(self, candidates: Sequence[Candidate], here: Chosen) -> Chosen:
        """Return the report's choice.

        Args:
            candidates: Of this run.
            here: What would be chosen by what was measured here.

        Raises:
            EdgeoptError: If this run could not make it.
        """
        if self.chosen not in {candidate.name for candidate in candidates}:
            raise EdgeoptError(
                f"{self.source} chose {self.chosen}, which could not be made here",
                remedy="give the same options, and install the engines of that run",
            )
        if self.chosen == here.name:
            return here
        return Chosen(self.chosen, f"{self.chosen}: as {self.source} chose; by what is known here, {here.reason}")


def read_replay(path: Path) -> Replay:
    """Read what an earlier run decided.

    Args:
        path: Its output folder, the report in it, or the decisions beside one INT8 model.

    Raises:
        InvalidFileError: If it is none, or its decisions are missing or damaged.
    """
    if path.name.endswith(DECISIONS):
        alone = read_decisions(path)
        return Replay(path, alone.original, "", 0, _SEARCH, {_SEARCH: alone})
    folder = path.parent if path.name == RESULT else path
    report = read_report(folder, ModelReport)
    decided = {
        candidate.name: read_decisions((folder / candidate.file).with_name(DECISIONS))
        for candidate in report.candidates
        if (folder / candidate.file).with_name(DECISIONS).is_file()
    }
    lacking = [
        candidate.name
        for candidate in report.candidates
        if candidate.precision == "w8a8" and calibrated_steps() & {*candidate.steps}
    ]
    if lacking and not decided:
        raise InvalidFileError(f"{folder} holds no {DECISIONS} of {lacking[0]}", remedy=_REMEDY)
    candidates = {candidate.name: candidate for candidate in report.candidates}
    embedded, is_reduced = report.inside.parts if report.inside else (), report.reduced is not None
    same = (report.model_sha256, report.target, report.threads)
    return Replay(folder, *same, report.chosen, decided, candidates, embedded, report.cores, is_reduced)
