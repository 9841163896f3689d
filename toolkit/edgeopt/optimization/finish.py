"""The end of a run: one candidate chosen, bundle and report written."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.executors import Session
from edgeopt.graph.model import Model, load_model
from edgeopt.graph.tensors import Frame
from edgeopt.measurement.accuracy.evaluate import answers
from edgeopt.optimization.candidate import Candidate
from edgeopt.optimization.candidates.measure import Decision
from edgeopt.optimization.candidates.predicted import with_predictions
from edgeopt.optimization.choice.accuracy_proof import prove_accuracy
from edgeopt.optimization.choice.selection import choose, mark
from edgeopt.optimization.deployment.decoding import with_decoding
from edgeopt.optimization.deployment.deploy import deploy
from edgeopt.optimization.deployment.embedding import EmbeddedParts, embed
from edgeopt.optimization.deployment.emission import emit
from edgeopt.optimization.expected_progress import BUNDLE
from edgeopt.optimization.plan import calibrated_steps
from edgeopt.optimization.report.summary import write_report
from edgeopt.optimization.result import ModelReport
from edgeopt.optimization.run import Run
from edgeopt.recipes.binding import Choice
from edgeopt.recipes.inputs.frames import calibration_wanted
from edgeopt.report.contact_sheet import ANSWERS, write_pairs, write_sheet
from edgeopt.runtime.devices.availability import is_compiled
from edgeopt.steps._context import CALIBRATION
from edgeopt.steps.quantize.calibration.pictures import CALIBRATION_PICTURES
from edgeopt.system.machine.environment import read_environment
from edgeopt.system.machine.place import current_place
from edgeopt.system.processes.time_limit import LONGER, OutOfTime, limited
from edgeopt.system.text import plural
from edgeopt.tasks import find_task

_PICTURES_S = 3.0
"""Seconds for pictures of answers where a time limit is over."""
_ON_DEVICE = "edgeopt bench BUNDLE on the device"


BundleOf = Callable[[Candidate, Candidate], Path | None]
"""Says where a candidate, the original beside it, gets a bundle of its own; None: it gets none."""


def conclude(run: Run, choice: Choice, decision: Decision | None, bundle_of: BundleOf | None = None) -> ModelReport:
    """Choose, and write bundle and report.

    Args:
        run: With all its candidates.
        choice: Of the recipe.
        decision: By what was measured; None where nothing was.
        bundle_of: Asked for every candidate; None: the choice alone gets a bundle.
    """
    candidates = decision.candidates if decision else _judged(run)
    chosen = decision.chosen if decision else choose(candidates, run.wish, lambda candidate, other: False)
    chosen = run.replay.choose_again(candidates, chosen) if run.replay else chosen
    for candidate in candidates:
        run.workspace.store(candidate, None)
    best = next(candidate for candidate in candidates if candidate.name == chosen.name)
    of_pictures = (*run.context.frames.notes, *(run.labelled.notes if run.labelled else ()))
    of_place = ()
    if (place := current_place()) is not None:
        place.note_model(run.context.recipe)
        of_place = place.notes
    notes = [
        *choice.notes,
        *run.context.notes,
        *of_place,
        *of_pictures,
        *run.plan.notes,
        *(decision.notes if decision else ()),
    ]
    foreign = _foreign_runtime(run)
    untimed = run.untimed or (decision.untimed if decision else "")
    if run.untimed:
        notes.append(Note(NoteKind.WARNING, f"latency not measured: {run.untimed}", foreign or _ON_DEVICE))
    off_target = "" if best.profile or not is_compiled(run.context.target) else _why_off_target(candidates)
    if off_target:
        notes.append(Note(NoteKind.WARNING, f"nothing runs on {run.context.target.name}: {off_target}"))
    run.course.begin(BUNDLE)
    embedded = embed(run, best, with_decoding(run, best))
    candidates = tuple(map(embedded.deployed, candidates))
    best = next(candidate for candidate in candidates if candidate.name == chosen.name)
    if best.judgement and best.judgement.is_open:
        judged = best.judgement
        notes.append(Note(NoteKind.WARNING, f"accuracy of {best.name} not decided: {judged}", judged.remedy))
    if best.is_lossy and run.labelled is None and run.plan.calib is None:
        on = f"made-up {run.context.frames.kind}s"
        text = f"{best.name} agrees with the original on {on}: what it does on real ones is not known"
        notes.append(Note(NoteKind.WARNING, text, f"pass --calib {calibration_wanted(run.context.recipe)}"))
    bundle, of_bundle = deploy(run, candidates, best, embedded)
    emitted, of_emitted = emit(run, candidates, best, embedded)
    notes += (*of_bundle, *of_emitted)
    for candidate in candidates:
        if bundle_of and (folder := bundle_of(candidate, candidates[0])):
            deploy(run, candidates, candidate, EmbeddedParts(run.context), folder)
    report = ModelReport(
        model=run.context.original.name,
        model_sha256=run.context.original.fingerprint,
        recipe=run.context.recipe.name,
        recipe_reason=choice.reason,
        target=run.context.target.name,
        environment=read_environment({"model.sha256": run.context.original.fingerprint}),
        threads=run.plan.threads,
        cores=run.plan.cores,
        budget_ms=run.plan.budget_ms,
        budget_asked=run.plan.budget_asked,
        accuracy_asked=run.plan.accuracy_asked,
        to_label=run.to_label,
        unproven=decision.unproven if decision else "",
        max_drop=run.plan.max_drop,
        metric=run.context.recipe.evaluation.metric,
        candidates=candidates,
        chosen=chosen.name,
        reason=chosen.reason + _inside_words(best, embedded),
        folder=run.workspace.folder,
        bundle=bundle,
        calibrated_on=_calibrated_on(run),
        untimed=untimed,
        off_target=off_target,
        foreign_runtime=foreign,
        trust=str(decision.trust) if decision and decision.trust else "",
        notes=tuple(dict.fromkeys(notes)),
        inside=embedded.inside,
        reduced=embedded.reduced,
        was_cut=run.was_cut,
        emitted=emitted,
    )
    try:
        with limited(max(run.context.ends_at, monotonic()) + _PICTURES_S):
            _write_pictures(run, best)
    except EdgeoptError as error:
        missing = Note(NoteKind.SKIPPED, f"no picture of answers: {error.problem}", error.remedy)
        report = replace(report, notes=(*report.notes, missing))
    except OutOfTime:
        report = replace(
            report, notes=(*report.notes, Note(NoteKind.SKIPPED, "no picture of answers: no time", LONGER))
        )
    write_report(report)
    if not run.was_cut:
        shutil.rmtree(run.workspace.path(CALIBRATION), ignore_errors=True)
    return report


def _inside_words(best: Candidate, embedded: EmbeddedParts) -> str:
    """Return what is proven of the choice as it is deployed, behind what was proven of the model alone."""
    if embedded.measured is None or best.judgement is None:
        return ""
    how = ["JPEG files decoded at a part of their size"] if embedded.reduced else []
    how += [f"{' and '.join(embedded.inside.parts)} inside"] if embedded.inside else []
    return f"; deployed with {', and with '.join(how)}, {best.judgement.word}: {best.judgement}"


def _foreign_runtime(run: Run) -> str:
    """Return what runs the model on the device, where the engine made for it only compiles; else nothing."""
    return next((alternative.executor.foreign_runtime for alternative in run.context.alternatives), "")


def _why_off_target(candidates: Sequence[Candidate]) -> str:
    refused = [
        f"{candidate.name} {candidate.refused}" for candidate in candidates if candidate.profile and candidate.refused
    ]
    return "; ".join(refused) or "no form of the model was made for it"


def _judged(run: Run) -> tuple[Candidate, ...]:
    """Return the candidates of a run that measures nothing here, with their judgements."""
    candidates = with_predictions(run, run.candidates)
    return mark(prove_accuracy(run, mark(candidates, run.wish)), run.wish)


def _calibrated_on(run: Run) -> str:
    if not any(calibrated_steps() & {*candidate.steps} for candidate in run.candidates):
        return "nothing: no candidate needed it"
    frames = run.context.frames
    what = "sample" if frames.tensors else frames.kind
    count = plural(len(frames.spread(CALIBRATION_PICTURES)), what)
    if run.plan.synthetic:
        return f"{count}, SYNTHETIC: INT8 figures are uncalibrated"
    return f"{count} of {frames.source}"


def _write_pictures(run: Run, best: Candidate) -> None:
    """Draw three samples with the original's answers and the chosen candidate's."""
    if run.timed.given not in find_task(run.context.recipe.task).draws:
        return
    model = load_model(run.workspace.path(best.file), best.name)
    frames = run.timed.spread(3)
    columns: dict[str, tuple[Model, Callable[[Model], Session]]] = {
        "original": (run.context.original, run.context.open),
        f"chosen: {best.name}": (model, partial(run.open_candidate, best)),
    }
    drawn: dict[str, list[Frame]] = {}
    for title, (other, opened) in columns.items():
        task, session = run.context.task(other, evaluating=False), opened(other)
        try:
            found = answers(session, task, frames)
        finally:
            session.close()
        drawn[title] = [task.draw(frames.read(i), answer) for i, answer in enumerate(found)]
    write_sheet(run.workspace.path("answers.png"), drawn)
    write_pairs(run.workspace.path(ANSWERS), *drawn.values())
