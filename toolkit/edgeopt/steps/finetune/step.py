"""The step `finetune`: what steps before it cost is won back from the original, on the pictures that calibrate."""

from __future__ import annotations

from dataclasses import replace
from time import monotonic

from edgeopt.errors import Note, NoteKind, UnsupportedError
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.steps import fuse, simplify
from edgeopt.steps._context import Context, Setting, out_of_time
from edgeopt.steps.finetune.distil import Distilled, distil, require_alike
from edgeopt.steps.finetune.record import RECORD, Record, trained_before
from edgeopt.steps.resolution.smaller import with_input_size

_CHECKPOINT = ".finetune.npz"
"""File in the output folder from which an interrupted run goes on."""


def heal(model: Model, context: Context, setting: Setting) -> list[Outcome]:
    """Return the model trained to answer as the original; the model itself, with the reason, where nothing is gained.

    Args:
        model: Pruned or changed.
        context: Its pictures teach, some held out; its original is the teacher.
        setting: What the candidate is called.

    Raises:
        UnsupportedError: If an op of the model cannot be trained.
        EdgeoptError: If there are too few pictures.
    """
    if context.replay:
        folder = context.replay.source / "candidates" / setting.name
        if not (folder / RECORD).is_file():
            return _as_it_is(model, Note(NoteKind.SKIPPED, f"{context.replay.source} has no trained model"))
        made, record = trained_before(folder, model, context.replay.source)
        text = f"the weights are those that {context.replay.source} trained: nothing was trained here"
        return _kept(context, setting, made, record, (Note(NoteKind.INFO, record.note), Note(NoteKind.INFO, text)))
    if not context.is_calibrated:
        why = "no finetune: there are no real pictures to learn from"
        return _as_it_is(model, Note(NoteKind.SKIPPED, why, "pass unlabelled ones with --calib"))
    teacher = _fed_alike(_teacher(context, setting), model, context)
    if teacher.fingerprint == model.fingerprint:
        why = "nothing to heal: no step before finetune changed what the model computes"
        return _as_it_is(model, Note(NoteKind.SKIPPED, why, "prune or activations leave something to heal"))
    try:
        require_alike(model, teacher)
    except UnsupportedError as error:
        return _as_it_is(model, Note(NoteKind.SKIPPED, f"no finetune: {error.problem}"))
    if context.searches_end <= monotonic():
        return _as_it_is(model, replace(out_of_time("finetune"), kind=NoteKind.SKIPPED))
    done = _trained(model, teacher, context)
    if not done.is_better:
        return _as_it_is(model, Note(NoteKind.SKIPPED, f"finetune: {done.note}"), *done.notes)
    record = Record.of(model, teacher, done)
    return _kept(context, setting, done.model, record, (Note(NoteKind.INFO, done.note), *done.notes), done.weights)


def _as_it_is(model: Model, *notes: Note) -> list[Outcome]:
    return [Outcome(model, {}, notes)]


def _trained(model: Model, teacher: Model, context: Context) -> Distilled:
    path = context.files.path(_CHECKPOINT)
    return distil(
        model,
        teacher,
        context.frames,
        context.recipe_of(model),
        context.training_s / 60,
        context.listener,
        path.parent,
        threads=context.threads,
        ends_at=context.searches_end,
        checkpoint=path.name,
    )


def _kept(
    context: Context, setting: Setting, model: Model, record: Record, notes: tuple[Note, ...], weights: int = 1
) -> list[Outcome]:
    context.files.write(f"candidates/{setting.name}/{RECORD}", record.to_json())
    return [Outcome(model, {"trained weights": weights}, notes)]


def _fed_alike(teacher: Model, student: Model, context: Context) -> Model:
    """Return the teacher for pictures as large as the student's: the step `resolution` may have made them smaller.

    Raises:
        UnsupportedError: If the teacher holds for its own size only.
    """
    recipe = context.recipe_of(student)
    if recipe == context.recipe_of(teacher):
        return teacher
    height, width = recipe.input.size
    return with_input_size(teacher, recipe.input.tensor, recipe.input.layout, (height, width))


def _teacher(context: Context, setting: Setting) -> Model:
    """Return the original as far as nothing was lost: simplified and fused, so that its tensors keep their names."""
    model = context.original
    for step in (simplify.STEP, fuse.STEP):
        model = next((outcome.model for outcome in step.make(model, context, setting)), model)
    return model
