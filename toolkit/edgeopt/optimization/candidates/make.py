"""The candidates of a run: what its steps make of the model, one after the other, and what engines make of that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import monotonic

from edgeopt.errors import Note, NoteKind
from edgeopt.executors._child import EngineAbortError
from edgeopt.graph.outcome import Outcome
from edgeopt.optimization.candidate import BASELINE
from edgeopt.optimization.candidates.device_forms import offer_forms
from edgeopt.optimization.candidates.failing_part import told_where_it_fails
from edgeopt.optimization.candidates.other_engines import offer_engines
from edgeopt.optimization.candidates.rival_forms import Rival, going_on, within_share
from edgeopt.optimization.candidates.rivals import offer_rivals
from edgeopt.optimization.candidates.scoring import add_candidate
from edgeopt.optimization.expected_progress import FORMS, expected_parts
from edgeopt.optimization.folder.resume import finished_candidates, made_none, outcome_on_disk, stored_candidates
from edgeopt.optimization.run import Run
from edgeopt.runtime.devices.availability import is_compiled
from edgeopt.steps import Step
from edgeopt.steps._context import Setting, numbered, out_of_time
from edgeopt.system.declared.target import TargetByTimes
from edgeopt.system.processes.time_limit import limited

_MOST_LOST = 3
"""Models in a row, twins as one, of a step that costs accuracy: where so many lose too much, the rest, which lose more,
are left."""


def make_candidates(run: Run) -> None:
    """Make, score and store the candidates of each step; a step works on the last one that kept its accuracy."""
    engine, compiled = run.context.engine, is_compiled(run.context.target)
    known = next(iter(stored_candidates(run, BASELINE)), None)
    in_float = Setting(engine, engine.target.float_precision, BASELINE)
    began_s = monotonic()
    parent = add_candidate(run, BASELINE, "", (), Outcome(run.context.original, {}), in_float, resumed=known)
    _look_ahead(run, monotonic() - began_s, is_resumed=known is not None)
    last_float = now = Rival(run.context.original, parent)
    rivals, furthest = list[Rival](), list[Rival]()
    for name, step in run.plan.steps.items():
        if not step.in_line or (compiled and step.on_device):
            continue
        if monotonic() > run.context.candidates_end:
            _warn(run, out_of_time(name))
            return
        run.course.begin(name)
        made = _make_step(run, name, step, furthest[-1] if step.beside and furthest else now)
        kept = [rival for rival in made if run.wish.keeps(rival.candidate)]
        if step.beside:
            rivals += made[::-1]  # the fastest first
            frugal = within_share(made, run.wish, run.plan.share_until(name))
            furthest += made[-1:] if run.plan.heals_after(name) else frugal[-1:]
            continue
        now = kept[0] if kept else now
        if now.candidate.precision == engine.target.float_precision:
            last_float = now
    run.course.begin(FORMS)
    _offer_forms(run, last_float, rivals)


def _look_ahead(run: Run, took_s: float, *, is_resumed: bool) -> None:
    """Expect the parts of the run by what scoring the original took."""
    samples = len(run.labelled.frames) if run.labelled else len(run.context.judged_pictures)
    answered = len(run.context.judged_pictures) + (0 if is_resumed or not run.labelled else samples)
    engines = len(run.context.alternatives)
    frame_s = took_s / max(answered, 1)
    run.course.look_ahead(expected_parts(run.plan, frame_s, samples, engines, is_timed=not run.untimed), frame_s)


def _make_step(run: Run, name: str, step: Step, parent: Rival) -> list[Rival]:
    """Return what a step makes of a model: candidates, scored and stored; those on disk where it was finished."""
    made, keeps = list[Rival](), list[bool]()
    with told_where_it_fails(run, f"step {name!r}"):
        if made_none(run, name):
            return []
        engine = run.context.engine
        setting = Setting(engine, step.precision or parent.candidate.precision, name)
        finished, steps = finished_candidates(run, name), (*parent.candidate.steps, name)
        outcomes = [outcome_on_disk(run, candidate) for candidate in finished] or _outcomes(
            run, name, step, parent, setting
        )
        for i, outcome in enumerate(outcomes if step.precision else _changed(run, name, outcomes)):
            if step.beside and not finished and not outcome.is_twin and _have_lost(keeps):
                break  # the next ones lose more
            if i and not finished and monotonic() > run.context.candidates_end:
                run.context.notes.append(out_of_time(numbered(name, i)))
                return made  # the step is not finished: a resumed run makes it whole
            taken_up = finished[i] if finished else None
            whose = parent.candidate.name
            try:
                other = add_candidate(run, numbered(name, i), whose, steps, outcome, setting, resumed=taken_up)
            except EngineAbortError as abort:
                run.leave_out(numbered(name, i), abort)
                continue
            made.append(Rival(outcome.model, other))
            is_kept = run.wish.keeps(other)
            if outcome.is_twin and keeps:
                keeps[-1] |= is_kept
            else:
                keeps.append(is_kept)
        run.workspace.finish(name, [rival.candidate.file for rival in made])
    return made


def _have_lost(keeps: Sequence[bool]) -> bool:
    """Whether so many in a row lost too much that the rest is left."""
    return len(keeps) >= _MOST_LOST and not any(keeps[-_MOST_LOST:])


def _outcomes(run: Run, name: str, step: Step, parent: Rival, setting: Setting) -> Sequence[Outcome]:
    """Return what a step makes of a model; in a replay, what it made then, where that was measured or trained."""
    if run.replay is None or not step.beside:
        with limited(run.context.candidates_end):
            return step.make(parent.model, run.context, setting)
    outcomes = run.replay.outcomes(name, parent.model)
    for i in range(len(outcomes)):
        for file, text in run.replay.files_beside(numbered(name, i)).items():
            run.workspace.write(f"candidates/{numbered(name, i)}/{file}", text)
    return outcomes


def _offer_forms(run: Run, dense: Rival, rivals: Sequence[Rival]) -> None:
    """Offer what a device, other engines and other precisions make of the float models."""
    is_predicted = isinstance(run.context.target, TargetByTimes)
    if run.untimed and run.context.target.why_untimed() and run.plan.must_be_timed and not is_predicted:
        rivals = ()  # nothing would choose them
    if is_compiled(run.context.target):
        of_forms = [name for name, step in run.plan.steps.items() if step.on_device]
        best = next(iter(going_on(rivals, run.wish)), dense)
        with told_where_it_fails(run, f"step {of_forms[-1]!r}" if of_forms else "what the device runs"):
            if of_forms:
                offer_forms(run, best.model, best.candidate)
        return
    if not run.by_rule:
        with told_where_it_fails(run, "what other engines and precisions offer"):
            offer_engines(run, dense)
    with told_where_it_fails(run, "what is made of pruned models"):
        offer_rivals(run, rivals, dense)


def _changed(run: Run, name: str, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the outcomes of a rewriting step that changed anything; where none did, say so."""
    changed = [outcome for outcome in outcomes if not outcome.is_unchanged]
    if not changed:
        notes = [note for outcome in outcomes for note in outcome.notes]
        why = [note for note in notes if note.kind is NoteKind.SKIPPED] or [
            Note(NoteKind.INFO, f"{name}: nothing to do")
        ]
        run.context.notes += dict.fromkeys((*notes, *why))
        for note in why:
            run.listener.say(str(note))
    return changed


def _warn(run: Run, note: Note) -> None:
    last = run.candidates[-1]
    run.candidates[-1] = replace(last, notes=(*last.notes, note))
