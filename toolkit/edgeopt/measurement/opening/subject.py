"""The subject of a measurement: a model or a bundle, opened here, its pictures, and the facts that name it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeopt.errors import EdgeoptError, Note, NoteKind, UnavailableError
from edgeopt.executors import Session, SessionOptions, Source
from edgeopt.graph.files.outside import Outside, sha256_of
from edgeopt.graph.tensors import Tensors, TensorSpec
from edgeopt.measurement.common_options import DEFAULT_TARGET
from edgeopt.measurement.load.workers import Pipeline
from edgeopt.measurement.opening.given import open_given
from edgeopt.measurement.turns.fed_back import feed_back
from edgeopt.recipes.binding import ARRAYS_RECIPE, notes_of_guesses
from edgeopt.recipes.inputs.feeding import fed, synthetic
from edgeopt.recipes.inputs.frames import Frames, open_frames
from edgeopt.recipes.inputs.input_shapes import Shapes
from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.runtime.bundle import is_bundle, parse_bundle
from edgeopt.runtime.opening import Opening, opening_for
from edgeopt.runtime.runtime import Runtime
from edgeopt.system.declared.target import Target
from edgeopt.system.machine.environment import Environment, read_environment
from edgeopt.system.machine.place import current_place, machine_in_words
from edgeopt.system.machine.threads import engine_threads
from edgeopt.tasks import Task, find_task, make_task


@dataclass(frozen=True)
class Subject:
    """A task and a loaded session, and how to open them once more."""

    name: str
    recipe: Recipe
    target: Target
    task: Task
    session: Session
    opening: Opening
    """How the session was opened; an artefact of a bundle may run on another engine than the target's."""
    notes: tuple[Note, ...]
    source: Source = b""
    """Bytes, path or weights from which the session was opened."""
    path: Path = Path()
    """The file on disk."""
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    opset: int | None = None
    brings_target: bool = False
    """Whether it is a bundle."""
    picked_target: str = ""
    """Target of a bundle for several that somebody asked for; empty: the best here was picked, or it is for one."""
    has_weights_beside: bool = False
    """Whether it is a bundle with a model above 2 GB."""

    @property
    def is_large(self) -> bool:
        """Whether its weights lie in a file of their own, as those of models above 2 GB do."""
        if current_place() is not None:  # this process holds none of them
            return False
        return isinstance(self.source, Outside) or self.has_weights_beside

    @property
    def executor(self) -> str:
        """The name of the executor."""
        return self.opening.executor

    @property
    def options(self) -> SessionOptions:
        """How its session is set."""
        return self.opening.options

    @property
    def threads(self) -> int:
        """The threads of the session."""
        return self.opening.options.threads

    def environment(
        self,
        facts: Mapping[str, Any] | None = None,
        info: Mapping[str, Any] | None = None,
        inputs: Tensors | None = None,
    ) -> Environment:
        """Return everything that figures of this subject depend on: machine, software, model and session.

        Args:
            facts: More that a comparison is about.
            info: More that refuses no comparison.
            inputs: What ran; hashed.
        """
        own = subject_facts(
            self.source, self.options, self.session, executor=self.executor, inputs=inputs, opset=self.opset
        )
        return read_environment({**own, "recipe": self.recipe.name, **(facts or {})}, info)

    def open_again(self, entries: Mapping[str, str] | None = None) -> Pipeline:
        """Return a task and a session of their own, for another worker or with other session entries.

        Args:
            entries: Put over the session's own.

        Raises:
            EdgeoptError: If the session does not open a second time.
        """
        session = self.opening.with_entries(entries or {}).open(self.source)
        task = make_task(self.recipe, self.inputs, self.outputs, evaluating=False)
        return task, feed_back(session, self.recipe.input.states)

    @property
    def pipeline(self) -> Pipeline:
        """The task and the session as they are timed: of a recurrent model a stream, whose states are fed back."""
        return self.task, feed_back(self.session, self.recipe.input.states)


