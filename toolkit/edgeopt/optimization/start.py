"""The beginning of a run: what is given, its pictures, its engines, and the output folder."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.executors.onnxruntime.tensorrt import ENGINES
from edgeopt.graph.files.large_constants import FOLDER, kept_in
from edgeopt.measurement.accuracy.division import Division, divide, why_too_few, without
from edgeopt.measurement.accuracy.evaluate import LabelledFrames, open_labelled, with_states
from edgeopt.measurement.accuracy.judgement import LEVELS_OF_LOOKS, NoProof
from edgeopt.measurement.accuracy.misreading import notes_of_reading
from edgeopt.measurement.accuracy.paired_shares import least_samples
from edgeopt.measurement.fresh_process.proof_time import SPARE, START_S, ProofTime, SeenTimes
from edgeopt.measurement.fresh_process.turns import Runnable, feed_of, run_fresh
from edgeopt.measurement.opening.given import OpenedModel, filled_to_length, open_given
from edgeopt.optimization.candidate import BASELINE
from edgeopt.optimization.candidates.engines import open_engines
from edgeopt.optimization.candidates.measure import proof_pace
from edgeopt.optimization.choice.time_kept import stored_pace
from edgeopt.optimization.folder.replay import Replay
from edgeopt.optimization.folder.resume import describe_run, open_workspace, stored_candidates
from edgeopt.optimization.options import Options
from edgeopt.optimization.plan import ACTIVATIONS, FINETUNE, PRUNE, SYNTHETIC, Plan, head, require_emitters
from edgeopt.optimization.run import Run
from edgeopt.recipes.binding import Choice
from edgeopt.recipes.drafting.hugging_face import folder_of
from edgeopt.recipes.inputs.feeding import fed, synthetic
from edgeopt.recipes.inputs.frames import Frames, open_frames
from edgeopt.recipes.metrics import find_metric
from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.texts.tokenizer import Fill
from edgeopt.report.document import Value
from edgeopt.runtime.devices.availability import is_by_rule, is_compiled
from edgeopt.steps._context import AGREEMENT_PICTURES, Context, Engine, Files, Listener
from edgeopt.steps._pruning import Pruning, parse_pruning
from edgeopt.steps.quantize.calibration.pictures import CALIBRATION_PICTURES
from edgeopt.system.declared.target import Target, find_target
from edgeopt.system.device_clock import carriage_s
from edgeopt.system.processes.time_limit import LONGER, OutOfTime, limited, longer
from edgeopt.system.text import plural, typed_duration
from edgeopt.system.toml import read_json

_LOST_BY_CHANGE = 10.0
"""Times what may be lost: how far the search lets answers change where labels decide in the end. Of ten changed answers
of SqueezeNet's forms about one was right before and is wrong now, beyond those that went the other way. Where an answer
is no single choice its agreement tells less: INT8 of YOLOX-nano agrees in 0.87 and loses less than 0.01 AP."""
_READING = 0.1
"""Share of the time limit that trying other readings may take."""
_LOOK, _LABELS = 0.1, 0.05
"""Share of the time limit that one look at a model may take, and that scoring it on labels may take."""
_PROVABLE = 0.5
"""Share of the time limit that is left where a fresh process is run to see how long it takes."""
_LEAST_LOOKED, _LEAST_LABELS = 2, 8
_LOOKED = "candidates/looked.json"
_TURN_FRAMES = 4
"""Frames of a turn: one to warm up and the least block."""


@dataclass(frozen=True)
class Material:
    """The samples that the search may look at, and those that prove."""

    frames: Frames
    """They calibrate, and agreement is judged on them."""
    labelled: LabelledFrames | None
    """They prove, and are opened when the search is over; None without labels."""
    no_proof: NoProof | None = None
    """Why the labels prove nothing; None where none of them steers the search."""
    notes: tuple[Note, ...] = ()


def read_given(
    model: str, target: str | Target, recipe: str | None, options: Options
) -> tuple[OpenedModel, Frames | None]:
    """Return model, recipe and target, and the calibration pictures or tensors that were asked for."""
    frames = open_frames(Path(options.calib)) if options.calib and options.calib != SYNTHETIC else None
    shapes = frames.shapes if frames else None
    given = open_given(model, target, recipe, sizes=options.shapes, fed=shapes, labels=options.eval)
    given = _of_one_length(given, options)
    return given, fed(frames, given.recipe, given.model.inputs) if frames else None


def _of_one_length(given: OpenedModel, options: Options) -> OpenedModel:
    """Return a model of texts with every text filled to one length, where what is asked for is made for one."""
    wanted = {*(options.steps or ())}
    is_finetuned = options.finetune_s is not None or FINETUNE in wanted
    is_pruned = PRUNE in wanted or bool(parse_pruning(options.prune, options.keep_layers) not in (None, Pruning()))
    asked_for = "--emit" if options.emit else FINETUNE if is_finetuned else PRUNE if is_pruned else ""
    asked_for = asked_for or (ACTIVATIONS if ACTIVATIONS in wanted else "")
    return filled_to_length(given, f"{asked_for} is made for one length") if asked_for else given


def open_material(given: OpenedModel, plan: Plan, asked: Frames | None) -> Material:
    """Return what the search may look at, and the labels that prove, which it does not.

    The search gets the frames that were asked for, the recipe's, a part of the labelled ones, or made-up ones.

    Args:
        given: Model, target and recipe.
        plan: Where the frames and the labels lie.
        asked: The calibration frames that were asked for, open already.
    """
    labelled = open_labelled(plan.eval, given.recipe, given.model.inputs) if plan.eval else None
    if plan.calib:
        frames = asked or fed(open_frames(plan.calib), given.recipe, given.model.inputs)
        return Material(frames, None) if labelled is None else _apart(frames, labelled)
    if labelled is None or plan.synthetic:
        return Material(synthetic(given.recipe, given.model.inputs), labelled)
    return _of_division(divide(labelled))


def _of_division(division: Division) -> Material:
    no_proof = None if division.is_apart else NoProof.STEERED
    return Material(division.search, division.proving, no_proof, division.notes)


def _apart(frames: Frames, labelled: LabelledFrames) -> Material:
    """Return frames without those that prove; where nothing is left, the labelled ones are divided."""
    others = without(frames, labelled)
    if others is None:
        return _of_division(divide(labelled))
    if len(others) == len(frames):
        return Material(frames, labelled)
    count = plural(len(frames) - len(others), f"labelled {frames.kind}")
    text = f"{count} also lie in --calib: they prove, so they do not steer the search"
    return Material(others, labelled, notes=(Note(NoteKind.INFO, text),))


def open_context(
    given: OpenedModel,
    plan: Plan,
    engine: Engine,
    frames: Frames,
    files: Files,
    listener: Listener,
    began_s: float | None = None,
) -> Context:
    """Return what the steps of a run share, on one engine; its time began then, on the monotonic clock, or now."""
    began_s = monotonic() if began_s is None else began_s
    return Context(
        recipe=given.recipe,
        target=given.target,
        engine=engine,
        original=given.model,
        frames=frames,
        files=files,
        listener=listener,
        quantizes=plan.quantizes,
        may_quantize=plan.may_quantize,
        threads=plan.threads,
        ends_at=began_s + plan.time_limit_s if plan.time_limit_s else float("inf"),
        time_limit_s=plan.time_limit_s,
        pruning=plan.pruning,
        seed=plan.seed,
        training_s=plan.training_s,
        max_drop=plan.max_drop,
        is_calibrated=plan.calib is not None,
    )


def read_as_the_recipe_says(
    context: Context,
    plan: Plan,
    choice: Choice,
    labelled: LabelledFrames | None,
    folder: Path,
    *,
    is_known: bool = False,
) -> None:
    """Feed back the states of a stream, and find out whether the recipe fits what the model answers.

    Args:
        context: Its pictures may get states; its notes say what does not fit.
        plan: Whether there are pictures to judge by.
        choice: The recipe, and whether the user named it.
        labelled: None without labels.
        folder: Where a recipe that fits better is written.
        is_known: Whether the machine that made the candidates found it out.
    """
    model, began_s = context.original, monotonic()
    context.frames = with_states(context.frames, lambda: context.open(model), context.task(model, evaluating=True))
    try:
        if (labelled or plan.calib) and not is_known:
            session, tell = context.open(model), context.listener.progress
            with limited(began_s + _READING * (context.time_limit_s or math.inf)):
                context.notes += notes_of_reading(choice, model, session, context.frames, labelled, folder, tell)
    except OutOfTime as late:
        text = f"whether recipe {choice.recipe.name!r} reads the model right could not be checked in time"
        needed_s = monotonic() - began_s + late.whole_s  # what is done counts twice: some to spare
        more = longer(SPARE * needed_s / _READING) if late.whole_s else LONGER
        context.notes.append(Note(NoteKind.WARNING, text, more))
        session.close()


@contextmanager
def begun(run: Run, given: OpenedModel) -> Iterator[None]:
    """Tell of a run that `start_run` returned, and begin it; its folder is locked as long as the `with` lasts."""
    with run.workspace, kept_in(run.workspace.path(FOLDER) if given.model.is_outside else None):
        what = head(run.plan, given.model.name, given.recipe, given.target, given.choice.reason)
        for value in (*what, *map(Value.of_note, (*run.plan.notes, *run.of_labels))):
            run.listener.say(str(value))
        run.listener.say("")
        is_known = run.workspace.handover is not None
        folder = run.workspace.folder
        read_as_the_recipe_says(run.context, run.plan, given.choice, run.labelled, folder, is_known=is_known)
        heed_slowness(run)
        yield


def heed_slowness(run: Run) -> None:
    """Time one frame of the original, and have a model that is slow against the time limit looked at on fewer pictures.

    A resumed run takes as many as it did before: what is compared is answers to the same pictures.
    """
    context, limit_s = run.context, run.context.time_limit_s
    is_resumed = bool(stored_candidates(run, BASELINE))
    frame_s = _time_original(run, limit_s) if limit_s is not None else 0.0
    if is_resumed:
        looked = _read_looked(run)
    elif limit_s is None:
        run.workspace.path(_LOOKED).unlink(missing_ok=True)
        return
    else:
        pictures = max(_LEAST_LOOKED, min(CALIBRATION_PICTURES, int(_LOOK * limit_s / frame_s)))
        looked = pictures, max(_LEAST_LABELS, int(_LABELS * limit_s / frame_s))
        run.workspace.write(_LOOKED, json.dumps(looked))
        if pictures < AGREEMENT_PICTURES:
            text = f"a frame takes {frame_s:.2g} s: against the time limit answers are compared on "
            text += plural(pictures, "sample" if context.frames.tensors else context.frames.kind)
            enough_s = SPARE * AGREEMENT_PICTURES * frame_s / _LOOK
            context.notes.append(Note(NoteKind.WARNING, text, longer(enough_s)))
    if looked is None:
        return
    context.most_pictures = looked[0]
    if run.labelled:
        run.labelled = _fewer(run.labelled, looked[1], "all take longer than the time limit allows")


def _time_original(run: Run, limit_s: float) -> float:
    """Return the seconds of a frame of the original, and keep what follows from them and from its opening."""
    context = run.context
    opening_s, frame_s = _opening_and_frame_s(context)
    run.frame_ms = 1000 * frame_s
    if context.original.is_outside:
        context.turn_s = opening_s + _TURN_FRAMES * frame_s
        _warn_of_little_time(run, limit_s)
    elif not (run.untimed or is_compiled(context.target)):
        original = SeenTimes(opening_s, frame_s)
        if process_s := _process_s(run, original, limit_s):
            context.proof = ProofTime(process_s, original, slower=stored_pace(run))
    return frame_s


def _process_s(run: Run, original: SeenTimes, limit_s: float) -> float:
    """Return what one fresh process of a proof takes here, from its start to its end; 0 where it fails.

    Of a model so slow that one would take much of the time limit it is reckoned, and none is run; where most of the
    limit is over already, as on a busy machine, none is either.
    """
    context, model = run.context, run.context.original
    reckoned_s = START_S + 2 * original.in_process_s
    if reckoned_s > _LOOK * limit_s or context.ends_at - monotonic() < _PROVABLE * limit_s:
        return reckoned_s
    try:
        source = context.engine.executor.converted(model.source)
        began_s = monotonic()
        opening = context.engine.opening(context.engine.target.float_precision)
        runnable = Runnable(opening, source, context.recipe, model.inputs, model.outputs)
        pace = proof_pace(original.frame_s)
        run_fresh({BASELINE: runnable}, feed_of(run.timed), pace, workers=run.plan.threads, seed=0)
    except EdgeoptError:
        return 0.0  # the proof itself says why
    return monotonic() - began_s


def _opening_and_frame_s(context: Context) -> tuple[float, float]:
    """Return how long opening takes, and a frame; what only the first run does, such as cuDNN's search, is opening."""
    context.engine.executor.converted(context.original.source)  # before the clock: only once in a run
    (inputs,), began_s = context.inputs(1), monotonic() - carriage_s()
    session = context.open(context.original)
    session.run(inputs)
    ready_s = monotonic() - carriage_s()
    session.run(inputs)
    ran_s = monotonic() - carriage_s()
    session.close()
    frame_s = max(ran_s - ready_s, 1e-6)
    return max(ready_s - began_s - frame_s, 0.0), frame_s  # the first run is a frame too


