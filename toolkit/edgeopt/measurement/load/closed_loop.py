"""The closed loop: one frame after the other, every stage marked, with one worker or several.

With one worker the last inputs of every block of marked frames run again without marks, so that the check of the stages
sees the same machine. Garbage collection stays on, as in an application.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from edgeopt.executors import Session
from edgeopt.graph.tensors import Sample, Tensors
from edgeopt.measurement.clock import Clock, cost_of_reading_ns
from edgeopt.measurement.load.workers import Pipeline, run_together
from edgeopt.measurement.samples import Samples, join_samples
from edgeopt.measurement.statistics.trend import find_warmup
from edgeopt.recipes.inputs.timed import decoded_by
from edgeopt.runtime.pool import Pool
from edgeopt.system.device_clock import device_clock
from edgeopt.tasks import FrameTask

Pictures = Sequence[Sample] | Sequence[Callable[[], Sample]]
"""Pictures in memory, or functions that read and decode one (this is then the stage `load`)."""

_BLOCK: Final = 15
_UNMARKED: Final = 5
"""Frames run again without marks after each block: a fifth of the time, enough for a median."""
_PROGRESS_NS: Final = 250_000_000
_STAGES: Final = 3
"""Place in a row of the first stage after loading."""


class Marked(Protocol):
    """Frames run with marks, one row each: of a model, or of anything else that has stages."""

    def __len__(self) -> int:
        """Return how many ran with marks."""
        ...

    def run(self, index: int) -> int:
        """Run the frame `index` (modulo the number of frames) with marks; return its service time in ns."""
        ...

    def run_unmarked(self, index: int) -> int:
        """Run the frame `index` as an application would; return its service time in ns."""
        ...

    @property
    def frame_ns(self) -> NDArray[np.int64]:
        """(n,) service times so far."""
        ...

    @property
    def input_id(self) -> NDArray[np.int64]:
        """(n,) which frame each row ran."""
        ...

    def samples(self, warmup: NDArray[np.bool_], *, zero_ns: int, epoch_ns: int, variant: str = "") -> Samples:
        """Return all rows, their instants relative to the clock's `zero_ns`."""
        ...


def _feed(task: FrameTask, sample: Sample) -> tuple[Tensors, Any]:
    return task.preprocess(sample)


class MarkedFrames:
    """Runs single frames with marks and keeps their instants in preallocated rows."""

    def __init__(self, frames: Pictures, task: FrameTask, session: Session, clock: Clock) -> None:
        if not len(frames):
            raise ValueError("there is no frame to run")
        self._frames: Sequence[Any] = decoded_by(frames, task.decoding)
        self._loads = callable(frames[0])
        self._task, self._session, self._clock = task, session, clock
        self._pool = Pool(session, lambda: task, _feed, most=1, clock=clock)
        self._stages = (*(["load"] if self._loads else []), *self._pool.stages)
        self._row = [0] * (_STAGES + len(self._pool.stages))
        """Columns of one frame: begin, end, time to load it, and the time of each further stage."""
        self._rows = np.zeros((256, len(self._row)), np.int64)
        self._inputs: list[int] = []
        self._counts: list[int] = []

    def __len__(self) -> int:
        return len(self._inputs)

    def run(self, index: int) -> int:
        """Run the frame `index` (modulo the number of frames) with marks; return its service time in ns."""
        number = len(self._inputs)
        if number == len(self._rows):  # grows between frames, never inside one
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
        clock, task, pool, row = self._clock, self._task, self._pool, self._row
        frames, loads = self._frames, self._loads
        index %= len(frames)
        started = clock()
        frame = frames[index]
        begun = loaded = clock()
        if loads:
            frame = frame()
            loaded = clock()
        with pool.take() as work:  # as the runtime does it: what it costs is part of a frame
            work.preprocess(frame)
            work.execute()
            answer = work.postprocess()
        done = clock()
        row[:_STAGES], row[_STAGES:] = (started, done, loaded - begun), work.times_ns
        self._rows[number] = row  # recording lies between two frames, not inside one
        self._inputs.append(index)
        self._counts.append(task.count(answer))
        return done - started

    def run_unmarked(self, index: int) -> int:
        """Run the frame `index` as an application would; return its service time in ns."""
        index %= len(self._frames)
        started = self._clock()
        frame = self._frames[index]
        inputs, geometry = self._task.preprocess(frame() if self._loads else frame)
        self._task.postprocess(self._session.run(inputs), geometry)
        return self._clock() - started

    @property
    def frame_ns(self) -> NDArray[np.int64]:
        """(n,) service times so far."""
        rows = self._rows[: len(self)]
        return rows[:, 1] - rows[:, 0]

    @property
    def input_id(self) -> NDArray[np.int64]:
        """(n,) which frame each row ran."""
        return np.array(self._inputs, np.int64)

    def samples(self, warmup: NDArray[np.bool_], *, zero_ns: int, epoch_ns: int, variant: str = "") -> Samples:
        """Return all rows, their instants relative to the clock's `zero_ns`."""
        rows = self._rows[: len(self)]
        return Samples(
            stages=self._stages,
            times_ns=rows[:, _STAGES - 1 if self._loads else _STAGES :],
            frame_ns=self.frame_ns,
            warmup=warmup,
            variant=variant,
            started_ns=rows[:, 0] - zero_ns,
            done_ns=rows[:, 1] - zero_ns,
            input_id=self.input_id,
            n_out=np.array(self._counts, np.int64),
            epoch_ns=epoch_ns,
            clock_cost_ns=cost_of_reading_ns(self._clock),
        )