def _require_real_time(session: Session, target: str) -> None:
    """A simulator's time is never a latency."""
    if session.simulated:
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
    sizes: Shapes | None = None,
) -> Subject:
    """Open a bundle, a model file or a shipped model for measuring.

    Args:
        model: Path or shipped name.
        target: For a model; a bundle brings its own, and one for several targets is opened for this one, unless it is
            the default.
        recipe: For a model; a bundle brings its own, but for `tensors`, which times any model alone.
        threads: 0: the target's, or the fast cores, shared by the workers.
        workers: How many sessions will run at once.
        entries: Session entries over the target's own.
        shapes: Of the tensors that it will be fed; None: pictures.
        sizes: Whole shapes of inputs by name, for what a model leaves free; a bundle has its own.

    Raises:
        EdgeoptError: If it cannot be opened.
    """
    if is_bundle(Path(model)):
        chosen = parse_bundle(Path(model)).others and target != DEFAULT_TARGET
        return _open_bundle(model, recipe, threads, workers, entries or {}, shapes, target if chosen else "")
    given = open_given(model, target, recipe, sizes=sizes, fed=shapes)
    device, loaded, choice = given.target, given.model, given.choice
    _require_entries(device.executor, device.name, entries or {})
    used = engine_threads(threads, device.threads, workers)
    opening = opening_for(device, device.float_precision, used).with_entries(entries or {})
    session = opening.open(loaded.source)
    _require_real_time(session, device.name)
    task = make_task(choice.recipe, loaded.inputs, loaded.outputs, evaluating=False)
    notes = (*choice.notes, *_not_the_target(device))
    return Subject(
        name=loaded.name,
        recipe=choice.recipe,
        target=device,
        task=task,
        session=session,
        opening=opening,
        notes=notes,
        source=loaded.source,
        path=given.path,
        inputs=loaded.inputs,
        outputs=loaded.outputs,
        opset=loaded.opset,
    )


def _not_the_target(target: Target) -> tuple[Note, ...]:
    """Return whose times are measured where this machine is another than the target."""
    reason = target.why_not_here()
    whose = f"these times are {machine_in_words()}'s"
    return (Note(NoteKind.WARNING, f"this is not the target: {reason}", whose),) if reason else ()


def _require_entries(executor: str, name: str, entries: Mapping[str, str]) -> None:
    if entries and executor != "onnxruntime":
        raise EdgeoptError(
            f"{', '.join(entries)} are for the executor onnxruntime, and {name} runs on {executor}",
            remedy="leave --spin out, or choose another --target",
        )


def _open_bundle(
    model: str,
    recipe: str | None,
    threads: int,
    workers: int,
    entries: Mapping[str, str],
    shapes: Shapes | None,
    target: str,
) -> Subject:
    runtime = Runtime.load(model, threads=threads or None, warmup=False, target=target)
    bundle, session, opening, path = runtime.bundle, runtime.session, runtime.opening, _path_of(runtime)
    if runtime.artefact is not bundle.artefacts[0] and bundle.target.device != "cpu":
        session.close()
        raise UnavailableError(
            f"latency: not measured (no device): {runtime.notes[0].detail}; only {path.name} opens, on the CPU",
            remedy=f"run edgeopt bench on the device itself; edgeopt bench {path} --recipe R times the fallback here",
        )
    _require_entries(opening.executor, model, entries)
    if entries or (workers > 1 and not threads):  # the runtime opens it as an app would: alone
        session.close()
        used = threads or min(opening.options.threads, engine_threads(0, workers=workers))
        opening = opening.with_entries(entries).with_threads(used)
        session = opening.open(path)
    _require_real_time(session, bundle.target.name)
    read_as, notes = bundle.recipe, (*runtime.notes, *notes_of_guesses(bundle.recipe))
    if recipe == ARRAYS_RECIPE:
        choice = choose_recipe(recipe, None, session.inputs, session.outputs, {}, shapes)
        read_as, notes = choice.recipe, (*runtime.notes, *choice.notes)
    notes = (*notes, *_not_the_target(bundle.target))
    return Subject(
        name=model,
        recipe=read_as,
        target=bundle.target,
        task=make_task(read_as, session.inputs, session.outputs, evaluating=False),
        session=session,
        opening=opening,
        notes=notes,
        source=path,
        path=path,
        inputs=session.inputs,
        outputs=session.outputs,
        brings_target=True,
        picked_target=target,
        has_weights_beside=runtime.artefact.weights is not None,
    )