def _warn_of_little_time(run: Run, limit_s: float) -> None:
    """Say at the beginning where the time limit leaves too little to prove that any form of a large model is faster."""
    context = run.context
    if limit_s < context.least_limit_s:
        text = f"a proof opens this model again and again, which takes about {context.proof_s:.0f} s: too long for the "
        text += f"time limit of {typed_duration(1000 * limit_s)}"
        note = Note(NoteKind.WARNING, text, longer(context.least_limit_s))
        context.notes.append(note)
        run.listener.say(f"warning: {note}")


def _read_looked(run: Run) -> tuple[int, int] | None:
    """Return on how many pictures and labels the run looked that is resumed; None: on all."""
    try:
        pictures, labels = read_json(run.workspace.path(_LOOKED), remedy="")
        return int(pictures), int(labels)
    except (EdgeoptError, TypeError, ValueError):
        return None


def start_run(
    given: OpenedModel,
    asked: Frames | None,
    plan: Plan,
    out: Path,
    resume: bool,
    replay: Replay | None,
    listener: Listener,
    began_s: float | None = None,
) -> Run:
    """Open all that a run needs, its output folder last, which is locked: `begun` lets go of it.

    Args:
        given: Model, target and recipe.
        asked: The calibration frames that were asked for.
        plan: What will be done.
        out: The output folder.
        resume: Whether what an earlier run left there is taken up.
        replay: Whose decisions hold.
        listener: Hears progress.
        began_s: When its time limit began, on the monotonic clock; None: now.

    Raises:
        UnsupportedError: If the target's own engine errs on the model.
    """
    given.require_right_engine()
    cache = str(out / ENGINES)
    began_s = monotonic() if began_s is None else began_s
    ends_at = began_s + plan.time_limit_s if plan.time_limit_s else math.inf
    fault_of = partial(_fault_in_time, given, ends_at)
    target, of_lengths = _of_free_lengths(given.target, given.recipe)
    engines = open_engines(target, plan.threads, cache, given.correction, fault_of, cores=plan.cores)
    own = replace(engines.own, target=replace(engines.own.target, alternatives=given.target.alternatives))
    engines = replace(engines, own=own, notes=(*engines.notes, *of_lengths))
    require_emitters(plan.emit, {engine.target.executor for engine in (engines.own, *engines.others)})
    material = open_material(given, plan, asked)
    frames, labelled = material.frames, material.labelled
    if replay:
        replay.require_calibration(frames.spread(CALIBRATION_PICTURES))
    workspace = open_workspace(out, describe_run(given, plan, engines, frames, labelled, replay), resume=resume)
    context = open_context(given, plan, engines.own, frames, workspace, listener, began_s)
    if labelled and find_metric(context.recipe.evaluation.metric).is_share:
        context.search_agreement = max(context.recipe.least_agreement, 1 - _LOST_BY_CHANGE * plan.max_drop)
    of_labels = _notes_of_labels(labelled, plan, no_proof=material.no_proof)
    of_handover = workspace.handover.told if workspace.handover else ()
    notes = [*engines.notes, *material.notes, *of_labels, *of_handover]
    return Run(
        context=replace(context, alternatives=engines.others, replay=replay, untimed=engines.untimed, notes=notes),
        plan=plan,
        workspace=workspace,
        labelled=labelled,
        no_proof=material.no_proof,
        of_labels=(*material.notes, *of_labels),
        of_engines=engines.notes,
        resume=resume,
        listener=listener,
        replay=replay,
        configurations=folder_of(given.path),
        untimed=engines.untimed,
        fault_of=given.fault_of,
        by_rule=is_by_rule(given.target),
    )


