"""The closed loop with several workers: each takes its next frame when its last one is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from edgeopt.measurement.clock import Clock
from edgeopt.measurement.load.frame_loop import Frames, MarkedFrames
from edgeopt.measurement.samples import Samples, join_samples
from edgeopt.measurement.statistics.trend import find_warmup
from edgeopt.measurement.workers import Pipeline, run_together

_PROGRESS_NS = 250_000_000


def run_closed(
    frames: Frames,
    pipelines: Sequence[Pipeline],
    *,
    seconds: float,
    min_frames: int = 0,
    warmup_s: float = 2.0,
    clock: Clock = time.perf_counter_ns,
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
        one.samples(find_warmup(one.frame_ns, min_s=warmup_s).mask(len(one)), zero_ns=zero_ns, epoch_ns=epoch_ns)
        for one in marked
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
        return sum(len(one) for one in self._marked)


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
