"""The life of one call of `optimize`: a model in, candidates step by step, a bundle and a report out.

Every candidate is on disk before the next is begun; all are measured together at the end, on the same frames.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any, Unpack

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.executors._child import EngineAbortError
from edgeopt.executors._guard import guarded
from edgeopt.export.export import export_for
from edgeopt.export.network import NetworkInput
from edgeopt.export.source import is_source
from edgeopt.graph.facts.integers import why_not_again
from edgeopt.graph.files.large_constants import FOLDER, kept_in
from edgeopt.graph.outcome import Outcome
from edgeopt.measurement.opening.threads import default_threads
from edgeopt.optimization.candidate import BASELINE
from edgeopt.optimization.candidates.device_forms import offer_forms
from edgeopt.optimization.candidates.measure import Decision
from edgeopt.optimization.candidates.other_engines import offer_engines
from edgeopt.optimization.candidates.rival_forms import Rival, going_on, within_share
from edgeopt.optimization.candidates.rivals import offer_rivals
from edgeopt.optimization.candidates.scoring import add_candidate
from edgeopt.optimization.choice.decide import INTERRUPTED, decide, untimed_decision
from edgeopt.optimization.course import FORMS, expected_parts
from edgeopt.optimization.finish import BundleOf, conclude
from edgeopt.optimization.folder.replay import Replay, read_replay
from edgeopt.optimization.folder.resume import finished_candidates, outcome_on_disk, stored_candidates
from edgeopt.optimization.options import FrameOptimizeWishes, Options
from edgeopt.optimization.plan import describe, head, make_plan, require_no_clock
from edgeopt.optimization.result import Report
from edgeopt.optimization.run import Run, Silence
from edgeopt.optimization.start import heed_slowness, open_material, read_as_the_recipe_says, read_given, start_run
from edgeopt.report.document import Document, Value
from edgeopt.runtime.devices.availability import is_by_rule, is_compiled, why_unavailable
from edgeopt.steps import Step
from edgeopt.steps._context import CALIBRATION_PICTURES, Listener, Setting, numbered, out_of_time
from edgeopt.steps._keep_layers import require_layers
from edgeopt.system.declared.signatures import with_options_of
from edgeopt.system.machine.threads import engine_threads
from edgeopt.system.processes.time_limit import LONGER, OutOfTime, limited

_MOST_LOST = 3
"""Models in a row, twins as one, of a step that costs accuracy: where so many lose too much, the rest, which lose more,
are left."""


def show_plan(model: str, *, target: str, recipe: str | None, options: Options) -> Document:
    """Return what `optimize` would do; nothing is written.

    Raises:
        EdgeoptError: As `optimize`, for everything that can be known before work begins.
    """
    if replay := _replay_of(options):
        options = replace(options, threads=options.threads or replay.threads)
    if is_source(model):
        raise EdgeoptError(f"{model} is no ONNX file yet, and a plan writes none", remedy=f"edgeopt export {model}")
    given, pictures = read_given(model, target, recipe, options)
    plan = make_plan(given.recipe, given.target, options, engine_threads(0), why_not_again(given.model))
    require_layers(given.model, plan.pruning.keep_layers)
    if replay:
        replay.require_same(given.model, given.target)
        replay.require_calibration(open_material(given, plan, pictures).frames.spread(CALIBRATION_PICTURES))
        plan = replace(plan, notes=(*plan.notes, Note(NoteKind.INFO, f"what {replay.source} decided is made again")))
    if (missing := why_unavailable(given.target)) and not is_by_rule(given.target):
        plan = replace(plan, notes=(*plan.notes, Note(NoteKind.WARNING, f"cannot run here: {missing}")))
    return describe(plan, given.model.name, given.recipe, given.target, given.choice.reason)


@with_options_of(Options)
@guarded()
def optimize(
    model: str | Path,
    *,
    target: str = "cpu",
    out: str | Path | None = None,
    recipe: str | None = None,
    options: Options | None = None,
    listener: Listener | None = None,
    bundle_of: BundleOf | None = None,
    inputs: Sequence[NetworkInput] = (),
    task: str = "",
    began_s: float | None = None,
    **wishes: Unpack[FrameOptimizeWishes],
) -> Report:
    """Make a model fast on a target, measure it, and write candidates, bundle and report.

    Args:
        model: Path of an ONNX file, the name of a shipped model, or a source that `edgeopt export` takes.
        target: Shipped name, or path of a TOML file.
        out: Output folder; None: `out/MODEL-TARGET`.
        recipe: Shipped name or path; None: read from the model.
        options: What to do; None: all defaults.
        listener: Hears progress.
        bundle_of: Says which candidates get a bundle beside the chosen one's, and where; None: none.
        inputs: Of a source that `edgeopt export` takes: as `export`.
        task: Of such a source: as `export`.
        began_s: When a time limit began, on the monotonic clock; None: now.
        **wishes: Fields of `Options` that differ, such as `calib="pictures/", budget_ms=33`.

    Raises:
        EdgeoptError: On what the user can mend before work begins, or where nothing can be written. A step that
            fails later is a warning of the report.
    """
    began_s = monotonic() if began_s is None else began_s
    asked = replace(options or Options(), **wishes)
    if replay := _replay_of(asked):
        asked = replace(asked, threads=asked.threads or replay.threads)
    if is_source(str(model)):
        model = _exported(str(model), target, out, asked, listener or Silence(), inputs=inputs, task=task)
    else:
        _require_no_source(model, inputs, task)
    given, pictures = read_given(str(model), target, recipe, asked)
    if replay:
        replay.require_same(given.model, given.target)
    threads = default_threads(given.model, given.recipe, given.target, asked.threads)
    plan = make_plan(given.recipe, given.target, asked, threads, why_not_again(given.model))
    require_layers(given.model, plan.pruning.keep_layers)
    folder = Path(out) if out else Path("out") / f"{given.model.name}-{device_name(target)}"
    run = start_run(given, pictures, plan, folder, asked.resume, replay, listener or Silence(), began_s)
    with run.workspace, kept_in(run.workspace.path(FOLDER) if given.model.is_outside else None):
        what = head(plan, given.model.name, given.recipe, given.target, given.choice.reason)
        for value in (*what, *map(Value.of_note, (*plan.notes, *run.of_labels))):
            run.listener.say(str(value))
        run.listener.say("")
        read_as_the_recipe_says(run.context, plan, given.choice, run.labelled, folder)
        heed_slowness(run)
        decision = _as_far_as_it_goes(run)
        run.context.notes += run.workspace.notes
        return conclude(run, given.choice, decision, bundle_of)


def _as_far_as_it_goes(run: Run) -> Decision | None:
    """Make candidates and choose; an interrupt leaves what is proven by then, once the original is scored.

    Raises:
        KeyboardInterrupt: If there is nothing yet.
    """
    try:
        _make_candidates(run)
        run.context.calibrations.clear()  # what they saw may be as large as the model, and no search follows
        return decide(run)
    except KeyboardInterrupt:
        if not run.candidates:
            raise
        run.was_cut = True
        run.listener.say("interrupted: writing what is there; --resume goes on from it, Ctrl-C again ends at once")
        return untimed_decision(run, INTERRUPTED)


def _exported(
    source: str, target: str, out: str | Path | None, options: Options, listener: Listener, **wishes: Any
) -> Path:
    """Export what is no ONNX file yet, and return the file."""
    if options.shapes:
        problem = f"--shape is for an ONNX file, and {source} is exported first"
        raise EdgeoptError(problem, remedy="write --input images=1x3x224x224, for each input in their order")
    listener.say(f"export     {source}")
    result = export_for(source, target, Path(out) if out else None, **wishes)
    worst = min(output.drift.sqnr_db for output in result.outputs)
    listener.say(f"           {result.file}: {worst:.0f} dB signal to noise against {result.framework}")
    for note in result.notes:
        listener.say(str(Value.of_note(note)))
    return result.file


def _require_no_source(model: str | Path, inputs: Sequence[NetworkInput], task: str) -> None:
    """Raise where a model is told what only an export takes."""
    text = "--input" if inputs else "--task" if task else ""
    if text:
        problem = f"{text} tells how a network is exported, and {model} is exported already"
        raise EdgeoptError(problem, remedy=f"leave {text} out" + ("; --shape fixes free axes" if inputs else ""))


def _replay_of(options: Options) -> Replay | None:
    if not options.replay:
        return None
    require_no_clock(options)
    return read_replay(Path(options.replay))


def device_name(target: str) -> str:
    """Return the target's name for a folder: of a TOML file its stem."""
    return Path(target).stem if target.endswith(".toml") else target


