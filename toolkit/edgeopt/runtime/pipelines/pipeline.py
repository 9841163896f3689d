"""A frame through all stages, each timed by its name."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from edgeopt.errors import EdgeoptError, InvalidFileError, Note, NotFoundError
from edgeopt.graph.tensors import Frame
from edgeopt.runtime.pipelines.bundle import read_pipeline
from edgeopt.runtime.pipelines.crop import Crops, cut, whole
from edgeopt.runtime.pipelines.description import FRAME, Description, Stage
from edgeopt.runtime.runtime import Runtime
from edgeopt.runtime.stats import Stats
from edgeopt.runtime.stats.ring import NOT_RUN, StageRing
from edgeopt.system.processes.closing import Closing
from edgeopt.tasks import find_task

PARTS = ("preprocess", "execute", "postprocess")
"""Parts of a stage with a model; `execute` includes copies to and from a device."""
AppStage: TypeAlias = Callable[..., Any]
"""The app's own function: it is given the answers that its stage takes, in their order."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A pipeline's answer to one frame."""

    stages: Mapping[str, Any]
    """The answer of each stage by its name, in order. A model that runs on crops gives a list, with one answer for each
    crop."""
    times_ns: tuple[int, ...]
    """Time of each of `Pipeline.stages`, over all its runs; -1 for a stage that had nothing to run on."""
    runs: Mapping[str, int]
    """How often each model ran."""

    @property
    def last(self) -> Any:
        """The answer of the last stage."""
        return self.stages[tuple(self.stages)[-1]]


class Pipeline(Closing):
    """Loaded models with the app's functions between them. Threads may share it if the functions allow that."""

    def __init__(
        self,
        description: Description,
        models: Mapping[str, Runtime],
        calls: Mapping[str, AppStage],
        *,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        """Bind open models and functions to their stages; applications call `load`.

        Args:
            description: What the stages are.
            models: By the name of the stage; the pipeline closes them.
            calls: The app's functions by the name of the stage.
            clock: Nanoseconds that never go back.

        Raises:
            EdgeoptError: If a function is missing or unknown, or a crop has a model that gives no boxes.
        """
        require_calls(description, calls)
        _require_boxes(description, models)
        self.description, self.models = description, models
        self.stages: tuple[str, ...] = tuple(name for stage in description.stages for name in names_of(stage))
        """Names of the timed stages in their order, such as `detect.preprocess`, `crop`, `lookup`."""
        self._calls, self._clock = dict(calls), clock
        places = {name: place for place, name in enumerate(self.stages)}
        self._steps = tuple((other, other.kind, places[names_of(other)[0]]) for other in description.stages)
        self._taken = {model.name: model.takes[0] for model in description.models}
        self._ring = StageRing(self.stages)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        stages: Mapping[str, AppStage] | None = None,
        threads: int | None = None,
        warmup: bool = True,
        strict: bool = False,
    ) -> Pipeline:
        """Open the bundle of a pipeline: check its hashes, open each model as it was measured.

        Args:
            path: The bundle's folder, or the output folder of `edgeopt optimize`.
            stages: The app's functions, by the names of the stages that call them.
            threads: Threads of each model; None: as it was measured.
            warmup: Run each model once before the first frame comes; the app's functions are not called.
            strict: Raise an error if the first choice of a model does not run, in place of falling back.

        Raises:
            InvalidFileError: If the bundle is damaged.
            EdgeoptError: If a function is missing or unknown, or a model does not open here; the stage is named.
        """
        bundle = read_pipeline(Path(path))
        calls = dict(stages or {})
        require_calls(bundle.description, calls)
        with ExitStack() as opened:
            models = {}
            for stage in bundle.description.models:
                try:
                    model = Runtime.load(bundle.model(stage.name), threads=threads, warmup=warmup, strict=strict)
                except EdgeoptError as error:
                    raise _failed(stage, error) from error
                models[stage.name] = opened.enter_context(model)
            pipeline = cls(bundle.description, models, calls)
            opened.pop_all()
        return pipeline

    def close(self) -> None:
        """Refuse further frames, and free the models when the current frames are done."""
        for model in self.models.values():
            model.close()

    def with_models(self, models: Mapping[str, Runtime]) -> Pipeline:
        """Return a pipeline with other models in some of the stages; it shares everything else with this one.

        Args:
            models: Loaded runtimes by the name of the stage; the pipeline does not close them.
        """
        return Pipeline(self.description, {**self.models, **models}, self._calls, clock=self._clock)

    @property
    def notes(self) -> tuple[Note, ...]:
        """Why preferred models do not run here, for all stages."""
        return tuple(note for model in self.models.values() for note in model.notes)

    def stats(self) -> Stats:
        """Return how many frames came in, were answered and failed, and the times of each stage over the last 1024."""
        return self._ring.stats()

    def predict(self, frame: Frame) -> Answer:
        """Return the answers of all stages for one frame; `Answer.last` is the answer of the last stage.

        Args:
            frame: (height, width, 3), BGR, uint8, as `cv2.VideoCapture.read` gives it.

        Raises:
            EdgeoptError: If a stage fails, with its name. The pipeline stays usable.
            ValueError: If it is not a frame.
        """
        if not isinstance(frame, np.ndarray) or frame.ndim != 3:
            raise ValueError("a frame is an array (height, width, 3) uint8")
        self._ring.feed()
        begun = self._clock()
        try:
            answer = self._run(frame)
        except BaseException:
            self._ring.fail()
            raise
        took = self._clock() - begun
        budget = self.description.budget_ms
        self._ring.record(answer.times_ns, took, is_missed=budget is not None and took > budget * 1e6)
        return answer

    def _run(self, frame: Frame) -> Answer:
        times = [NOT_RUN] * len(self.stages)
        runs: dict[str, int] = {}
        answers: dict[str, Any] = {FRAME: frame}
        clock, calls = self._clock, self._calls
        for stage, kind, place in self._steps:
            try:
                if kind == "model":
                    given = answers[stage.takes[0]]
                    answers[stage.name], runs[stage.name] = self._run_model(stage, given, times, place)
                    continue
                begun = clock()
                if kind == "crop":
                    answers[stage.name] = self._cut(stage, frame, answers)
                else:
                    answers[stage.name] = calls[stage.name](*[answers[source] for source in stage.takes])
                times[place] = clock() - begun
            except Exception as error:
                raise _failed(stage, error) from error
        del answers[FRAME]
        return Answer(answers, tuple(times), runs)

    def _cut(self, stage: Stage, frame: Frame, answers: Mapping[str, Any]) -> Crops:
        """Cut out boxes of what the detector took: the frame, or crops of it."""
        result = answers[stage.crop]
        taken = answers[self._taken[stage.crop]] if stage.crop in self._taken else frame
        if isinstance(taken, Crops):
            return cut(stage, taken, result)
        return cut(stage, whole(frame), [result])

    def _run_model(self, stage: Stage, given: Any, times: list[int], place: int) -> tuple[Any, int]:
        """Run a model on what it is given: once, or once for each picture of several."""
        model, clock = self.models[stage.name], self._clock
        is_many = isinstance(given, Crops | list | tuple)
        each: Sequence[Any] = given.pictures if isinstance(given, Crops) else given if is_many else (given,)
        answers, before_ns, execute_ns, after_ns = [], 0, 0, 0
        for value in each:
            with model.begin() as work:
                begun = clock()
                work.preprocess(value)
                prepared = clock()
                work.execute()
                executed = clock()
                answers.append(work.postprocess())
                done = clock()
            before_ns, execute_ns, after_ns = (
                before_ns + prepared - begun,
                execute_ns + executed - prepared,
                after_ns + done - executed,
            )
        if each:
            times[place : place + len(PARTS)] = before_ns, execute_ns, after_ns
        return answers if is_many else answers[0], len(each)


