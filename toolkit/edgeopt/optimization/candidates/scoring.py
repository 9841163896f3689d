"""Candidates scored: on labels, by agreement with the original's answers, and by how far they drift from them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import starmap
from time import monotonic
from typing import Any

import numpy as np

from edgeopt.errors import InvalidFileError, Note, NoteKind
from edgeopt.executors import Session
from edgeopt.graph.drift import measure_drift, worst_drift
from edgeopt.graph.model import Model, save_model
from edgeopt.graph.outcome import Outcome
from edgeopt.graph.tensors import Tensors
from edgeopt.measurement.accuracy.bootstrap import Scored, require_telling, score
from edgeopt.measurement.accuracy.evaluate import LabelledFrames, why_no_proof
from edgeopt.measurement.fresh_process.proof_time import SeenTimes
from edgeopt.measurement.fresh_process.turns import Runnable
from edgeopt.optimization.candidate import BASELINE, RESUMED, Candidate
from edgeopt.optimization.choice.time_kept import see_model, see_resumed
from edgeopt.optimization.report.summary import candidate_line
from edgeopt.optimization.run import Run, model_file
from edgeopt.recipes.inputs.frames import calibration_wanted
from edgeopt.steps._context import CHECKED_PICTURES, Context, Setting, outputs_of, reference_answers
from edgeopt.steps.compile._partition_files import partition_files
from edgeopt.steps.compile._placement import explain_placement
from edgeopt.system.machine.memory import give_back
from edgeopt.system.text import plural
from edgeopt.tasks import Task

_BASELINE_SCORED = f"candidates/{BASELINE}/scored.json"
"""Resamples of the original's metric, for candidates of a resumed run."""


def score_candidate(
    run: Run, name: str, parent: str, steps: tuple[str, ...], outcome: Outcome, setting: Setting
) -> Candidate:
    """Return a candidate with its agreement with the original and its drift; neither measured nor judged yet.

    The labels that prove are opened for the original alone: for candidates when the search is over, see `proving`.
    """
    engine = setting.engine.with_options(outcome.options)
    engine.executor.converted(outcome.model.source)  # before the clock: neither turns nor fresh processes convert it
    began_s = monotonic()
    session = engine.open(outcome.model, setting.precision)
    open_s = monotonic() - began_s
    task = run.context.task(outcome.model, evaluating=True)
    runnable = run.context.runnable(outcome.model, engine, setting.precision)
    scored = score_on_labels(run.context, run.labelled, session, task, name, runnable) if name == BASELINE else None
    accuracy = scored.accuracy if scored else None
    candidate = Candidate(
        name=name,
        parent=parent,
        steps=steps,
        precision=setting.precision,
        file=model_file(name),
        size_bytes=outcome.model.size_bytes,
        wire_bytes=setting.engine.executor.wire_bytes(outcome.model.source),
        sha256=outcome.model.fingerprint,
        changes=dict(outcome.changes),
        notes=outcome.notes,
        score=accuracy,
        executor=setting.engine.target.executor,
        profile="" if setting.engine is run.context.engine else setting.engine.target.name,
        options=dict(outcome.options),
        placement=_judged_by_rule(run, name, outcome.model),
        input_size=_smaller_size(run.context, outcome.model),
        is_lossy=name != BASELINE and _is_lossy(run, steps, setting.precision),
    )
    nan = _Nan()
    hear = nan.hear if name == BASELINE else None
    began_s = monotonic()
    found = reference_answers(run.context, session, outcome.model, runnable, hear=hear)
    seen = SeenTimes(open_s, (monotonic() - began_s) / max(len(found), 1), candidate.profile)
    is_compared = name != BASELINE and not candidate.input_size
    is_opened_once = name == BASELINE and outcome.model.is_outside  # drift is told from its outputs later
    asked = is_compared or is_opened_once
    outputs = outputs_of(session, run.context.inputs(CHECKED_PICTURES, outcome.model)) if asked else []
    session.close()  # before the original is opened: large models are never in memory together
    if name == BASELINE:
        _require_telling(scored, nan.notes(len(found), run.context.pictures.kind))
        if scored:
            store_baseline(run, scored)
        keep_reference(run.context, run.labelled, task, found, nan)
        run.context.checked_outputs += outputs
        see_model(run, candidate, seen)
        return candidate
    pairs = zip(run.context.original_outputs(), outputs, strict=True) if is_compared else ()
    compared = replace(
        candidate,
        drift=worst_drift(starmap(measure_drift, pairs)) if is_compared else None,
        agreement=task.agreement(found, run.context.reference),
    )
    see_model(run, compared, seen)
    # Of what computes the same the metric is the same: no label is read for it.
    return replace(compared, score=run.candidates[0].score) if compared.is_rewrite else compared


