"""Candidates of one device's other engines and arithmetics."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.graph.model import Model, load_model
from edgeopt.graph.outcome import Outcome
from edgeopt.pipeline.candidate import Candidate
from edgeopt.pipeline.run import Run, add_candidate, finished_candidates, outcome_on_disk
from edgeopt.steps._attention import fuse_attention, joins_attention
from edgeopt.steps._conversions import CONVERSIONS, STEP_OF, is_converted, why_not_converted
from edgeopt.steps.context import CHECKED_PICTURES, Engine, Setting, numbered, out_of_time
from edgeopt.steps.quantize._step import make_int8

_MOST_KEPT = 2
"""INT8 models of one engine that go on to the labels."""
_ATTENTION = "attention"


def offer_engines(run: Run, model: Model, parent: Candidate) -> None:
    """Make and score what the profiles of this device offer beside float32 and INT8 on the target's own engine.

    Args:
        run: Its alternatives, and its own engine's further precisions.
        model: The last float model that kept its accuracy.
        parent: Its candidate.
    """
    for engine in (run.context.engine, *run.context.alternatives):
        runnable = _runnable(run, engine)
        if engine is run.context.engine:
            runnable = [one for one in runnable if one not in (run.context.target.float_precision, "w8a8")]
        converted = [one for one in runnable if is_converted(one, engine.target)]
        _offer_conversions(run, engine, converted, model, parent)
        runnable = [one for one in runnable if one not in converted]
        _offer(run, engine, [one for one in runnable if not _is_int8(one)], [Outcome(model, {})], parent, parent.steps)
        in_int8 = [one for one in runnable if _is_int8(one)]
        if in_int8 and any(step.name == "quantize" for step in run.plan.steps):
            outcomes = _int8_models(run, engine, in_int8, model)
            _offer(run, engine, in_int8, outcomes, parent, (*parent.steps, "quantize"))


def _offer_conversions(run: Run, engine: Engine, precisions: Sequence[str], model: Model, parent: Candidate) -> None:
    """Offer the model with joined attention, and what is made of it without a search."""
    model, parent = _with_joined_attention(run, engine, model, parent)
    for precision in precisions:
        if reason := why_not_converted(precision, engine.target, run.context.may_quantize):
            run.context.notes.append(Note(NoteKind.SKIPPED, f"no {precision} on {engine.target.name}: {reason}"))
            continue
        try:
            outcomes = CONVERSIONS[precision](model, engine.target, run.context.inputs(CHECKED_PICTURES))
        except EdgeoptError as error:
            run.context.notes.append(Note(NoteKind.WARNING, f"no {precision}: {error.problem}", error.remedy))
            continue
        _offer(run, engine, [precision], outcomes, parent, (*parent.steps, STEP_OF[precision]))


def _with_joined_attention(run: Run, engine: Engine, model: Model, parent: Candidate) -> tuple[Model, Candidate]:
    """Return the model with one op for each attention, as a candidate; what came in where there is none."""
    if engine is not run.context.engine or not joins_attention(engine.target) or monotonic() > run.context.deadline:
        return model, parent
    finished = finished_candidates(run, _ATTENTION) if run.resume else []
    outcome = (
        outcome_on_disk(run, finished[0]) if finished else fuse_attention(model, run.context.inputs(CHECKED_PICTURES))
    )
    if not outcome.changes:
        run.context.notes.extend(outcome.notes)
        return model, parent
    steps, setting = (*parent.steps, _ATTENTION), Setting(engine, parent.precision)
    known = finished[0] if finished else None
    made = add_candidate(run, _ATTENTION, parent.name, steps, outcome, setting, resumed=known)
    run.workspace.finish(_ATTENTION, [made.file])
    return outcome.model, made


def _is_int8(precision: str) -> bool:
    return precision.startswith("w8")


def _runnable(run: Run, engine: Engine) -> list[str]:
    """Return the precisions of a profile that this machine has; where it is not the target, all."""
    found = []
    for precision in engine.target.precisions:
        if not run.context.target.why_not_here() and (reason := engine.target.why_no_precision(precision)):
            run.context.notes.append(Note(NoteKind.SKIPPED, f"no {precision} on {engine.target.name}: {reason}"))
        else:
            found.append(precision)
    return found


def _name(engine: Engine, precision: str) -> str:
    return f"{engine.target.executor}-{precision}"


def _int8_models(run: Run, engine: Engine, precisions: Sequence[str], model: Model) -> list[Outcome]:
    """Return INT8 models for an engine: those on disk, those its own step made, else those of a search."""
    if run.resume and (finished := finished_candidates(run, _name(engine, precisions[0]))):
        return [outcome_on_disk(run, one) for one in finished]
    if engine is run.context.engine:
        made = [one for one in run.candidates if one.precision == "w8a8" and not one.profile]
        made = [*made[: _MOST_KEPT - 1], *made[_MOST_KEPT - 1 :][-1:]]  # the last one agrees best
        return [Outcome(load_model(run.workspace.path(one.file), one.name), one.changes) for one in made]
    if monotonic() > run.context.searches_end:
        run.context.notes.append(out_of_time(f"INT8 on {engine.target.name}"))
        return []
    try:
        return make_int8(run.context, model, Setting(engine, precisions[-1]), _MOST_KEPT)
    except EdgeoptError as error:
        run.context.notes.append(
            Note(NoteKind.WARNING, f"no INT8 on {engine.target.name}: {error.problem}", error.remedy)
        )
        return []


def _offer(
    run: Run,
    engine: Engine,
    precisions: Sequence[str],
    outcomes: Sequence[Outcome],
    parent: Candidate,
    steps: tuple[str, ...],
) -> None:
    for precision in precisions:
        name = _name(engine, precision)
        finished, made = finished_candidates(run, name) if run.resume else [], list[Candidate]()
        for i, outcome in enumerate(outcomes):
            if monotonic() > run.context.deadline:
                run.context.notes.append(out_of_time(name))
                return
            known = finished[i] if i < len(finished) else None
            setting = Setting(engine, precision)
            try:
                made.append(add_candidate(run, numbered(name, i), parent.name, steps, outcome, setting, resumed=known))
            except EdgeoptError as error:
                run.context.notes.append(Note(NoteKind.WARNING, f"{name} left out: {error.problem}", error.remedy))
                break
        else:
            run.workspace.finish(name, [one.file for one in made])
