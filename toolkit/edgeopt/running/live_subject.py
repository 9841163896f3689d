"""The subject of `edgeopt run`, one model or a pipeline, and how its answers are told and drawn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, runtime_checkable

import numpy as np

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.graph.files.exported_folder import exported_in
from edgeopt.graph.tensors import Frame
from edgeopt.measurement.opening.given import open_given
from edgeopt.measurement.opening.subject import shapes_of
from edgeopt.measurement.pipelines.code import load_calls
from edgeopt.measurement.pipelines.given import write_original
from edgeopt.recipes.binding import notes_of_guesses
from edgeopt.recipes.drawings import HEIGHT
from edgeopt.running.plain import as_text, plain
from edgeopt.runtime.bundle import is_bundle, parse_bundle
from edgeopt.runtime.outputs.sounds import DrawAll
from edgeopt.runtime.pipelines.bundle import is_pipeline_bundle, read_pipeline
from edgeopt.runtime.pipelines.crop import Crops
from edgeopt.runtime.pipelines.description import FRAME, Stage, is_description
from edgeopt.runtime.pipelines.pipeline import Answer, Pipeline
from edgeopt.runtime.runtime import Runtime
from edgeopt.system.disk import assets
from edgeopt.system.machine.threads import engine_threads
from edgeopt.system.text import plural
from edgeopt.tasks import Task

_NOT_DRAWN = "leave --save and --view out, or pass --json"
_HELD = {"sample": "tensors"}


class Teller(Protocol):
    """Tells the answers of a model or a pipeline, which need not be loaded any more."""

    def as_text(self, answer: Any) -> str:
        """Return an answer in a line."""
        ...

    def as_json(self, answer: Any) -> dict[str, Any]:
        """Return plain values by name, all finite or None."""
        ...


class LiveSubject(Protocol):
    """A model or a pipeline, loaded."""

    @property
    def teller(self) -> Teller:
        """Tells its answers."""
        ...

    @property
    def served(self) -> Runtime | Pipeline:
        """The runtime or pipeline that a stream runs."""
        ...

    @property
    def notes(self) -> tuple[Note, ...]:
        """The notes for the user."""
        ...

    @property
    def budget_ms(self) -> float:
        """The budget of a frame, where nobody asks for another."""
        ...

    def why_no_answer(self, frame: Any, answer: Any) -> str:
        """Return why a frame has no answer; empty: it has one, or nobody knows."""
        ...

    def require_drawable(self, kind: str, source: str) -> None:
        """Raise where answers cannot be drawn.

        Args:
            kind: Of the source's samples, as `Frames.kind` calls it.
            source: As the user wrote it.

        Raises:
            EdgeoptError: What cannot be drawn.
        """
        ...

    def draw(self, frame: Any, answer: Any) -> Frame:
        """Return a copy of the frame that shows the answer; a small one becomes larger, so that texts can be read."""
        ...

    @property
    def draw_windows(self) -> DrawAll | None:
        """Draws the windows of one sound as one; None: each is drawn by itself."""
        ...


@runtime_checkable
class Joined(Protocol):
    """A task whose answers to one window after another can be put together."""

    def joined(self, frames: Sequence[Any], answers: Sequence[Any]) -> tuple[Any, Any]:
        """Return the windows of one sound as one, and their answers."""
        ...


@contextmanager
def opened_subject(
    bundle: Path, source: str, code: Path | None, threads: int | None, recipe: str | None, target: str | None
) -> Iterator[LiveSubject]:
    """Open what is run, and close it.

    Args:
        bundle: Of a model or a pipeline; or a model as it is, by path or shipped name.
        source: What it will run on: arrays fix what a model leaves free.
        code: The folder of the functions that a pipeline calls.
        threads: Of each model; None: as measured.
        recipe: Of a model as it is: shipped name or path; None: read from the model.
        target: Of a model as it is: shipped name or path; None: this processor. Of a bundle for several targets the one
            that runs; None: the best here.

    Raises:
        EdgeoptError: If it is none, or does not open here.
    """
    if not _is_model(bundle):
        is_for_one = target is not None and not (is_bundle(bundle) and parse_bundle(bundle).others)
        if recipe is not None or is_for_one:
            option = "--recipe" if recipe is not None else "--target"
            raise EdgeoptError(f"{bundle} is a bundle, which brings its own", remedy=f"leave {option} out")
        subject = _of_bundle(bundle, code, threads, target or "")
        with subject.served:
            yield subject
        return
    _refuse_code(code)
    given = open_given(str(bundle), target or "cpu", recipe, fed=shapes_of(source))
    with TemporaryDirectory() as folder:
        write_original(Path(folder), given, engine_threads(threads or 0, given.target.threads))
        runtime = Runtime.load(Path(folder), threads=threads)
        reading = Note(NoteKind.INFO, f"read by recipe {given.recipe.name}: {given.choice.reason}")
        with runtime:
            yield _Model(runtime, (reading, *given.choice.notes))


def _is_model(path: Path) -> bool:
    """Return whether a path names a model as it is: an ONNX file, a folder that an exporter wrote, a shipped one."""
    if is_bundle(path) or is_pipeline_bundle(path) or is_description(path):
        return False
    if path.is_dir():
        return exported_in(path) is not None
    return path.is_file() or path.suffix.lower() == ".onnx" or str(path) in assets.model_folders()


def _of_bundle(bundle: Path, code: Path | None, threads: int | None, target: str) -> LiveSubject:
    if is_pipeline_bundle(bundle):
        description = read_pipeline(bundle).description
        return _Whole(Pipeline.load(bundle, stages=load_calls(description, code), threads=threads))
    if is_description(bundle):
        raise EdgeoptError(
            f"{bundle} says what a pipeline is, and run takes its bundle",
            remedy=f"make one: edgeopt optimize {bundle} --target cpu",
        )
    _refuse_code(code)
    runtime = Runtime.load(bundle, threads=threads, target=target)
    return _Model(runtime, notes_of_guesses(runtime.bundle.recipe))


def _refuse_code(code: Path | None) -> None:
    if code is not None:
        raise EdgeoptError("--code is for a pipeline, and a single model calls nothing", remedy="leave it out")


class _Model:
    def __init__(self, runtime: Runtime, notes: tuple[Note, ...] = ()) -> None:
        self.served, self._task = runtime, runtime.task
        self.teller: Teller = self._task
        self.notes = (*notes, *runtime.notes)
        self.budget_ms = runtime.bundle.target.budget_ms

    def why_no_answer(self, frame: Any, answer: Any) -> str:
        return "" if self._task.count(answer) else self.served.why_no_answer(frame)

    def require_drawable(self, kind: str, source: str) -> None:
        if kind not in self._task.draws:
            task = self.served.bundle.recipe.task
            text = f"answers of task {task} to {_HELD.get(kind, f'{kind}s')} have no picture ({source})"
            raise EdgeoptError(text, remedy=_NOT_DRAWN)

    def draw(self, frame: Any, answer: Any) -> Frame:
        return self._task.draw(frame, answer, _height(frame))

    @property
    def draw_windows(self) -> DrawAll | None:
        task = self._task
        if not isinstance(task, Joined):
            return None
        return lambda windows, answers: self.draw(*task.joined(windows, answers))


@dataclass(frozen=True, slots=True)
class _StagesTeller:
    """Tells what the stages of a pipeline answered."""

    stages: tuple[Stage, ...]
    tasks: Mapping[str, Task]
    """Tasks by the stage whose model has them."""

    def as_text(self, answer: Answer) -> str:
        """Return what the last stage answers."""
        last = self.stages[-1]
        task = self.tasks.get(last.name)
        if isinstance(answer.last, Crops):
            return plural(len(answer.last), "picture")
        if task is None:
            return as_text(answer.last)
        if isinstance(answer.last, list):
            return " | ".join(map(task.as_text, answer.last)) or "nothing"
        return task.as_text(answer.last)

    def as_json(self, answer: Answer) -> dict[str, Any]:
        """Return `last`, the answer of the last stage, `stages`, those of all by name, and `runs` of each model."""
        stages = {name: self._stage_as_json(name, stage) for name, stage in answer.stages.items()}
        return {"last": stages[self.stages[-1].name], "stages": stages, "runs": dict(answer.runs)}

    def _stage_as_json(self, name: str, answer: Any) -> Any:
        task = self.tasks.get(name)
        if task is None:
            return plain(answer)
        return [task.as_json(value) for value in answer] if isinstance(answer, list) else task.as_json(answer)


class _Whole:
    def __init__(self, pipeline: Pipeline) -> None:
        self.served, self.notes = pipeline, tuple(pipeline.notes)
        self._stages = pipeline.description.stages
        self._tasks = {name: model.task for name, model in pipeline.models.items()}
        self.teller: Teller = _StagesTeller(self._stages, self._tasks)
        first = next(iter(pipeline.models.values()))
        self.budget_ms = pipeline.description.budget_ms or first.bundle.target.budget_ms
        self._drawn = next(filter(self._finds_boxes, self._stages), None)

    def why_no_answer(self, frame: Any, answer: Any) -> str:
        """Return nothing: what a pipeline should find is the app's to know."""
        del frame, answer
        return ""

    def require_drawable(self, kind: str, source: str) -> None:
        """Only boxes in the frame itself have a place there."""
        if kind != "picture":
            text = f"answers of a pipeline to {_HELD.get(kind, f'{kind}s')} have no picture ({source})"
            raise EdgeoptError(text, remedy=_NOT_DRAWN)
        if self._drawn is None:
            name = self.served.description.name
            raise EdgeoptError(f"no stage of {name} finds boxes in the frame: nothing to draw", remedy=_NOT_DRAWN)

    def draw(self, frame: Frame, answer: Answer) -> Frame:
        """Show the boxes of the first stage that finds them in the frame."""
        assert self._drawn is not None
        name = self._drawn.name
        return self._tasks[name].draw(frame, answer.stages[name], _height(frame))

    @property
    def draw_windows(self) -> None:
        """Only frames of pictures are drawn."""

    def _finds_boxes(self, stage: Stage) -> bool:
        return stage.name in self._tasks and stage.takes == (FRAME,) and self._tasks[stage.name].gives_boxes


def _height(frame: Any) -> int:
    return max(HEIGHT, int(frame.shape[0])) if isinstance(frame, np.ndarray) else HEIGHT