def _is_lossy(run: Run, steps: Sequence[str], precision: str) -> bool:
    """Return whether a candidate made by these steps computes something else than the original does."""
    return precision != run.candidates[0].precision or bool({*steps} & run.plan.beside)


def _smaller_size(context: Context, model: Model) -> tuple[int, ...]:
    """Return height and width of a model's pictures; empty where they are the original's."""
    size = tuple(context.recipe_of(model).input.size)
    return () if size == tuple(context.recipe.input.size) else size


class _Nan:
    """Counts runs whose outputs are no numbers."""

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()

    def hear(self, outputs: Tensors) -> None:
        """Count one run."""
        self.runs.update(
            name for name, output in outputs.items() if output.dtype.kind == "f" and np.isnan(output).any()
        )

    def notes(self, count: int, kind: str) -> list[Note]:
        """Return a warning for each output, of so many runs."""
        remedy = "check the weights, and the recipe's scale and mean"
        return [
            Note(NoteKind.WARNING, f"the original's output {name} holds NaN on {runs} of {plural(count, kind)}", remedy)
            for name, runs in self.runs.items()
        ]


def _require_telling(scored: Scored | None, nan: list[Note]) -> None:
    """Raise where the original is no better than chance on its labels, or is no number: that comes first.

    Raises:
        InvalidFileError: If so.
    """
    if scored and scored.why_not_telling and nan:
        raise InvalidFileError(nan[0].detail, remedy=nan[0].hint)
    if scored:
        require_telling(scored, "without --eval, agreement judges")


def keep_reference(context: Context, labelled: LabelledFrames | None, task: Task, found: list[Any], nan: _Nan) -> None:
    """Keep the original's answers, and say where its outputs are NaN, or agreement with them proves nothing."""
    context.reference = found
    kind = context.pictures.kind
    context.notes += nan.notes(len(found), kind)
    if unproven := "" if labelled else why_no_proof(task, found, context.least_agreement, kind):
        wanted = f"other {kind}s" if context.is_calibrated else f"--calib {calibration_wanted(context.recipe)}"
        context.notes.append(Note(NoteKind.WARNING, f"agreement is no proof: {unproven}", f"pass {wanted}"))


def _judged_by_rule(run: Run, name: str, model: Model) -> str:
    """Return where the target's rules put the nodes, and draw it; empty where an engine is asked."""
    if not run.by_rule or name == BASELINE:
        return ""
    partition = explain_placement(model, run.context.target)
    for file, text in partition_files(partition).items():
        run.workspace.write(model_file(name).replace("model.onnx", file), text)
    return partition.verdict


def score_original(context: Context, labelled: LabelledFrames | None) -> Scored | None:
    """Score the model as given, before minutes are spent on forms, and keep its answers.

    Raises:
        InvalidFileError: If it is no better than chance on these labels.
    """
    model, session = context.original, context.open(context.original)
    task = context.task(model, evaluating=True)
    runnable = context.runnable(model, context.engine, context.engine.target.float_precision)
    scored = score_on_labels(context, labelled, session, task, "the original", runnable)
    nan = _Nan()
    found = reference_answers(context, session, model, hear=nan.hear)
    session.close()
    _require_telling(scored, nan.notes(len(found), context.pictures.kind))
    keep_reference(context, labelled, task, found, nan)
    return scored


