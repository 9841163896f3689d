"""The threads that run frames: one that does all, or two whose stages overlap.

A frame is begun when the reader asks for an answer, so that no answer grows old on a shelf and none is made in vain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from edgeopt.errors import EdgeoptError
from edgeopt.runtime.stream.clockwork import Running
from edgeopt.runtime.stream.events import EventKind
from edgeopt.runtime.stream.frame_queue import FrameQueue, Waiting
from edgeopt.runtime.stream.levels import Rung
from edgeopt.runtime.stream.runner import Frame
from edgeopt.system.machine.place import PlaceLostError

_MOST_FAILURES: Final = 8
"""So many frames in a row whose run ends in an error are no accident."""
_MOST_HUNG: Final = 2
"""Calls that do not return, at once: each keeps a thread and its buffers."""


@dataclass(slots=True)
class ServedFrame:
    """A frame and its answer."""

    item: Waiting
    answer: Any
    rung: Rung
    began_ns: int
    done_ns: int
    times_ns: tuple[int, ...]
    """Times of the stages, in the order of the runtime's."""
    is_overlapped: bool
    waited_for_frame: bool
    """Whether no frame waited when the worker came for it."""


@dataclass(slots=True)
class _Job:
    """A frame on its way."""

    item: Waiting
    rung: Rung
    began_ns: int
    waited_for_frame: bool
    work: Frame | None = None
    """Set when it is preprocessed."""


@dataclass(slots=True)
class _Worker:
    running: Running | None = None
    is_hung: bool = field(default=False)