def _path_of(runtime: Runtime) -> Path:
    return runtime.bundle.path_of(runtime.artefact)


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
        is_picture = recipe.kind == "picture"
        is_fed = is_picture and not recipe.input.size
        text = "tensors: numbers from 0 to 1" if is_fed else f"{recipe.kind}s"
        if is_picture and not is_fed and find_task(recipe.task).time_follows_content:
            text += ": postprocess may take longer on real ones"
        hint = f"pass --source with {'an .npz of ' if is_fed else ''}real ones"
        return synthetic(recipe, inputs), (Note(NoteKind.WARNING, f"synthetic {text}", hint),)
    frames = open_frames(Path(source) if source is not None else shipped or Path())
    if frames.tensors is not None and not recipe.takes_arrays:
        raise EdgeoptError(
            f"{frames.source} holds tensors, no pictures: recipe {recipe.name!r} is timed from the picture on",
            remedy=f"pass pictures or a video, or --recipe {ARRAYS_RECIPE} to time the model alone",
        )
    frames = fed(frames, recipe, inputs)
    return frames, frames.notes


def shapes_of(source: str | Path | None) -> Shapes | None:
    """Return the shapes of one sample where a source holds tensors; None where it holds anything else."""
    if source is None or not (Path(source).suffix.lower() == ".npz" or any(Path(source).glob("*.npz"))):
        return None
    return open_frames(Path(source)).shapes or None


_CHUNK = 1 << 20


def subject_facts(
    source: Source,
    options: SessionOptions,
    session: Session | None = None,
    *,
    executor: str = "onnxruntime",
    inputs: Tensors | None = None,
    opset: int | None = None,
) -> dict[str, Any]:
    """Return plain facts for `read_environment(subject=...)`.

    Args:
        source: The model.
        options: How the session was opened.
        session: The session itself: where its nodes run, and its tensors.
        executor: The executor's name.
        inputs: What ran; hashed.
        opset: Of the model, where the caller has read it.
    """
    facts: dict[str, Any] = {
        "model.sha256": _hash(source),
        "model.opset": opset,
        "session.executor": executor,
        "session.providers": list(options.providers),
        "session.threads": options.threads,
        "session.cores": options.cores or "any",
        "session.entries": dict(sorted(options.entries.items())),
        "session.spins": options.entries.get("session.intra_op.allow_spinning", "1") == "1",
    }
    if session is not None and session.program:
        facts["session.program"] = session.program
    if session is not None:
        placed = Counter((node.provider, node.op) for node in session.placement())
        facts["session.placement"] = {f"{provider} {op}": n for (provider, op), n in sorted(placed.items())}
        facts["model.inputs"] = [str(spec) for spec in session.inputs]
        facts["model.outputs"] = [str(spec) for spec in session.outputs]
    if inputs is not None:
        facts["inputs"] = _describe(inputs)
    return facts


def _hash(source: Source) -> str:
    if isinstance(source, bytes):
        return hashlib.sha256(source).hexdigest()
    if isinstance(source, Outside):
        return hashlib.sha256(
            b"".join((source.graph, *(sha256_of(path).encode() for path in source.files)))
        ).hexdigest()
    digest = hashlib.sha256()
    with source.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _describe(inputs: Tensors) -> Mapping[str, Any]:
    return {
        name: {
            "dtype": str(array.dtype),
            "shape": list(array.shape),
            "sha256": hashlib.sha256(array.tobytes()).hexdigest(),
        }
        for name, array in sorted(inputs.items())
    }
