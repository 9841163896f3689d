"""Accuracy of a model on labelled frames, and its answers on unlabelled ones. It changes no model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeopt.errors import InvalidFileError, Note, NoteKind
from edgeopt.executors import Session
from edgeopt.frames import Frames, open_frames
from edgeopt.labels import Labels, read_labels
from edgeopt.tasks import Accuracy, Task
from edgeopt.tensors import Tensors, TensorSpec
from edgeopt.text import plural

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
    if path.is_dir():
        raise InvalidFileError(f"{path} holds no labels", remedy="pass a COCO JSON or a CSV of labels with --eval")
    if not path.exists():
        raise InvalidFileError(f"{path} does not exist", remedy="pass a COCO JSON or a CSV of labels with --eval")
    labels = read_labels(path)
    folder = _picture_folder(path, labels)
    present = [i for i, file in enumerate(labels.files) if (folder / file).is_file()]
    missing = len(labels.files) - len(present)
    frames = open_frames(folder, [labels.files[i] for i in present])
    position = {file: i for i, file in enumerate(labels.files)}
    notes = list(frames.notes)
    if missing:
        notes.append(Note(NoteKind.WARNING, f"{plural(missing, 'labelled picture')} not in {folder}, left out"))
    return LabelledFrames(frames, labels.select([position[name] for name in frames.names]), tuple(notes))


def _picture_folder(path: Path, labels: Labels) -> Path:
    words = [path.stem, *path.stem.replace("-", "_").split("_")]
    places = [path.parent, path.parent / "images", *(path.parent / word for word in words)]
    places += [path.parent / "images" / word for word in words]
    for place in places:
        if any((place / file).is_file() for file in labels.files[:20]):
            return place
    looked = ", ".join(str(one) for one in dict.fromkeys(places) if one.is_dir())
    raise InvalidFileError(
        f"the labels in {path} match no picture (looked for {labels.files[0]!r} in {looked})",
        remedy="put the label file beside its pictures, or beside a folder named images",
    )


def answers(session: Session, task: Task, frames: Frames, tell: Progress | None = None, what: str = "") -> list[Any]:
    """Return the task's answer for each frame."""
    found = []
    for i, frame in enumerate(frames):
        inputs, geometry = task.preprocess(frame)
        found.append(task.postprocess(session.run(inputs), geometry))
        if tell:
            tell(what, i + 1, len(frames))
    return found


def evaluate(session: Session, task: Task, data: LabelledFrames, tell: Progress | None = None) -> Accuracy:
    """Return the recipe's metric on labelled frames.

    Args:
        session: The model.
        task: Made with `evaluating`, so that the metric's thresholds apply.
        data: Frames and labels.
        tell: Called after each frame.
    """
    return task.score(answers(session, task, data.frames, tell, "evaluate"), data.labels)


def model_inputs(task: Task, frames: Frames) -> Iterator[Tensors]:
    """Yield the model's inputs for each frame, one at a time."""
    for i in range(len(frames)):
        yield frames.tensors(i) if frames.tensors else task.preprocess(frames.read(i))[0]


def check_tensors(frames: Frames, inputs: Sequence[TensorSpec], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise unless an .npz of tensors holds the model's inputs.

    Args:
        frames: A source of tensors.
        inputs: What the model takes.
        shapes: The static shape of each, batch 1.

    Raises:
        InvalidFileError: If a name, a shape or a type differs; both sides are shown.
    """
    assert frames.tensors is not None
    found = frames.tensors(0)
    given = ", ".join(f"{name} {array.dtype} {'x'.join(map(str, array.shape))}" for name, array in found.items())
    wanted = {one.name: (one.dtype, tuple(shapes[one.name])) for one in inputs}
    if {name: (str(array.dtype), array.shape) for name, array in found.items()} != wanted:
        raise InvalidFileError(
            f"{frames.source} holds {given} a sample; the model takes {', '.join(map(str, inputs))}",
            remedy="name the arrays as the model's inputs, samples first, or store uint8 pictures as `images`",
        )