def _fault_in_time(opened: OpenedModel, ends_at: float, target: Target) -> str:
    """Return how another engine errs on the model, or that a time limit was over before that was known."""
    try:
        with limited(ends_at):
            return opened.fault_of(target)
    except OutOfTime:
        return "the time limit was over before its numbers were compared"


def _of_free_lengths(target: Target, recipe: Recipe) -> tuple[Target, tuple[Note, ...]]:
    """Return a target without engines that are made for texts of one length, where the model takes any, and a note.

    What an engine computes is not looked at first: that opens the model with it, and takes seconds.
    """
    if recipe.kind != "text" or recipe.tokenizer.fill is Fill.LENGTH:
        return target, ()
    executors = {name: target.beside(find_target(name)).executor for name in target.alternatives}
    kept = tuple(name for name, executor in executors.items() if executor == target.executor)
    if len(kept) == len(executors):
        return target, ()
    length = "x".join(map(str, recipe.input.shapes[recipe.tokenizer.ids]))
    text = f"not tried: {', '.join(name for name in executors if name not in kept)}, made for texts of one length"
    note = Note(NoteKind.SKIPPED, text, f"--shape {recipe.tokenizer.ids}={length} has every text filled to that length")
    return replace(target, alternatives=kept), (note,)


def _notes_of_labels(labelled: LabelledFrames | None, plan: Plan, *, no_proof: NoProof | None) -> list[Note]:
    """Return before the search that the labels are too few to prove anything, and how many would not be."""
    first = LEVELS_OF_LOOKS[0]
    why = why_too_few(len(labelled.frames), plan.max_drop, first) if labelled and not no_proof else ""
    if not why:
        return []
    least = least_samples(plan.max_drop, first)
    hint = f"label {least:,} or more, or allow more: --max-drop" if least else "allow more: --max-drop"
    return [Note(NoteKind.WARNING, why, hint)]


def _fewer(labelled: LabelledFrames, most: int, why: str) -> LabelledFrames:
    """Return at most so many labelled pictures, spread over all."""
    count = len(labelled.frames)
    if count <= most:
        return labelled
    kept = [round(i * (count - 1) / (most - 1)) for i in range(most)]
    note = Note(NoteKind.INFO, f"{most} of {count} labelled pictures: {why}")
    return LabelledFrames(labelled.frames.select(kept), labelled.labels.select(kept), (*labelled.notes, note))
