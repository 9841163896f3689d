"""Frames that keep coming, answers that keep their budget.

with edgeopt.Stream(runtime, "rtsp://camera/stream", budget_ms=33) as stream:
    for result in stream:
        act(result.answer, result.age_ns)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial
from types import TracebackType
from typing import Any, Final, Literal

import numpy as np

from edgeopt.errors import EdgeoptError, UnavailableError
from edgeopt.recipes.inputs.feeding import fed
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.runtime.drift.state import FieldDrift
from edgeopt.runtime.drift.watch import DriftWatch
from edgeopt.runtime.pipelines.pipeline import Pipeline
from edgeopt.runtime.runtime import Runtime
from edgeopt.runtime.schedule.model import TURN
from edgeopt.runtime.schedule.queueing import parse_queue
from edgeopt.runtime.stats import Stats
from edgeopt.runtime.stats.ring import StageRing
from edgeopt.runtime.stream.capture import Capture
from edgeopt.runtime.stream.clockwork import Clockwork, Machine, Running
from edgeopt.runtime.stream.degradation import Degradation
from edgeopt.runtime.stream.events import Event, EventKind
from edgeopt.runtime.stream.forecast import Timing
from edgeopt.runtime.stream.frame_queue import FrameQueue
from edgeopt.runtime.stream.level_choice import LevelChoice
from edgeopt.runtime.stream.result import StreamResult, StreamStats
from edgeopt.runtime.stream.serving import FrameServer, ServedFrame
from edgeopt.runtime.stream.sources import Wishes, open_source
from edgeopt.runtime.stream.sources.pictures import Pictures
from edgeopt.runtime.stream.trial import Trial
from edgeopt.system.text import short

_LENGTH: Final = 256


class AnswerInstants:
    """Instants of the last answers, in memory that is reserved once. One thread writes."""

    def __init__(self) -> None:
        self._rows = np.zeros((_LENGTH, 3), np.int64)
        self._count = 0

    def record(self, captured_ns: int, began_ns: int, done_ns: int) -> None:
        """Keep when a frame was captured, begun and answered."""
        self._rows[self._count % _LENGTH] = captured_ns, began_ns, done_ns
        self._count += 1

    @property
    def answers_per_s(self) -> float | None:
        """Over the last answers; None before the second."""
        done = self._rows[: min(self._count, _LENGTH), 2]
        span = int(done.max() - done.min()) if len(done) > 1 else 0
        return (len(done) - 1) * 1e9 / span if span else None

    @property
    def ratio(self) -> float | None:
        """Slope of the waiting time over the time of capture, by least squares; None before the third answer."""
        rows = self._rows[: min(self._count, _LENGTH)]
        captured = (rows[:, 0] - rows[:, 0].min()) / 1e9 if len(rows) else rows[:, 0]
        if len(rows) < 3 or not captured.any():
            return None
        waited, centred = (rows[:, 1] - rows[:, 0]) / 1e9, captured - captured.mean()
        return float(centred @ waited / (centred @ centred))


_USUAL_FPS = 30.0
"""Usual fps of frames whose rate nobody wrote down."""
_STALLED_NS: Final = 5 * 10**9
_RULES: Final = Degradation()
_JOIN_S: Final = 1.0
_JOIN_LIVE_S: Final = 6.0
"""A read of a network ends after 5 s."""


class Stream:
    """The answers to a stream of frames, as an iterator. One thread reads it; any thread may call `stop` and `stats`.

    Capture and inference run in two threads. A frame is started when the reader asks for the next result, so a slow
    reader loses frames as `queue` says, and never gets an old answer.
    """

    def __init__(
        self,
        runtime: Runtime | Pipeline,
        source: Any,
        *,
        fps: float | Literal["usual", "own"] | None = "usual",
        budget_ms: float = 33.0,
        queue: str = "latest",
        degrade: Degradation | None = _RULES,
        pipelined: bool | None = None,
        hang_s: float = 10.0,
        give_up_s: float = 60.0,
        most_waiting_mib: int = 256,
        on_event: Callable[[Event], None] | None = None,
        clockwork: Clockwork | None = None,
    ) -> None:
        """Open the source. Threads start with the first result that is asked for, or with `with`.

        Args:
            runtime: Answers the frames; it stays open when the stream ends.
            source: A camera's number, a path of a video, picture or folder, an address (RTSP, RTMP, HLS), or frames to
                iterate over.
            fps: Rate at which a file or an iterator is read, or that a camera is asked for; an address has its own.
                `usual`: the rate that is written in the file, or 30 if there is none. `own`: the same without the 30.
                None: frames of an iterator come as fast as it yields them, and those of a file when the model is free,
                so that none is lost.
            budget_ms: Time allowed from the capture of a frame to its answer.
            queue: `latest`: only the newest frame waits, and no frame older than the budget is started. `fifo`: all
                frames wait. `bounded:8`: eight frames wait, further ones are dropped.
            degrade: Rules for skipping frames or using lighter models when too many frames miss the budget; None:
                never.
            pipelined: Whether the next frame is preprocessed while the model computes this one; None: if the first
                frames show that it shortens the time between answers.
            hang_s: Seconds after which a frame that is still running counts as failed.
            give_up_s: Seconds after which a source that is away ends the stream.
            most_waiting_mib: Memory of waiting frames. A full `fifo` pauses a file, and drops frames of a camera.
            on_event: Called with gaps, failures and changes, in the thread in which they happen; it must not wait.
            clockwork: Time and threads, for tests.

        Raises:
            EdgeoptError: If an argument is out of range, or the source does not open.
        """
        rate = None if fps == "own" else _USUAL_FPS if fps == "usual" else fps
        _require(
            rate is None or (math.isfinite(rate) and 0.001 <= rate <= 10_000),
            f"{fps} frames per second",
            "from 0.001 to 10000",
        )
        _require(math.isfinite(budget_ms) and budget_ms > 0, f"a budget of {budget_ms} ms", "such as 33")
        _require(math.isfinite(hang_s) and hang_s > 0, f"hang_s of {hang_s}", "in seconds")
        _require(math.isfinite(give_up_s) and give_up_s > 0, f"give_up_s of {give_up_s}", "in seconds")
        _require(most_waiting_mib > 0, f"most_waiting_mib of {most_waiting_mib}", "such as 256")
        policy = parse_queue(queue)
        self.budget_ms, self.queue = float(budget_ms), policy
        self._clockwork = clockwork or Machine()
        wishes = Wishes(rate, give_up_s, partial(_fit, runtime))
        self.source = open_source(source, wishes)
        self._give_up_ns = round(give_up_s * 1e9)
        self._ring = StageRing(("wait", *runtime.stages))
        self._budget_ns = round(budget_ms * 1e6)
        self._desk = FrameQueue(
            self._clockwork,
            policy,
            self._ring,
            budget_ns=self._budget_ns,
            most_bytes=most_waiting_mib << 20,
            on_event=on_event,
        )
        is_recorded = fps == "own" or (fps == "usual" and not isinstance(self.source, Pictures))
        self._capture = Capture(self.source, self._desk, (self.source.fps if is_recorded else None) or rate)
        if degrade is not None and self._capture.is_on_demand:
            degrade = None  # no frame of a file comes too fast
        self._watch: DriftWatch | None = getattr(runtime, "drift_watch", None)
        self._unwatch = self._watch.listen(self._hear_drift) if self._watch else None
        self._level_choice = LevelChoice(self._desk, runtime, degrade, self._budget_ns)
        self._server = FrameServer(self._desk, self._level_choice.rung, round(hang_s * 1e9))
        is_whole = isinstance(runtime, Pipeline)  # nothing of it runs before execute
        self._trial = Trial() if pipelined is None and not is_whole else None
        self._pipelined = pipelined and not is_whole
        self._growth = AnswerInstants()
        self._stalled = self._closed = False
        self._handed_ns: int | None = None
        """When the app got the answer before; None: it has none yet."""
        self._reader_ns = 0
        """How long it then worked before it asked for the next one."""
        self._captor: Running | None = None

    def __enter__(self) -> Stream:
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __iter__(self) -> Iterator[StreamResult]:
        return self

    def __next__(self) -> StreamResult:
        """Return the answer for the next frame, waiting for it.

        Raises:
            StopIteration: If the source has ended, or the stream was stopped.
            EdgeoptError: If the source is gone, a frame hangs for the second time, or frame after frame fails.
        """
        self._start()
        try:
            served = self._wait_for_answer()
        except BaseException:
            self.stop()
            raise
        if served is None:
            self.stop()
            if self._desk.source_error is not None:
                error, self._desk.source_error = self._desk.source_error, None
                raise error
            raise StopIteration
        return self._hand_over(served)

    @property
    def is_on_demand(self) -> bool:
        """Whether frames are read only when the model is free, so that none can be lost."""
        return self._capture.is_on_demand

    def stop(self) -> None:
        """End the stream: waiting and running frames are dropped, threads end, and the source is closed."""
        with self._desk.changes:
            if self._closed:
                return
            self._closed = True
        self._desk.stop()
        with self._desk.changes:
            self._server.stop()
        if self._captor is None:
            self.source.close()
        elif not self._captor.join(_JOIN_LIVE_S if self.source.is_live else _JOIN_S):
            self._desk.tell(EventKind.LEFT_BEHIND, "the source is still in a read that does not return")
        if not self._server.join(_JOIN_S):
            self._desk.tell(EventKind.LEFT_BEHIND, "the model is still in a call that does not return")
        self._level_choice.close()
        if self._unwatch is not None:
            self._unwatch()

    def stats(self) -> StreamStats:
        """Return the counts and times of the stream, now or after its end."""
        counted = replace(self._ring.stats(), drift=self._watch.state() if self._watch else None)
        rung = self._server.rung
        return StreamStats(
            **{field.name: getattr(counted, field.name) for field in fields(Stats)},
            queue=str(self.queue),
            budget_ms=self.budget_ms,
            answers_per_s=self._growth.answers_per_s,
            waiting_growth_ratio=self._growth.ratio,
            gaps=self._desk.gaps,
            gap_s=self._desk.gap_s,
            level=rung.name,
            artefact=rung.artefact,
            pipelining=None if self._trial is None else self._trial.outcome,
            events=self._desk.events,
        )

    def _hear_drift(self, drift: FieldDrift) -> None:
        self._desk.tell(EventKind.DRIFT, str(drift))

    def _start(self) -> None:
        if self._captor is not None or self._closed:
            return
        self._captor = self._clockwork.start(self._capture.run, "edgeopt-capture")
        self._server.start()
        if self._pipelined:
            with self._desk.changes:
                self._server.pipeline(on=True)

    def _wait_for_answer(self) -> ServedFrame | None:
        desk, server = self._desk, self._server
        with desk.changes:
            if self._handed_ns is not None:
                self._reader_ns = desk.now_ns - self._handed_ns
            server.want()
            wanted_ns = desk.now_ns
            while True:
                served = server.take()
                if served is not None or desk.is_stopped:
                    return served
                if desk.is_ended and server.is_idle and not desk.has_waiting:
                    return None
                now, hangs_at = desk.now_ns, server.hangs_at_ns
                if hangs_at is not None and now >= hangs_at:
                    server.give_up()
                    continue
                desk.changes.wait(self._next_look_ns(now, hangs_at, wanted_ns))

    def _next_look_ns(self, now: int, hangs_at: int | None, wanted_ns: int) -> int | None:
        """Return when something must be decided though nothing happens; tell of a source that gives nothing.

        A source that is read on demand gives nothing while a model or the application takes its time.

        Raises:
            UnavailableError: If it has given nothing for too long.
        """
        if hangs_at is not None or self._desk.is_ended:
            return hangs_at
        since = max(self._desk.last_fed_ns, wanted_ns) if self.is_on_demand else self._desk.last_fed_ns
        if self._stalled and since + _STALLED_NS > now:
            self._stalled = False
        if not self._stalled and now >= since + _STALLED_NS:
            self._stalled = True
            self._desk.tell(EventKind.STALLED, f"no frame has come for {_STALLED_NS / 1e9:g} s")
        if not self.source.is_live:
            return None if self._stalled else since + _STALLED_NS
        gone_at = since + self._give_up_ns + _STALLED_NS  # the source itself comes first with its own words
        if now >= gone_at:
            raise UnavailableError(
                f"no frame has come for {(now - since) / 1e9:.0f} s, and the source does not return",
                remedy="look after the camera, or allow longer gaps with give_up_s",
            )
        return gone_at if self._stalled else since + _STALLED_NS

    def _hand_over(self, served: ServedFrame) -> StreamResult:
        item = served.item
        now = self._desk.now_ns
        age = now - item.captured_ns
        latency = served.done_ns - served.began_ns
        in_stages = sum(max(number, 0) for number in served.times_ns)  # below zero: the frame had no such stage
        times = (served.done_ns - item.captured_ns - in_stages, *served.times_ns)
        missed = age > self._budget_ns
        self._ring.record(times, latency, age, is_missed=missed)
        self._growth.record(item.captured_ns, served.began_ns, now)
        self._adapt(served, self._timing(served, age))
        self._handed_ns = now
        return StreamResult(
            index=item.index,
            name=item.name,
            sample=item.sample,
            answer=served.answer,
            age_ns=age,
            latency_ns=latency,
            times_ns=dict(zip(self._ring.stages, times, strict=True)),
            missed=missed,
            artefact=served.rung.artefact,
            level=served.rung.name,
        )

    def _timing(self, served: ServedFrame, age_ns: int) -> Timing:
        """Return how the age of an answer came about."""
        item, latency_ns = served.item, served.done_ns - served.began_ns
        stages_ns = dict(zip(self._ring.stages[1:], (max(number, 0) for number in served.times_ns), strict=True))
        turn_ns, in_stages_ns = stages_ns.pop(TURN, 0), sum(stages_ns.values())
        between_ns = latency_ns - turn_ns - in_stages_ns if served.is_overlapped else 0
        first_ns = next(iter(stages_ns.values()), 0)
        return Timing(
            index=item.index,
            captured_ns=item.captured_ns,
            age_ns=age_ns,
            queued_ns=between_ns + (0 if served.waited_for_frame else served.began_ns - item.captured_ns),
            turn_ns=turn_ns,
            service_ns=latency_ns - turn_ns - between_ns,
            occupied_ns=max(first_ns, in_stages_ns - first_ns) if served.is_overlapped else latency_ns,
            reader_ns=self._reader_ns,
        )

    def _adapt(self, served: ServedFrame, timing: Timing) -> None:
        """Change what measurement says should change."""
        with self._desk.changes:
            if self._trial is not None:
                told = self._trial.record(
                    served.done_ns,
                    timing.age_ns,
                    is_overlapped=served.is_overlapped,
                    waited_for_frame=served.waited_for_frame,
                )
                if told is not None:
                    self._server.pipeline(on=told)
                if told and (outcome := self._trial.outcome) is not None:
                    periods = f"{outcome.serial_period_ms:.1f} ms to {outcome.pipelined_period_ms:.1f} ms a frame"
                    reason = f"stages overlap: {periods}, {outcome.added_age_ms:+.1f} ms of age"
                    self._desk.tell(EventKind.PIPELINING, reason)
            rung = self._level_choice.record(served.rung, timing)
            if rung is not self._server.rung and self._trial is not None and not self._trial.is_over:
                self._trial = Trial()  # two levels cannot be compared
                self._server.pipeline(on=False)
            self._server.rung = rung


def _fit(runtime: Runtime | Pipeline, frames: Frames) -> Frames:
    """Return stored frames as the model takes them; a pipeline takes pictures."""
    if isinstance(runtime, Pipeline):
        return frames
    return fed(frames, runtime.bundle.recipe, runtime.session.inputs).decoded_by(runtime.task.decoding)


def _require(holds: bool, problem: str, example: str) -> None:
    if not holds:
        raise EdgeoptError(f"{short(problem)} cannot be", remedy=f"pass a number above zero, {example}")