def _make_candidates(run: Run) -> None:
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
    with _told_where_it_fails(run, f"step {name!r}"):
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
    if run.untimed and run.plan.must_be_timed:
        rivals = ()  # nothing would choose them
    if is_compiled(run.context.target):
        of_forms = [name for name, step in run.plan.steps.items() if step.on_device]
        best = next(iter(going_on(rivals, run.wish)), dense)
        with _told_where_it_fails(run, f"step {of_forms[-1]!r}" if of_forms else "what the device runs"):
            if of_forms:
                offer_forms(run, best.model, best.candidate)
        return
    if not run.by_rule:
        with _told_where_it_fails(run, "what other engines and precisions offer"):
            offer_engines(run, dense)
    with _told_where_it_fails(run, "what is made of pruned models"):
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


@contextmanager
def _told_where_it_fails(run: Run, what: str) -> Iterator[None]:
    """Do a part of the work; where it fails, say why and go on: what was made is measured, bundled and reported."""
    try:
        with limited(run.context.ends_at):
            yield
    except OutOfTime:
        told = Note(NoteKind.WARNING, f"time limit reached in {what}: what it had not finished is left out", LONGER)
        run.context.notes.append(told)
        run.listener.say(f"warning: {told}")
    except Exception as error:
        if run.replay:
            raise
        said = error.problem if isinstance(error, EdgeoptError) else f"{type(error).__name__}: {error}"
        remedy = error.remedy if isinstance(error, EdgeoptError) else "the other candidates are not concerned"
        note = Note(NoteKind.WARNING, f"{what} failed after {run.candidates[-1].name}: {said}", remedy)
        run.context.notes.append(note)
        run.listener.say(f"warning: {note}")
