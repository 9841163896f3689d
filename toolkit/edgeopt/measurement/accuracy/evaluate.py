"""Accuracy of a model on labelled frames, and its answers on unlabelled ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os.path import isdir, isfile  # unlike Path's, they are also True or False where nobody may look
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import InvalidFileError, Note, NoteKind, UnsupportedError
from edgeopt.executors import Session
from edgeopt.graph.states import Feedback
from edgeopt.graph.tensors import Tensors, TensorSpec
from edgeopt.recipes.frames import Frames, open_frames, synthetic_frames, synthetic_tensors
from edgeopt.recipes.labels import Labels, read_labels
from edgeopt.recipes.metrics import metrics_on_labels
from edgeopt.recipes.preprocess import Preprocess
from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.recognise import fixed_shapes, sample_shape
from edgeopt.system.files import list_folder
from edgeopt.system.text import plural, short
from edgeopt.tasks import Task

_MOST_STATE_BYTES = 2**28
"""Of all samples together."""
Progress = Callable[[str, int, int], None]
"""(what, done, of)"""


@dataclass(frozen=True)
class LabelledFrames:
    """Frames and what is true of them, in the same order."""

    frames: Frames
    labels: Labels
    notes: tuple[Note, ...] = ()


def open_labelled(path: Path) -> LabelledFrames:
    """Open a label file and the pictures it names.

    Pictures are looked for beside the label file, in its `images/`, in folders named after it (`instances_val.json`
    with `val/`, `val_labels.csv` with `val/`), and where the file names are paths of their own.

    Raises:
        InvalidFileError: If the labels match no picture, or none decodes.
    """
    labels = read_labels(path)
    folder = _picture_folder(path, labels)
    present = [i for i, file in enumerate(labels.files) if isfile(folder / file)]
    missing = len(labels.files) - len(present)
    frames = open_frames(folder, [labels.files[i] for i in present])
    position = {file: i for i, file in enumerate(labels.files)}
    notes = list(frames.notes)
    if missing:
        notes.append(Note(NoteKind.WARNING, f"{plural(missing, 'labelled picture')} not in {folder}, left out"))
    kept = labels.select([position[name] for name in frames.names])
    return LabelledFrames(frames, kept, (*notes, *kept.check(frames)))


def _picture_folder(path: Path, labels: Labels) -> Path:
    words = [path.stem, *path.stem.replace("-", "_").split("_")]
    places = [path.parent, path.parent / "images", *(path.parent / word for word in words)]
    places += [path.parent / "images" / word for word in words]
    for place in places:
        if any(isfile(place / file) for file in labels.files[:20]):
            return place
    folders = [one for one in dict.fromkeys(places) if isdir(one)]
    for one in folders:
        list_folder(one, remedy="correct its permissions")
    looked = ", ".join(map(str, folders))
    raise InvalidFileError(
        f"the labels in {path} match no picture (looked for {short(labels.files[0])} in {looked})",
        remedy="put the label file beside its pictures, or beside a folder named images",
    )


def answers(session: Session, task: Task, frames: Frames, tell: Progress | None = None, what: str = "") -> list[Any]:
    """Return the task's answer for each frame; of a stream, each frame gets the states of the one before it."""
    found, feedback = [], Feedback(frames.states)
    for i, frame in enumerate(frames):
        inputs, geometry = task.preprocess(frame)
        outputs = session.run(feedback.into(inputs))
        feedback.keep(outputs)
        found.append(task.postprocess(outputs, geometry))
        if tell:
            tell(what, i + 1, len(frames))
    return found


