"""Whole frames of a pipeline, timed: the rows that every measurement of this house works on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.measurement.clock import Clock, cost_of_reading_ns
from edgeopt.measurement.load.closed_loop import Pictures
from edgeopt.measurement.pipelines.code import load_calls
from edgeopt.measurement.samples import Samples
from edgeopt.runtime.pipelines.bundle import read_pipeline
from edgeopt.runtime.pipelines.pipeline import Pipeline


class MarkedPipeline:
    """Runs single frames through a pipeline and keeps the times of its stages."""

    def __init__(self, frames: Pictures, pipeline: Pipeline, clock: Clock) -> None:
        """Bind frames to a pipeline.

        Args:
            frames: Pictures, or functions that read one (this is then the stage `load`).
            pipeline: Loaded; it times its own stages.
            clock: For the frame as a whole.
        """
        if not len(frames):
            raise ValueError("there is no frame to run")
        self._frames, self._pipeline, self._clock = frames, pipeline, clock
        self._loads = callable(frames[0])
        self._spans: list[tuple[int, int, int]] = []
        self._answers: list[tuple[tuple[int, ...], Mapping[str, int]]] = []
        self._inputs: list[int] = []

    def __len__(self) -> int:
        return len(self._inputs)

    def run(self, index: int) -> int:
        """Run the frame `index` (modulo the number of frames); return its service time in ns."""
        index %= len(self._frames)
        started = self._clock()
        frame: Any = self._frames[index]
        loaded = started
        if self._loads:
            frame = frame()
            loaded = self._clock()
        answer = self._pipeline.predict(frame)
        done = self._clock()
        self._spans.append((started, loaded, done))
        self._answers.append((answer.times_ns, answer.runs))
        self._inputs.append(index)
        return done - started

    def run_unmarked(self, index: int) -> int:
        """Run the frame `index` as an app would, whose pipeline marks its stages too; return its service time in ns."""
        index %= len(self._frames)
        started = self._clock()
        frame: Any = self._frames[index]
        self._pipeline.predict(frame() if self._loads else frame)
        return self._clock() - started

    @property
    def frame_ns(self) -> NDArray[np.int64]:
        """(n,) service times so far."""
        return np.array([done - started for started, _, done in self._spans], np.int64)

    @property
    def input_id(self) -> NDArray[np.int64]:
        """(n,) which frame each row ran."""
        return np.array(self._inputs, np.int64)

    def runs(self) -> Mapping[str, NDArray[np.int64]]:
        """Return (n,) how often each model ran for a frame, by its stage."""
        models = [model.name for model in self._pipeline.description.models]
        return {name: np.array([runs[name] for _, runs in self._answers], np.int64) for name in models}

    def samples(self, warmup: NDArray[np.bool_], *, zero_ns: int, epoch_ns: int, variant: str = "") -> Samples:
        """Return all rows, their instants relative to the clock's `zero_ns`; a stage that had nothing to do took 0."""
        spans = np.array(self._spans, np.int64).reshape(-1, 3)
        times = np.maximum(np.array([took for took, _ in self._answers], np.int64), 0)
        stages = self._pipeline.stages
        if self._loads:
            stages, times = ("load", *stages), np.column_stack([spans[:, 1] - spans[:, 0], times])
        return Samples(
            stages=stages,
            times_ns=times.reshape(len(self), len(stages)),
            frame_ns=self.frame_ns,
            warmup=warmup,
            variant=variant,
            started_ns=spans[:, 0] - zero_ns,
            done_ns=spans[:, 2] - zero_ns,
            input_id=self.input_id,
            epoch_ns=epoch_ns,
            clock_cost_ns=cost_of_reading_ns(self._clock),
        )


@dataclass(frozen=True, slots=True)
class OpenPipeline:
    """A loaded pipeline that takes turns with others."""

    pipeline: Pipeline

    def mark(self, frames: Pictures, clock: Clock) -> MarkedPipeline:
        """Return its frames, to be run with marks."""
        return MarkedPipeline(frames, self.pipeline, clock)

    def close(self) -> None:
        """Free the models."""
        self.pipeline.close()


@dataclass(frozen=True, slots=True)
class RunnablePipeline:
    """A pipeline's bundle, and how it is opened in this process or in another."""

    folder: Path
    code: Path | None
    """Where the app's functions are read from."""

    def open(self) -> OpenPipeline:
        """Return it loaded.

        Raises:
            EdgeoptError: If a model does not open, or a function is not there.
        """
        calls = load_calls(read_pipeline(self.folder).description, self.code)
        return OpenPipeline(Pipeline.load(self.folder, stages=calls))
