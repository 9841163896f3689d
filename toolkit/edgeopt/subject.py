"""What is measured: a model or a bundle, opened here, and the pictures it is fed. It times nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from edgeopt import executors, plugins, tasks
from edgeopt.benchmarking.workers import Pipeline
from edgeopt.bundle import is_bundle
from edgeopt.devices import find_device
from edgeopt.environment import physical_cores
from edgeopt.errors import EdgeoptError, Note, NoteKind, UnavailableError
from edgeopt.evaluate import fed, synthetic
from edgeopt.executors import Session, SessionOptions, Source, arithmetic
from edgeopt.frames import Frames, open_frames
from edgeopt.model import find_model, load_model
from edgeopt.recipe import Recipe
from edgeopt.recognise import TENSORS, Shapes, choose_recipe
from edgeopt.runtime import Runtime
from edgeopt.target import Target
from edgeopt.tasks import Task
from edgeopt.tensors import TensorSpec


@dataclass(frozen=True)
class Subject:
    """A task and a loaded session, and how to open them once more."""

    name: str
    recipe: Recipe
    target: Target
    task: Task
    session: Session
    threads: int
    notes: tuple[Note, ...]
    source: Source = b""
    """What the session was opened from."""
    path: Path = Path()
    """The file on disk."""
    options: SessionOptions = field(default_factory=SessionOptions)
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    opset: int | None = None
    executor: str = "onnxruntime"
    """What runs it; an artefact of a bundle may have another one than the target."""
    brings_target: bool = False
    """Whether it is a bundle, which no target can be given to."""

    def open_again(self, entries: Mapping[str, str] | None = None) -> Pipeline:
        """Return a task and a session of their own, for another worker or with other session entries.

        Args:
            entries: Put over the session's own.

        Raises:
            EdgeoptError: If the session does not open a second time.
        """
        options = replace(self.options, entries={**self.options.entries, **(entries or {})})
        session = plugins.load(executors, self.executor).EXECUTOR.open(self.source, options)
        task = plugins.load(tasks, self.recipe.task).TASK(self.recipe, self.inputs, self.outputs, False)
        return task, session


def _require_real_time(session: Session, target: str) -> None:
    """A simulator's time is never a latency."""
    if getattr(session, "simulated", False):
        session.close()
        raise UnavailableError(
            f"latency: not measured (no device): {target} is simulated on this machine",
            remedy="run edgeopt bench on the device itself",
        )


def open_subject(
    model: str,
    *,
    target: str,
    recipe: str | None,
    threads: int,
    workers: int = 1,
    entries: Mapping[str, str] | None = None,
    shapes: Shapes | None = None,
) -> Subject:
    """Open a bundle, a model file or a shipped model for measuring.

    Args:
        model: Path or shipped name.
        target: For a model; a bundle brings its own.
        recipe: For a model; a bundle brings its own.
        threads: 0: the target's, or the physical cores, shared by the workers.
        workers: How many sessions will run at once.
        entries: Session entries over the target's own.
        shapes: Of the tensors that it will be fed; None: pictures.

    Raises:
        EdgeoptError: If it cannot be opened.
    """
    if is_bundle(Path(model)):
        return _open_bundle(model, threads, workers, entries or {})
    device, path = find_device(target), find_model(model)
    _require_entries(device.executor, device.name, entries or {})
    loaded = load_model(path)
    choice = choose_recipe(recipe, path, loaded.inputs, loaded.outputs, loaded.metadata, shapes)
    used = threads or _threads_of(device, workers)
    options = SessionOptions(device.providers, used, {**device.options, **(entries or {})})
    session = plugins.load(executors, device.executor).EXECUTOR.open(loaded.data, options)
    _require_real_time(session, device.name)
    task = plugins.load(tasks, choice.recipe.task).TASK(choice.recipe, loaded.inputs, loaded.outputs, False)
    notes = choice.notes
    if reason := device.why_not_here():
        notes += (Note(NoteKind.WARNING, f"this is not the target: {reason}", "these times are this machine's"),)
    return Subject(
        name=loaded.name,
        recipe=choice.recipe,
        target=device,
        task=task,
        session=session,
        threads=used,
        notes=notes,
        source=loaded.data,
        path=path,
        options=options,
        inputs=loaded.inputs,
        outputs=loaded.outputs,
        opset=loaded.opset,
        executor=device.executor,
    )