def run_frames(
    frames: Pictures,
    task: FrameTask,
    session: Session,
    *,
    seconds: float,
    min_frames: int,
    clock: Clock = device_clock,
    on_progress: Callable[[int, float], None] | None = None,
    warmup_s: float = 2.0,
    variant: str = "",
) -> Samples:
    """Run frames one after the other and return the raw times, warm-up found and marked.

    Times are those of marked frames; the unmarked ones in between take a third more.

    Args:
        frames: One or more; used in turn.
        task: Preprocess and postprocess.
        session: The loaded model.
        seconds: Least time to measure after the least warm-up.
        min_frames: Least number of marked frames after warm-up.
        clock: Nanoseconds that never go back.
        on_progress: Called between blocks, at most four times a second, with marked frames and seconds.
        warmup_s: Least length of warm-up, seconds; never longer than `seconds`.
        variant: A name for the samples.

    Raises:
        ValueError: If there is no frame.
    """
    return run_marked(
        MarkedFrames(frames, task, session, clock),
        seconds=seconds,
        min_frames=min_frames,
        clock=clock,
        on_progress=on_progress,
        warmup_s=warmup_s,
        variant=variant,
    )


def run_marked(
    marked: Marked,
    *,
    seconds: float,
    min_frames: int,
    clock: Clock = device_clock,
    on_progress: Callable[[int, float], None] | None = None,
    warmup_s: float = 2.0,
    variant: str = "",
) -> Samples:
    """Run marked frames one after the other; the rest is as in `run_frames`."""
    epoch_ns, zero_ns = time.time_ns(), clock()
    walls: list[tuple[int, int]] = []
    reported, spent_ns, warmup_s = zero_ns, 0, min(warmup_s, seconds)
    while not _is_enough(marked, spent_ns, warmup_s, seconds, min_frames):
        spent_ns += sum(marked.run(len(marked)) for _ in range(_BLOCK))
        walls += [(row, marked.run_unmarked(row)) for row in range(len(marked) - _UNMARKED, len(marked))]
        now = clock()
        if on_progress and now - reported >= _PROGRESS_NS:
            on_progress(len(marked), (now - zero_ns) / 1e9)
            reported = now
    warm = find_warmup(marked.frame_ns, min_s=warmup_s, input_id=marked.input_id)
    samples = marked.samples(warm.mask(len(marked)), zero_ns=zero_ns, epoch_ns=epoch_ns, variant=variant)
    return _with_walls(samples, walls)


def _is_enough(marked: Marked, spent_ns: int, warmup_s: float, seconds: float, min_frames: int) -> bool:
    if spent_ns < (warmup_s + seconds) * 1e9 or len(marked) < max(min_frames, _BLOCK):
        return False
    warm = find_warmup(marked.frame_ns, min_s=warmup_s, input_id=marked.input_id)
    return len(marked) - warm.frames >= min_frames


