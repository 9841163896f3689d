"""The beginning of a run: what is given, its pictures, its engines, and the output folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from time import monotonic

from edgeopt.errors import Note, NoteKind
from edgeopt.executors.onnxruntime.tensorrt import ENGINES
from edgeopt.measurement.accuracy.evaluate import LabelledFrames, open_labelled, with_states
from edgeopt.measurement.accuracy.misreading import notes_of_reading
from edgeopt.measurement.given import Given, open_given
from edgeopt.pipeline.engines import open_engines
from edgeopt.pipeline.plan import SYNTHETIC, Options, Plan
from edgeopt.pipeline.replay import Replay
from edgeopt.pipeline.resume import describe_run, open_workspace
from edgeopt.pipeline.run import Run
from edgeopt.recipes.binding import Choice
from edgeopt.recipes.feeding import fed, synthetic
from edgeopt.recipes.frames import Frames, open_frames
from edgeopt.recipes.hugging_face import folder_of
from edgeopt.runtime.availability import is_by_rule, is_compiled
from edgeopt.steps._context import CALIBRATION_PICTURES, Context, Engine, Files, Listener

_MOST_SIMULATED = 128
"""Labelled pictures for a simulated device, which takes about a second for each."""


def read_given(model: str, target: str, recipe: str | None, options: Options) -> tuple[Given, Frames | None]:
    """Return model, recipe and target, and the calibration pictures or tensors that were asked for."""
    asked = open_frames(Path(options.calib)) if options.calib and options.calib != SYNTHETIC else None
    shapes = asked.shapes if asked else None
    given = open_given(model, target, recipe, sizes=options.shapes, fed=shapes, labels=options.eval)
    return given, fed(asked, given.recipe, given.model.inputs) if asked else None


def open_calibration(given: Given, plan: Plan, asked: Frames | None, labelled: LabelledFrames | None) -> Frames:
    """Return the frames that calibrate and judge agreement: those asked for, the recipe's, or what else there is."""
    if plan.calib:
        return asked or fed(open_frames(plan.calib), given.recipe, given.model.inputs)
    return labelled.frames if labelled and not plan.synthetic else synthetic(given.recipe, given.model.inputs)


def open_context(given: Given, plan: Plan, engine: Engine, frames: Frames, files: Files, listener: Listener) -> Context:
    """Return what the steps of a run share, on one engine; its time begins now."""
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
        ends_at=monotonic() + plan.time_limit_s if plan.time_limit_s else float("inf"),
        time_limit_s=plan.time_limit_s,
        pruning=plan.pruning,
        training_s=plan.training_s,
        max_drop=plan.max_drop,
        is_calibrated=plan.calib is not None,
    )


def read_as_the_recipe_says(
    context: Context, plan: Plan, choice: Choice, labelled: LabelledFrames | None, folder: Path
) -> None:
    """Feed back the states of a stream, and find out whether the recipe fits what the model answers.

    Args:
        context: Its pictures may get states; its notes say what does not fit.
        plan: Whether there are pictures to judge by.
        choice: The recipe, and whether the user named it.
        labelled: None without labels.
        folder: Where a recipe that fits better is written.
    """
    model = context.original
    context.frames = with_states(context.frames, lambda: context.open(model), context.task(model, evaluating=True))
    if labelled or plan.calib:
        session, began_s, tell = context.open(model), monotonic(), context.listener.progress
        context.notes += notes_of_reading(choice, model, session, context.frames, labelled, folder, tell)
        context.ends_at += monotonic() - began_s  # the time limit is for candidates


def start_run(
    given: Given, asked: Frames | None, plan: Plan, out: Path, resume: bool, replay: Replay | None, listener: Listener
) -> Run:
    """Open all that a run needs, its output folder last.

    Args:
        given: Model, target and recipe.
        asked: The calibration frames that were asked for.
        plan: What will be done.
        out: The output folder.
        resume: Whether what an earlier run left there is taken up.
        replay: Whose decisions hold.
        listener: Hears progress.
    """
    engines = open_engines(given.target, plan.threads, str(out / ENGINES))
    labelled = open_labelled(plan.eval, given.recipe, given.model.inputs) if plan.eval else None
    if labelled and is_compiled(given.target) and engines.untimed:
        labelled = _fewer(labelled)
    frames = open_calibration(given, plan, asked, labelled)
    if replay:
        replay.require_calibration(frames.spread(CALIBRATION_PICTURES))
    workspace = open_workspace(out, describe_run(given, plan, engines, frames, labelled, replay), resume=resume)
    context = open_context(given, plan, engines.own, frames, workspace, listener)
    return Run(
        context=replace(
            context, alternatives=engines.others, replay=replay, untimed=engines.untimed, notes=[*engines.notes]
        ),
        plan=plan,
        workspace=workspace,
        labelled=labelled,
        resume=resume,
        listener=listener,
        replay=replay,
        configurations=folder_of(given.path),
        untimed=engines.untimed,
        by_rule=is_by_rule(given.target),
    )


def _fewer(labelled: LabelledFrames) -> LabelledFrames:
    """Return labelled pictures for a simulator, spread over all."""
    count = len(labelled.frames)
    if count <= _MOST_SIMULATED:
        return labelled
    kept = [round(i * (count - 1) / (_MOST_SIMULATED - 1)) for i in range(_MOST_SIMULATED)]
    note = Note(NoteKind.INFO, f"{_MOST_SIMULATED} of {count} labelled pictures: the device is simulated")
    return LabelledFrames(labelled.frames.select(kept), labelled.labels.select(kept), (*labelled.notes, note))