def _require_entries(executor: str, name: str, entries: Mapping[str, str]) -> None:
    if entries and executor != "onnxruntime":
        raise EdgeoptError(
            f"{', '.join(entries)} are for the executor onnxruntime, and {name} runs on {executor}",
            remedy="leave --spin out, or choose another --target",
        )


def _open_bundle(model: str, threads: int, workers: int, entries: Mapping[str, str]) -> Subject:
    runtime = Runtime.load(model, threads=threads)
    bundle, session = runtime.bundle, runtime.session
    artefact = bundle.artefacts[len(runtime.notes)]  # each one that was refused left one note
    engine, path = artefact if artefact.executor else bundle.target, bundle.folder / artefact.file
    if runtime.notes and bundle.target.device != "cpu":
        session.close()
        raise UnavailableError(
            f"latency: not measured (no device): {runtime.notes[0].detail}; only {artefact.file} opens, on the CPU",
            remedy=f"run edgeopt bench on the device itself; edgeopt bench {path} --recipe R times the fallback here",
        )
    _require_entries(engine.executor, model, entries)
    used = threads or _threads_of(bundle.target, workers)
    options = SessionOptions(
        engine.providers, used, {**engine.options, **entries}, precision=arithmetic(artefact.precision)
    )
    if entries or (workers > 1 and not threads):  # the runtime opens it as an app would: alone, as the target says
        session.close()
        session = plugins.load(executors, engine.executor).EXECUTOR.open(path, options)
    _require_real_time(session, bundle.target.name)
    return Subject(
        name=model,
        recipe=bundle.recipe,
        target=bundle.target,
        task=runtime.task,
        session=session,
        threads=used,
        notes=runtime.notes,
        source=path,
        path=path,
        options=options,
        inputs=session.inputs,
        outputs=session.outputs,
        executor=engine.executor,
        brings_target=True,
    )


def _threads_of(target: Target, workers: int) -> int:
    return target.threads or max(1, physical_cores() // workers)


def choose_frames(
    recipe: Recipe, source: str | Path | None, inputs: Sequence[TensorSpec] = ()
) -> tuple[Frames, tuple[Note, ...]]:
    """Return the pictures or tensors asked for, else the recipe's own, else synthetic ones with a note.

    Args:
        recipe: Bound to the model.
        source: A folder of pictures, a picture, a video or an .npz; None: the recipe's own.
        inputs: What the model takes.

    Raises:
        EdgeoptError: If the source holds nothing that the model takes.
    """
    shipped = recipe.path_of(recipe.evaluation.calib)
    if source is None and (shipped is None or not recipe.folder.name):
        is_fed = not recipe.input.size
        told = "tensors: numbers from 0 to 1" if is_fed else "pictures: postprocess sees other boxes"
        if recipe.task == TENSORS and not is_fed:
            told = "pictures"
        hint = f"pass --source with {'an .npz of ' if is_fed else ''}real ones"
        return synthetic(recipe, inputs), (Note(NoteKind.WARNING, f"synthetic {told}", hint),)
    frames = open_frames(Path(source) if source is not None else shipped or Path())
    if frames.tensors is not None and recipe.task != TENSORS:
        raise EdgeoptError(
            f"{frames.source} holds tensors, no pictures: recipe {recipe.name!r} is timed from the picture on",
            remedy=f"pass pictures or a video, or --recipe {TENSORS} to time the model alone",
        )
    frames = fed(frames, recipe, inputs)
    return frames, frames.notes


def shapes_of(source: str | Path | None) -> Shapes | None:
    """Return the shapes of one sample where a source holds tensors; None where it holds anything else."""
    if source is None or Path(source).suffix.lower() != ".npz":
        return None
    return open_frames(Path(source)).shapes or None