def score_on_labels(
    context: Context, labelled: LabelledFrames | None, session: Session, task: Task, name: str, runnable: Runnable
) -> Scored | None:
    """Return a model's metric on the labelled pictures; None without any."""
    if labelled is None:
        return None
    frames, tell = labelled.frames, context.listener.progress
    result = context.pool.answers(runnable, session, task, frames, tell, f"evaluate {name}")
    return score(task, result, labelled.labels)


def stored_baseline(run: Run) -> Scored | None:
    """Return how the original did on the labels that prove; None where an older run left it, or on other labels."""
    try:
        return Scored.from_json(json.loads(run.workspace.path(_BASELINE_SCORED).read_text("utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def store_baseline(run: Run, scored: Scored) -> None:
    """Keep how the original did on the labels that prove, for candidates of a resumed run."""
    run.workspace.write(_BASELINE_SCORED, json.dumps(scored.to_json()))


def find_twin(run: Run, outcome: Outcome, setting: Setting) -> Candidate | None:
    """Return the candidate that is the same bytes, run by the same engine in the same way; None where there is none."""
    wanted = setting.engine.with_options(outcome.options).opening(setting.precision)
    for candidate in run.candidates:
        runs_alike = run.engine_of(candidate).opening(candidate.precision) == wanted
        if runs_alike and candidate.sha256 == outcome.model.fingerprint and candidate.name not in run.openers:
            return candidate
    return None


def store_candidate(run: Run, candidate: Candidate, model: Model) -> None:
    """Write a candidate and its model; weights that lie outside go to a file beside it."""
    if model.is_outside:
        save_model(model, run.workspace.path(candidate.file))
    run.workspace.store(candidate, None if model.is_outside else model.data)


def add_candidate(
    run: Run,
    name: str,
    parent: str,
    steps: tuple[str, ...],
    outcome: Outcome,
    setting: Setting,
    *,
    resumed: Candidate | None,
) -> Candidate:
    """Score a candidate, store it and tell of it; one that is taken up from disk is told of only.

    What is byte by byte a candidate that is there, and runs the same way, is that candidate: nothing was done.
    """
    if run.context.original.is_outside and run.candidates and not resumed:
        run.context.original_outputs()  # while no form is in memory beside it
        give_back()
    outcome = replace(outcome, model=outcome.model.gathered())
    if not resumed and (twin := find_twin(run, outcome, setting)):
        nothing = Note(NoteKind.SKIPPED, f"{name}: nothing to do, it is {twin.name} byte by byte")
        run.context.notes.append(nothing)
        run.listener.say(str(nothing))
        return twin
    if resumed and (same := next((other for other in run.candidates if other.name == resumed.name), None)):
        return same  # it was the twin of one before it
    if run.context.original.is_outside:
        give_back()  # of what it was made of
    if resumed:
        # What an earlier look at the labels said is judged again: there may be more of them now.
        is_known = name == BASELINE or resumed.is_rewrite
        unjudged = resumed if is_known else replace(resumed, judgement=None, score=None)
        candidate = replace(unjudged, notes=(*(note for note in resumed.notes if note != RESUMED), RESUMED))
        if name == BASELINE:
            run.context.engine.executor.converted(outcome.model.source)
            began_s = monotonic()
            session = run.context.open(outcome.model)
            nan, open_s = _Nan(), monotonic() - began_s
            began_s = monotonic()
            found = reference_answers(run.context, session, outcome.model, hear=nan.hear)
            see_model(run, candidate, SeenTimes(open_s, (monotonic() - began_s) / max(len(found), 1)))
            session.close()
            keep_reference(run.context, run.labelled, run.context.task(outcome.model, evaluating=True), found, nan)
        else:
            see_resumed(run, candidate)
    else:
        candidate = score_candidate(run, name, parent, steps, outcome, setting)
        store_candidate(run, candidate, outcome.model)
    run.candidates.append(candidate)
    run.listener.say(candidate_line(candidate))
    return candidate