class FrameServer:
    """Runs frames of a queue; whoever calls a method holds the queue's lock, but for `start` and `join`."""

    def __init__(self, desk: FrameQueue, rung: Rung, hang_ns: int) -> None:
        """Bind to a queue.

        Args:
            desk: Where frames wait.
            rung: What they are run with first.
            hang_ns: A call that takes longer is given up.
        """
        self.rung, self.is_pipelined = rung, False
        self._desk, self._hang_ns = desk, hang_ns
        self._wanted = False
        self._answer: ServedFrame | None = None
        self._error: Exception | None = None
        self._preparing: _Job | None = None
        self._prepared: _Job | None = None
        self._executing: _Job | None = None
        self._failures = self._hung = 0
        self._worker, self._preparer = _Worker(), _Worker()
        self._threads: list[Running] = []

    def start(self) -> None:
        """Start the thread that runs frames."""
        self._hire()

    def pipeline(self, *, on: bool) -> None:
        """Let stages overlap, or no longer."""
        self.is_pipelined = on
        if on and self._preparer.running is None:
            self._preparer.running = self._start(self._prepare, "edgeopt-preprocess")
        self._desk.changes.notify()

    def want(self) -> None:
        """Ask for the next answer."""
        self._wanted = True
        self._desk.changes.notify()

    def take(self) -> ServedFrame | None:
        """Return the answer if it is there.

        Raises:
            EdgeoptError: If frame after frame fails.
        """
        if self._error is not None:
            raise self._error
        served, self._answer = self._answer, None
        if served is not None:
            self._wanted = False
        return served

    @property
    def is_idle(self) -> bool:
        """Whether no frame is on its way."""
        return not (self._preparing or self._prepared or self._executing or self._answer)

    @property
    def hangs_at_ns(self) -> int | None:
        """When the frame that runs now is given up; None while none runs."""
        job = self._executing or self._preparing
        return None if job is None else job.began_ns + self._hang_ns

    def give_up(self) -> None:
        """Give up the frame that runs: it failed. Its call cannot be ended, so its thread and buffers stay with it.

        Raises:
            EdgeoptError: If no other thread may go on.
        """
        job = self._executing
        limit = f"{self._hang_ns / 1e9:g} s"
        self._hung += 1
        if job is None or self._hung >= _MOST_HUNG:
            raise EdgeoptError(
                f"the model has not returned for {limit}{', twice' if job else ''}: the stream ends",
                remedy="restart the process: a call that hangs inside the engine cannot be ended from outside",
            )
        self._worker.is_hung, self._executing = True, None
        self._desk.ring.fail()
        reason = f"frame {job.item.index} has run for {limit}: given up; its thread stays in the call, another goes on"
        self._desk.tell(EventKind.HUNG, reason)
        self._hire()

    def stop(self) -> None:
        """Give up what is done or prepared and not handed over."""
        for job in (self._prepared, self._answer):
            if job is not None:
                self._desk.ring.drop()
        if self._prepared is not None and self._prepared.work is not None:
            self._prepared.work.close()
        self._prepared = self._answer = None
        self._desk.changes.notify()

    def join(self, seconds: float) -> bool:
        """Wait for the threads; return whether all have ended. A frame that still runs then has failed."""
        ended = [thread.join(seconds) for thread in self._threads]
        with self._desk.changes:
            for job in (self._executing, self._preparing):
                if job is not None:
                    self._desk.ring.fail()
            self._executing = self._preparing = None
        return all(ended)

    def _hire(self) -> None:
        worker = self._worker = _Worker()
        worker.running = self._start(lambda: self._serve(worker), "edgeopt-stream")

    def _start(self, work: Callable[[], None], name: str) -> Running:
        running = self._desk.clockwork.start(work, name)
        self._threads = [thread for thread in self._threads if not thread.join(0)] + [running]
        return running

    def _serve(self, worker: _Worker) -> None:
        while (job := self._next(worker)) is not None:
            try:
                answer, times = _run(job)
                failure = None
            except Exception as error:  # each engine and task has its own classes
                failure = error
            done = self._desk.now_ns
            with self._desk.changes:
                if worker.is_hung:
                    self._hung -= 1
                    return
                if self._executing is None:
                    return  # it was counted when the stream was stopped
                self._executing = None
                if failure is not None:
                    self._fail(job, failure)
                elif self._desk.is_stopped:
                    self._desk.ring.drop()
                else:
                    self._failures = 0
                    overlapped = self.is_pipelined
                    self._answer = ServedFrame(
                        job.item, answer, job.rung, job.began_ns, done, times, overlapped, job.waited_for_frame
                    )
                self._desk.changes.notify()

    def _next(self, worker: _Worker) -> _Job | None:
        """Return the frame to run now, waiting for it; None when the stream is stopped."""
        desk, waited = self._desk, False
        with desk.changes:
            while not (desk.is_stopped or worker.is_hung):
                if self._wanted and self._answer is None and self._error is None:
                    job = self._take_prepared() or self._take_raw(waited_for_frame=waited)
                    if job is not None:
                        self._executing = job
                        return job
                    waited = True
                desk.changes.wait()
        return None

    def _take_prepared(self) -> _Job | None:
        job, self._prepared = self._prepared, None
        if job is None:
            return None
        self._desk.changes.notify()
        if self._desk.is_stale(job.item):
            assert job.work is not None
            job.work.close()
            self._desk.ring.drop()
            return None
        return job

    def _take_raw(self, *, waited_for_frame: bool) -> _Job | None:
        if self.is_pipelined or self._preparing is not None:
            return None
        item = self._desk.take()
        return None if item is None else _Job(item, self.rung, self._desk.now_ns, waited_for_frame)

    def _prepare(self) -> None:
        """Preprocess one frame ahead, as long as stages overlap."""
        desk = self._desk
        while (job := self._next_to_prepare()) is not None:
            work = None
            try:
                work = job.rung.runner.begin(self._hang_ns / 1e9, stream=job.item.stream)
                work.preprocess(job.item.sample)
                job.work, failure = work, None
            except Exception as error:
                failure = error
            with desk.changes:
                was_counted, self._preparing = self._preparing is None, None
                if failure is not None or desk.is_stopped:
                    if work is not None:
                        work.close()
                    if not was_counted:
                        self._drop_or_fail(job, failure)
                else:
                    self._prepared = job
                desk.changes.notify()

    def _drop_or_fail(self, job: _Job, failure: Exception | None) -> None:
        if failure is None:
            self._desk.ring.drop()
        else:
            self._fail(job, failure)

    def _next_to_prepare(self) -> _Job | None:
        desk, waited = self._desk, False
        with desk.changes:
            while self.is_pipelined and not desk.is_stopped:
                item = desk.take() if self._prepared is None and self._error is None else None
                if item is not None:
                    job = self._preparing = _Job(item, self.rung, desk.now_ns, waited)
                    return job
                waited = self._prepared is None
                desk.changes.wait()
            self._preparer.running = None
        return None

    def _fail(self, job: _Job, failure: Exception) -> None:
        self._desk.ring.fail()
        self._failures += 1
        known = failure if isinstance(failure, EdgeoptError) else None
        reason = known.problem if known else str(failure) or type(failure).__name__
        is_lost = isinstance(failure, PlaceLostError)  # no frame after this one can be answered either
        if job.item.index and self._failures < _MOST_FAILURES and not is_lost:
            self._desk.tell(EventKind.FAILED, f"frame {job.item.index} ({job.item.name}): {reason}")
            return
        several = f"{self._failures} frames in a row have failed, the last ({job.item.name}): {reason}"
        problem = several if self._failures > 1 else f"the first frame ({job.item.name}) has failed: {reason}"
        remedy = known.remedy if known else "feed frames that the model takes"
        self._error = known if known and (self._failures == 1 or is_lost) else EdgeoptError(problem, remedy=remedy)
        self._error.__cause__ = None if self._error is known else failure


def _run(job: _Job) -> tuple[Any, tuple[int, ...]]:
    if job.item.stream:
        job.rung.runner.reset(job.item.stream - 1)  # it has ended
    work = job.work or job.rung.runner.begin(stream=job.item.stream)
    with work:
        if job.work is None:
            work.preprocess(job.item.sample)
        work.execute()
        answer = work.postprocess()
        return answer, tuple(int(one) for one in work.times_ns)