def why_no_proof(task: Task, reference: Sequence[Any], least_agreement: float) -> str:
    """Return why agreement with these answers proves nothing of another model; empty where it does.

    Args:
        task: Of the model.
        reference: Its answers, one a picture.
        least_agreement: What another model is asked for.
    """
    count = plural(len(reference), "picture")
    if reference and all(map(task.is_empty, reference)):
        return f"the model finds nothing on {count}, so that one which finds nothing at all agrees with it"
    if len(reference) < 2:
        return ""
    shifts = {1, max(len(reference) // 3, 1), max(len(reference) // 2, 1)}  # neighbours in a stream are alike
    mutual = min(task.agreement([*reference[n:], *reference[:n]], reference) for n in shifts)
    if mutual < least_agreement:
        return ""
    return f"the model answers all of {count} alike (agreement {mutual:.3f} of one with another)"


def with_states(frames: Frames, open_model: Callable[[], Session]) -> Frames:
    """Return a stream whose states are those that occur: fed back from sample to sample by the model itself.

    States that differ from sample to sample in the source are taken for real ones and stay.

    Args:
        frames: Any; what is no stream stays as it is.
        open_model: Opens the original.
    """
    take, states = frames.tensors, frames.states
    if not states or take is None or len(frames) < 2:
        return frames
    first = take(0)
    if sum(first[name].nbytes for name in states) * len(frames) > _MOST_STATE_BYTES:
        return frames
    if any(not np.array_equal(take(i)[name], first[name]) for i in range(1, len(frames)) for name in states):
        return frames
    session, feedback, fed_back = open_model(), Feedback(states), list[Tensors]()
    for i in range(len(frames)):
        inputs = feedback.into(take(i))
        fed_back.append({name: inputs[name] for name in states})
        feedback.keep(session.run(inputs))
    session.close()

    def read(index: int) -> Tensors:
        return {**take(index), **fed_back[index]}

    told = f"the states {', '.join(states)} are fed back over {plural(len(frames), 'sample')} in their order"
    return replace(frames, read=read, tensors=read, notes=(*frames.notes, Note(NoteKind.INFO, told)))


def model_inputs(task: Task, frames: Frames) -> Iterator[Tensors]:
    """Yield the model's inputs for each frame, one at a time."""
    return (task.preprocess(sample)[0] for sample in frames)


def fed(frames: Frames, recipe: Recipe, inputs: Sequence[TensorSpec]) -> Frames:
    """Return a source as a model takes it: tensors in the model's shapes and types, pictures as they are.

    Args:
        frames: Pictures, or tensors by name.
        recipe: Bound to the model.
        inputs: What the model takes.

    Raises:
        InvalidFileError: If an array is missing or unknown, or its shape or type does not fit.
        UnsupportedError: If a dimension stays free.
    """
    if frames.tensors is not None:
        _require_arrays(frames, inputs)
        return _fitted(frames, inputs, fixed_shapes(recipe, inputs), recipe.input.states)
    if not recipe.takes_arrays or recipe.preprocess != Preprocess() or not recipe.input.size:  # the task refuses them
        return frames
    note = Note(
        NoteKind.WARNING,
        f"recipe {recipe.name!r} does not say how a picture becomes the input: it goes in stretched, RGB, 0 to 255",
        "write scale, mean and std under [preprocess] in a recipe.toml",
    )
    return replace(frames, notes=(*frames.notes, note))


def synthetic(recipe: Recipe, inputs: Sequence[TensorSpec]) -> Frames:
    """Return pictures of random colour, or random tensors where the model takes no picture.

    Raises:
        UnsupportedError: If a dimension stays free.
    """
    if recipe.input.size:
        return synthetic_frames(recipe.input.size)
    return synthetic_tensors(inputs, fixed_shapes(recipe, inputs))


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


def _require_arrays(frames: Frames, inputs: Sequence[TensorSpec]) -> None:
    """Raise unless there is an array for each input, of its rank, and one size for each named dimension."""
    found = frames.shapes
    missing = [str(one) for one in inputs if one.name not in found]
    unknown = sorted(found.keys() - {one.name for one in inputs})
    if missing or unknown:
        parts = [f"lacks {', '.join(missing)}"] if missing else []
        parts += [f"holds {', '.join(unknown)}, which the model does not take"] if unknown else []
        raise InvalidFileError(
            f"{frames.source} {' and '.join(parts)}",
            remedy="name the arrays as the model's inputs, samples first, or store uint8 pictures as `images`",
        )
    known: dict[str, tuple[int, str]] = {}
    for one in inputs:
        shape = sample_shape(found[one.name], len(one.shape))
        if len(shape) != len(one.shape):
            raise _wrong_shape(frames, one, one.shape)
        for name, size in zip(one.shape, shape, strict=True):
            if isinstance(name, str) and known.setdefault(name, (size, one.name))[0] != size:
                told = f"{known[name][0]} in {known[name][1]} and {size} in {one.name}"
                raise InvalidFileError(f"{frames.source}: {name} is {told}", remedy=f"give {name} one size")


def _fitted(
    frames: Frames, inputs: Sequence[TensorSpec], shapes: Mapping[str, tuple[int, ...]], states: Mapping[str, str]
) -> Frames:
    assert frames.tensors is not None
    take, first = frames.tensors, frames.tensors(0)
    for one in inputs:
        if sample_shape(first[one.name].shape, len(one.shape)) != shapes[one.name]:
            raise _wrong_shape(frames, one, shapes[one.name])
    cast = [one for one in inputs if str(first[one.name].dtype) != one.dtype]
    told = ", ".join(f"{one.name} {first[one.name].dtype} as {one.dtype}" for one in cast)
    notes = (Note(NoteKind.INFO, f"{frames.source}: {told}"),) if cast else ()

    def fitted(index: int) -> Tensors:
        sample = take(index)
        return {one.name: _cast(sample[one.name].reshape(shapes[one.name]), one, frames.names[index]) for one in inputs}

    fitted(0)
    return replace(frames, read=fitted, tensors=fitted, notes=(*frames.notes, *notes), states=states)


def _wrong_shape(frames: Frames, wanted: TensorSpec, shape: Sequence[int | str | None]) -> InvalidFileError:
    array = (frames.tensors(0) if frames.tensors else {})[wanted.name]
    rest = [str(size or "?") for size in (shape[1:] if isinstance(wanted.shape[0], str) or shape[0] == 1 else shape)]
    return InvalidFileError(
        f"{frames.source}: a sample of {wanted.name} is {array.dtype} {'x'.join(map(str, array.shape))}; the model "
        f"takes {wanted}",
        remedy=f"store it as ({', '.join(['samples', *rest])})",
    )


def _cast(array: NDArray[Any], wanted: TensorSpec, where: str) -> NDArray[Any]:
    """Return an array in a model's type; what would become another number is refused.

    Real numbers are rounded to the model's precision; whole numbers, truth values and what turns into them must stay
    what they are.
    """
    if str(array.dtype) == wanted.dtype:
        return array
    if wanted.dtype in ("object", "string"):
        return array.astype(object)
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            made: NDArray[Any] = array.astype(wanted.dtype)
    except (TypeError, ValueError) as error:
        raise _wrong_type(array, wanted, where, str(error)) from error
    is_real = array.dtype.kind == made.dtype.kind == "f"
    if is_real and not np.isfinite(made).all():
        raise _wrong_type(array, wanted, where, f"{wanted.dtype} does not reach {np.abs(array).max():g}")
    if not is_real and not np.array_equal(made, array):
        raise _wrong_type(array, wanted, where, "numbers would change")
    return made


def _wrong_type(array: NDArray[Any], wanted: TensorSpec, where: str, reason: str) -> InvalidFileError:
    return InvalidFileError(
        f"{where}: {wanted.name} is {array.dtype}, the model takes {wanted.dtype}: {reason}",
        remedy=f"store {wanted.name} as {wanted.dtype}",
    )