def _with_walls(samples: Samples, walls: list[tuple[int, int]]) -> Samples:
    rows, times = zip(*walls, strict=True)
    return replace(samples, wall_row=np.array(rows, np.int64), wall_ns=np.array(times, np.int64))


def run_closed(
    frames: Pictures,
    pipelines: Sequence[Pipeline],
    *,
    seconds: float,
    min_frames: int = 0,
    warmup_s: float = 2.0,
    clock: Clock = device_clock,
    on_progress: Callable[[int, float], None] | None = None,
    variant: str = "",
) -> Samples:
    """Run one worker per pipeline and return all frames in order of their start; `stream` is the worker.

    Warm-up ends for all workers when the last of them is warm. Times are of marked frames only; with one worker
    `run_frames` also checks the marks.

    Args:
        frames: One or more; worker w of N takes the frames w, w + N, w + 2 N and so on.
        pipelines: Task and session of each worker.
        seconds: How long to measure after the least warm-up.
        min_frames: Least number of frames of all workers together, warm-up included.
        warmup_s: Least length of warm-up, seconds; never longer than `seconds`.
        clock: Nanoseconds that never go back.
        on_progress: Called by the first worker, at most four times a second, with frames and seconds.
        variant: A name for the samples.

    Raises:
        ValueError: If there is no frame or no pipeline.
    """
    if not pipelines:
        raise ValueError("there is no worker")
    marked = [MarkedFrames(frames, task, session, clock) for task, session in pipelines]
    warmup_s = min(warmup_s, seconds)
    epoch_ns, zero_ns = time.time_ns(), clock()
    run = _Run(marked, clock, zero_ns, zero_ns + int((warmup_s + seconds) * 1e9), min_frames, on_progress)
    run_together([partial(run.work, number) for number in range(len(marked))], run.stop)
    parts = [
        marked_frames.samples(
            find_warmup(marked_frames.frame_ns, min_s=warmup_s).mask(len(marked_frames)),
            zero_ns=zero_ns,
            epoch_ns=epoch_ns,
        )
        for marked_frames in marked
    ]
    return replace(_in_order(parts), variant=variant)


class _Run:
    """Workers that go on until the time is up and enough frames are done."""

    def __init__(
        self,
        marked: Sequence[MarkedFrames],
        clock: Clock,
        zero_ns: int,
        until_ns: int,
        min_frames: int,
        on_progress: Callable[[int, float], None] | None,
    ) -> None:
        self._marked, self._clock, self._min_frames = marked, clock, min_frames
        self._zero_ns, self._until_ns, self._reported_ns = zero_ns, until_ns, zero_ns
        self._on_progress, self._stopped = on_progress, False

    def stop(self) -> None:
        """Make every worker return after its frame."""
        self._stopped = True

    def work(self, number: int) -> None:
        """Run the frames of one worker."""
        mine, workers = self._marked[number], len(self._marked)
        while True:
            mine.run(number + workers * len(mine))
            now = self._clock()
            if self._stopped or (now >= self._until_ns and self._frames() >= self._min_frames):
                return
            if self._on_progress and number == 0 and now - self._reported_ns >= _PROGRESS_NS:
                self._reported_ns = now
                self._on_progress(self._frames(), (now - self._zero_ns) / 1e9)

    def _frames(self) -> int:
        return sum(len(marked_frames) for marked_frames in self._marked)


def _in_order(parts: Sequence[Samples]) -> Samples:
    joined = join_samples(parts)
    assert joined.started_ns is not None
    order = np.argsort(joined.started_ns, kind="stable")
    columns = ("times_ns", "frame_ns", "started_ns", "done_ns", "input_id", "n_out", "round_id")
    ordered = {name: getattr(joined, name)[order] for name in columns}
    cold = np.flatnonzero(joined.warmup[order])
    warmup = np.arange(len(order)) <= (cold[-1] if len(cold) else -1)
    workers = ordered.pop("round_id")
    return replace(joined, **ordered, warmup=warmup, stream=workers, round_id=None)
