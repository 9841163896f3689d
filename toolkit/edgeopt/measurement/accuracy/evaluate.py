"""Accuracy of a model on labelled frames, and its answers on unlabelled ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from os.path import isfile  # unlike Path's, they are also True or False where nobody may look
from pathlib import Path
from typing import Any

import numpy as np

from edgeopt.errors import Note, NoteKind, UnsupportedError
from edgeopt.executors import Session
from edgeopt.graph.facts.states import Feedback
from edgeopt.graph.tensors import Tensors, TensorSpec
from edgeopt.measurement.accuracy.label_folders import beside_pictures
from edgeopt.recipes.inputs.feeding import fed
from edgeopt.recipes.inputs.frames import Frames, open_frames
from edgeopt.recipes.labels import Labels, read_labels
from edgeopt.recipes.metrics import metrics_on_labels
from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.sources.text import frames_of_texts
from edgeopt.system.processes.time_limit import require_time
from edgeopt.system.text import plural
from edgeopt.tasks import Task

_MOST_STATE_BYTES = 2**28
"""Most state bytes of all samples together."""
Progress = Callable[[str, int, int], None]
"""(what, done, of)"""


@dataclass(frozen=True)
class LabelledFrames:
    """Frames and what is true of them, in the same order."""

    frames: Frames
    labels: Labels
    notes: tuple[Note, ...] = ()


def open_labelled(path: Path, recipe: Recipe | None = None, inputs: Sequence[TensorSpec] = ()) -> LabelledFrames:
    """Open a label file and the pictures or sounds it names, or the texts it holds.

    Sounds of a stream are opened as the windows that a model hears.

    Pictures are looked for beside the label file or folder and beside its folder, in `images/` there, in folders named
    after it (`instances_val.json` with `val/`, `val_labels.csv` with `val/`, `masks/val/` with `images/val/`), and
    where the file names are paths of their own.

    Args:
        path: Of the labels.
        recipe: Bound to the model; None: pictures.
        inputs: What the model takes.

    Raises:
        InvalidFileError: If the labels match no picture, or none decodes.
    """
    read = read_labels(path)
    if read.texts is not None:
        return LabelledFrames(frames_of_texts(read.texts, read.files, path), read)
    folder, labels = beside_pictures(read.source if read.source != Path() else path, read)
    present = [i for i, file in enumerate(labels.files) if isfile(folder / file)]
    missing = len(labels.files) - len(present)
    frames = open_frames(folder, [labels.files[i] for i in present])
    position = {file: i for i, file in enumerate(labels.files)}
    notes = [*labels.notes, *frames.notes]
    if missing:
        notes.append(Note(NoteKind.WARNING, f"{plural(missing, 'labelled picture')} not in {folder}, left out"))
    kept = labels.select([position[name] for name in frames.names]).sized_in(folder)
    notes += (*kept.check(frames), *(kept.check_classes(recipe.class_names) if recipe is not None else ()))
    if recipe is not None and recipe.kind == "sound":
        frames = fed(frames, recipe, inputs)
        kept = kept.of_parts(frames.parts) if frames.parts else kept
    return LabelledFrames(frames, kept, tuple(notes))


def answers(
    session: Session,
    task: Task,
    frames: Frames,
    tell: Progress | None = None,
    what: str = "",
    *,
    hear: Callable[[Tensors], None] | None = None,
) -> list[Any]:
    """Return the task's answer for each frame; of a stream, each frame gets the states of the one before it.

    Args:
        session: Of the model.
        task: Of the model.
        frames: What is answered.
        tell: Called after each frame.
        what: It is told.
        hear: Called with the outputs of each run.

    Raises:
        OutOfTime: At the end of a time limit.
    """
    result, feedback = [], Feedback(frames.states)
    for i, frame in enumerate(frames.decoded_by(task.decoding)):
        require_time()
        if frames.begins_stream(i):
            feedback.reset()
        inputs, geometry = task.preprocess(frame)
        outputs = session.run(feedback.into(inputs))
        feedback.keep(outputs)
        if hear:
            hear(outputs)
        result.append(task.postprocess(outputs, geometry))
        if tell:
            tell(what, i + 1, len(frames))
    return result


def why_no_proof(task: Task, reference: Sequence[Any], least_agreement: float, kind: str = "picture") -> str:
    """Return why agreement with these answers proves nothing of another model; empty where it does.

    Args:
        task: Of the model.
        reference: Its answers, one a picture.
        least_agreement: What another model is asked for.
        kind: What it answered, as `Frames.kind` calls it.
    """
    count = plural(len(reference), kind)
    if reference and not any(map(task.count, reference)):
        return f"the model finds nothing on {count}, so that one which finds nothing at all agrees with it"
    if len(reference) < 2:
        return ""
    mutual = agreement_of_others(task, reference)
    if mutual < least_agreement:
        return ""
    return f"the model answers all of {count} alike (agreement {mutual:.3f} of one with another)"


def agreement_of_others(task: Task, reference: Sequence[Any]) -> float:
    """Return how far answers agree with those to other samples: what a model reaches that has nothing in common.

    Args:
        task: Of the model.
        reference: Its answers, two at least.
    """
    shifts = {1, max(len(reference) // 3, 1), max(len(reference) // 2, 1)}  # neighbours in a stream are alike
    return min(task.agreement([*reference[n:], *reference[:n]], reference) for n in shifts)


def with_states(frames: Frames, open_model: Callable[[], Session], task: Task | None = None) -> Frames:
    """Return a stream whose states are those that occur: fed back from sample to sample by the model itself.

    States that differ from sample to sample in the source are taken for real ones and stay.

    Args:
        frames: Any; what is no stream stays as it is.
        open_model: Opens the original.
        task: Of the original, for frames that are no tensors.
    """
    take, states = frames.tensors, frames.states
    if task is not None and take is None:
        feed = task.preprocess

        def take(index: int) -> Tensors:
            return feed(frames.read(index))[0]

    if not states or take is None or len(frames) < 2:
        return frames
    first = take(0)
    if sum(first[name].nbytes for name in states) * len(frames) > _MOST_STATE_BYTES:
        return frames
    if any(not np.array_equal(take(i)[name], first[name]) for i in range(1, len(frames)) for name in states):
        return frames
    session, feedback, fed_back = open_model(), Feedback(states), list[Tensors]()
    for i in range(len(frames)):
        if frames.begins_stream(i):
            feedback.reset()
        inputs = feedback.into(take(i))
        fed_back.append({name: inputs[name] for name in states})
        feedback.keep(session.run(inputs))
    session.close()

    text = f"the states {', '.join(states)} are fed back over {plural(len(frames), 'sample')} in their order"
    notes = (*frames.notes, Note(NoteKind.INFO, text))
    if frames.tensors is None:
        return replace(frames, carried=fed_back.__getitem__, notes=notes)

    def read(index: int) -> Tensors:
        return {**take(index), **fed_back[index]}

    return replace(frames, read=read, tensors=read, notes=notes)


def model_inputs(task: Task, frames: Frames) -> Iterator[Tensors]:
    """Yield the model's inputs for each frame, one at a time, with the states that occur where they are known."""
    carried = frames.carried or (lambda _: {})
    return ({**task.preprocess(sample)[0], **carried(i)} for i, sample in enumerate(frames.decoded_by(task.decoding)))


def require_metric(recipe: Recipe, asked: str | Path | None) -> None:
    """Raise where labels are given and the recipe knows no metric on them: before minutes are spent.

    Raises:
        UnsupportedError: If so.
    """
    if asked and not recipe.reads_labels:
        raise UnsupportedError(
            f"recipe {recipe.name!r} knows no metric on labels: its {recipe.evaluation.metric} compares outputs only",
            remedy=f"leave --eval out, or pass a recipe whose metric is one of {', '.join(metrics_on_labels())}",
        )