def names_of(stage: Stage) -> tuple[str, ...]:
    """Return the names under which a stage is timed."""
    return tuple(f"{stage.name}.{part}" for part in PARTS) if stage.kind == "model" else (stage.name,)


def require_calls(description: Description, values: Mapping[str, AppStage]) -> None:
    """Raise unless there is one function for each stage that calls the app.

    Raises:
        NotFoundError: If a function is given for a stage that is none.
        EdgeoptError: If one is missing, or is no function.
    """
    wanted = {call.name: call.call for call in description.calls}
    for name, function in values.items():
        if name not in wanted:
            raise NotFoundError("stage that calls the app", name, wanted)
        if not callable(function):
            raise EdgeoptError(
                f"stage {name} calls {wanted[name]}, and {type(function).__name__} is no function",
                remedy=f"pass the function itself: stages={{'{name}': {wanted[name].rpartition(':')[2]}}}",
            )
    if missing := [name for name in wanted if name not in values]:
        name = missing[0]
        raise EdgeoptError(
            f"stage {name} of pipeline {description.name} calls {wanted[name]}, a function of your app",
            remedy=f"pass it: stages={{'{name}': {wanted[name].rpartition(':')[2]}}}",
        )


def _require_boxes(description: Description, models: Mapping[str, Runtime]) -> None:
    """Raise where a crop has a model that finds no boxes: before the first frame."""
    for stage in description.stages:
        if stage.crop in models and not find_task(models[stage.crop].bundle.recipe.task).gives_boxes:
            task = models[stage.crop].bundle.recipe.task
            raise InvalidFileError(
                f"stage {stage.name} crops {stage.crop}, which gives no boxes: its task is {task}",
                remedy="name a stage whose model is a detector",
            )


def _failed(stage: Stage, error: Exception) -> EdgeoptError:
    """Return one error that names the stage."""
    if isinstance(error, EdgeoptError):
        return EdgeoptError(f"stage {stage.name}: {error.problem}", remedy=error.remedy)
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    sources = " and ".join(stage.takes or (stage.crop,))
    remedy = f"mend {stage.call}" if stage.call else f"check what it is given: {sources}"
    return EdgeoptError(f"stage {stage.name} failed: {text}", remedy=remedy)
