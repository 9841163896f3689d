"""The runs that `--resume` takes up: which counts as the same one, and what it left on disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgeopt.errors import Note, NoteKind
from edgeopt.graph.files.outside import sha256_of
from edgeopt.graph.model import load_model
from edgeopt.graph.outcome import Outcome
from edgeopt.measurement.accuracy.evaluate import LabelledFrames
from edgeopt.measurement.opening.given import OpenedModel
from edgeopt.optimization.candidate import Candidate
from edgeopt.optimization.candidates.engines import Engines
from edgeopt.optimization.folder.handover import forget_handover, handed_over
from edgeopt.optimization.folder.replay import Replay
from edgeopt.optimization.folder.workspace import Workspace
from edgeopt.optimization.plan import FINETUNE, SYNTHETIC, Plan
from edgeopt.optimization.run import Run, model_file
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.recipes.inputs.input_shapes import fixed_shapes
from edgeopt.steps._context import numbered
from edgeopt.system.machine.environment import package_versions
from edgeopt.system.text import plural


def describe_run(
    given: OpenedModel,
    plan: Plan,
    engines: Engines,
    frames: Frames,
    labelled: LabelledFrames | None,
    replay: Replay | None,
) -> Mapping[str, Any]:
    """Return what makes a run this run, as plain values: one that is described alike takes up what it left.

    Args:
        given: Model, target and recipe.
        plan: What will be done.
        engines: Those that run candidates.
        frames: That calibrate.
        labelled: None without labels.
        replay: Whose decisions hold.
    """
    calibrates = not plan.synthetic and (plan.calib or labelled)
    tokenizer = given.recipe.path_of(given.recipe.tokenizer.file)
    return {
        "model": given.model.fingerprint,
        "recipe": repr(replace(given.recipe, folder=Path())),
        "target": repr(given.target),
        "profile": given.target.name,
        "shapes": {name: list(shape) for name, shape in fixed_shapes(given.recipe, given.model.inputs).items()},
        "plan": _plan_values(plan),
        "calibration": fingerprint_files(frames.paths) if calibrates else "",
        "labels": _labels_fingerprints(labelled) if labelled else [],
        "packages": package_versions(),
        "alternatives": [repr(replace(other.target, cores="")) for other in engines.others],
        **({"replay": replay.fingerprint} if replay else {}),
        **({"tokenizer": sha256_of(tokenizer)} if tokenizer else {}),
    }


def _plan_values(plan: Plan) -> Mapping[str, object]:
    return {
        "steps": [*plan.steps],
        "calib": SYNTHETIC if plan.synthetic else str(plan.calib.resolve()) if plan.calib else None,
        "eval": str(plan.eval.resolve()) if plan.eval else None,
        "max_drop": plan.max_drop,
        "prune": str(plan.pruning),
        "keep_layers": sorted(plan.pruning.keep_layers),
        **({"seed": plan.seed} if plan.seed else {}),
        **({"finetune_s": plan.training_s} if FINETUNE in plan.steps else {}),
        "threads": plan.threads_wanted,  # measured ones may differ when a run is resumed
    }


def _labels_fingerprints(labelled: LabelledFrames) -> list[str]:
    """Return the hash of the labels and that of their pictures."""
    return [fingerprint_files(labelled.labels.paths), fingerprint_files(labelled.frames.paths)]


def fingerprint_files(files: Sequence[Path]) -> str:
    """Return the hash of files by name and content, wherever they lie."""
    parts = [*(file.name for file in files), *map(sha256_of, files)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def open_workspace(folder: Path, description: Mapping[str, Any], *, resume: bool) -> Workspace:
    """Open the output folder of a run; its notes say why nothing there is taken up.

    Args:
        folder: Where everything goes.
        description: Of `describe_run`.
        resume: Whether what an earlier run left there is taken up.

    Raises:
        InvalidFileError: If the folder holds something else, or cannot be written.
        EdgeoptError: If another run writes there.
    """
    if handover := handed_over(folder, description, resume=resume):
        workspace = Workspace.open(folder, handover.run, resume=True)
        workspace.handover = handover
        return workspace
    workspace = Workspace.open(folder, description, resume=resume)
    if resume:
        workspace.notes += _why_not_taken_up(workspace, description)
    forget_handover(workspace.folder)
    return workspace


def _why_not_taken_up(workspace: Workspace, description: Mapping[str, Any]) -> Sequence[Note]:
    before = workspace.before
    if not before:
        return (Note(NoteKind.INFO, "nothing to take up: no run was begun in this folder"),)
    if before.get("key") == workspace.key:
        return ()
    known = before.get("run")
    known = known if isinstance(known, dict) else {}
    now = json.loads(json.dumps(description))
    differing = sorted(value for value in {*known, *now} if known.get(value) != now.get(value))
    return (Note(NoteKind.WARNING, f"nothing is taken up: it was another run, by its {', '.join(differing)}"),)


def finished_candidates(run: Run, name: str) -> Sequence[Candidate]:
    """Return the candidates of a step that an earlier run like this finished; none where it was interrupted."""
    if not run.resume:
        return ()
    files = run.workspace.finished(name)
    candidates = [candidate for candidate in map(run.workspace.find, files or ()) if candidate is not None]
    if files is not None and len(candidates) == len(files):
        return candidates
    if files is None and (torn := stored_candidates(run, name)):
        text = f"{name} was interrupted after {plural(len(torn), 'candidate')}: it is made again, whole"
        run.context.notes.append(Note(NoteKind.INFO, text))
    return ()


def made_none(run: Run, name: str) -> bool:
    """Whether the machine that made the candidates made none in a step: it is not tried again here."""
    return run.workspace.handover is not None and run.workspace.finished(name) == ()


def stored_candidates(run: Run, name: str) -> Sequence[Candidate]:
    """Return the candidates of one name that an earlier run like this left, finished or not."""
    candidates: list[Candidate] = []
    while run.resume and (candidate := run.workspace.find(model_file(numbered(name, len(candidates))))):
        candidates.append(candidate)
    return candidates


def outcome_on_disk(run: Run, candidate: Candidate) -> Outcome:
    """Return what made a candidate that is taken up from disk."""
    model = load_model(run.workspace.path(candidate.file), candidate.name)
    return Outcome(model, candidate.changes, candidate.notes, candidate.options)
