"""The open loop: frames arrive by a timetable whether or not a worker is free.

No thread sends frames. The timetable is known, so an idle worker waits for the next arrival itself, and whoever
finishes late replays what arrived meanwhile. A sender beside a Python worker would share its interpreter lock: each
may wait up to the switch interval (5 ms) for the other, which is late for a camera and slows what is measured.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgeopt.measurement.clock import Clock
from edgeopt.measurement.load.arrivals import Arrivals
from edgeopt.measurement.load.closed_loop import MarkedFrames, Pictures
from edgeopt.measurement.load.workers import Pipeline, run_together
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.statistics.trend import find_warmup
from edgeopt.runtime.schedule.queueing import FIFO, Queue, QueuePolicy


class QueueLine:
    """A timetable meets a queue; the time is told by whoever takes from it.

    Between two takes no worker is free, so that arrivals may be replayed at the next take: what is given up is
    the same as if each had been offered at its own instant.
    """

    def __init__(self, arrivals: Arrivals, policy: QueuePolicy) -> None:
        self._due: list[int] = arrivals.intended_ns.tolist()
        self._stream: list[int] = arrivals.stream.tolist()
        self._queue, self._next = Queue[int](policy), 0
        self.dropped = np.zeros(len(arrivals), np.bool_)
        """(n,) rows that were given up so far."""

    @property
    def next_ns(self) -> int | None:
        """When the next row arrives; None after the last."""
        return self._due[self._next] if self._next < len(self._due) else None

    def take(self, now_ns: int) -> int | None:
        """Let all arrivals up to now wait; return the row to serve, or None if none waits."""
        while self._next < len(self._due) and self._due[self._next] <= now_ns:
            self._admit()
        return self._queue.take()

    def take_next(self) -> int | None:
        """Hand the next arrival alone to a worker that waited for it; None after the last."""
        if self._next < len(self._due):
            self._admit()
        return self._queue.take()

    def _admit(self) -> None:
        lost = self._queue.offer(self._next, self._stream[self._next])
        self._next += 1
        if lost is not None:
            self.dropped[lost] = True


_SPIN_NS: Final = 2_000_000
"""A sleep oversleeps by up to this much (99 % by less than 0.2 ms), so the rest is spent looking at the clock."""
_PROGRESS_NS: Final = 250_000_000

WaitUntil: TypeAlias = Callable[[int], None]
"""Returns when the clock has reached an instant."""


def wait_by(clock: Clock) -> WaitUntil:
    """Return a function that sleeps until 2 ms before an instant of `clock`, then spins.

    The spin gives the interpreter lock away at each turn, so that it slows no other worker.
    """

    def wait(due_ns: int) -> None:
        ahead = due_ns - clock() - _SPIN_NS
        if ahead > 0:
            time.sleep(ahead / 1e9)
        while clock() < due_ns:
            time.sleep(0)

    return wait


def run_open(
    frames: Pictures,
    pipelines: Sequence[Pipeline],
    arrivals: Arrivals,
    *,
    queue: QueuePolicy = FIFO,
    warmup_s: float = 2.0,
    first_frames: int = 10,
    drain_s: float = 5.0,
    clock: Clock = time.perf_counter_ns,
    wait_until: WaitUntil | None = None,
    on_progress: Callable[[int, float], None] | None = None,
    variant: str = "",
) -> Samples:
    """Serve a timetable with one worker per pipeline; return one row per arrival, lost ones marked.

    Latency counts from the intended arrival. Before the timetable starts, each pipeline runs some frames, so
    that the first inference builds no queue; these rows come first and are warm-up.

    Args:
        frames: One or more; the k-th arrival brings frame k modulo their number.
        pipelines: Task and session of each worker.
        arrivals: When frames should arrive, warm-up included.
        queue: What happens to frames that arrive while all workers are busy.
        warmup_s: Least length of warm-up from the first arrival, seconds; at most half of the timetable.
        first_frames: Pictures of each pipeline before the timetable starts.
        drain_s: After the last arrival, seconds until the frames that still wait are given up as failed.
        clock: Nanoseconds that never go back.
        wait_until: How to wait for an instant of the clock; None: sleep, then spin.
        on_progress: Called between frames, at most four times a second, with frames and seconds.
        variant: A name for the samples.

    Raises:
        ValueError: If there is no frame, no pipeline or no arrival.
    """
    if not pipelines or not len(arrivals):
        raise ValueError(f"need a pipeline and an arrival, got {len(pipelines)} and {len(arrivals)}")
    marked = [MarkedFrames(frames, task, session, clock) for task, session in pipelines]
    epoch_ns, zero_ns = time.time_ns(), clock()
    for marked_frames in marked:
        for index in range(first_frames):
            marked_frames.run(index)
    desk = _Desk(arrivals, queue, clock, wait_until or wait_by(clock), drain_s, on_progress)
    served: list[list[int]] = [[] for _ in marked]
    run_together(
        [partial(_work, desk, marked_frames, rows) for marked_frames, rows in zip(marked, served, strict=True)],
        desk.close,
    )
    parts = [
        marked_frames.samples(
            np.zeros(len(marked_frames), np.bool_), zero_ns=zero_ns, epoch_ns=epoch_ns, variant=variant
        )
        for marked_frames in marked
    ]
    return _assemble(parts, served, desk, arrivals, len(frames), desk.start_ns - zero_ns, int(warmup_s * 1e9))


class _Desk:
    """Where idle workers stand in line: the one in front waits for the next arrival, so no other lock is needed."""

    def __init__(
        self,
        arrivals: Arrivals,
        queue: QueuePolicy,
        clock: Clock,
        wait_until: WaitUntil,
        drain_s: float,
        on_progress: Callable[[int, float], None] | None,
    ) -> None:
        self.line = QueueLine(arrivals, queue)
        self.arrived_ns = arrivals.intended_ns.copy()
        """(n,) when a waiting worker saw the frame; as intended where it waited for a worker."""
        self._clock, self._wait_until, self._on_progress = clock, wait_until, on_progress
        self._front, self._is_open, self._taken, self._reported_ns = threading.Lock(), True, 0, 0
        self._last_ns = int(arrivals.intended_ns[-1] + drain_s * 1e9)
        self.start_ns = clock()

    def close(self) -> None:
        """Hand out no more frames."""
        self._is_open = False

    def next_row(self) -> int | None:
        """Return the arrival to serve now, waiting for it if need be; None when the run is over."""
        with self._front:
            now = self._clock() - self.start_ns
            if not self._is_open or now > self._last_ns:
                return None
            row = self.line.take(now)
            if row is None:
                row = self._wait_for_next()
            self._taken += 1
            if self._on_progress and now - self._reported_ns >= _PROGRESS_NS:
                self._reported_ns = now
                self._on_progress(self._taken, now / 1e9)
            return row

    def _wait_for_next(self) -> int | None:
        due = self.line.next_ns
        if due is None:
            return None
        self._wait_until(self.start_ns + due)
        row = self.line.take_next()
        self.arrived_ns[row] = self._clock() - self.start_ns
        return row


def _work(desk: _Desk, marked: MarkedFrames, rows: list[int]) -> None:
    while (row := desk.next_row()) is not None:
        marked.run(row)
        rows.append(row)


def _assemble(
    parts: Sequence[Samples],
    served: Sequence[Sequence[int]],
    desk: _Desk,
    arrivals: Arrivals,
    frames: int,
    offset_ns: int,
    warmup_ns: int,
) -> Samples:
    """Bring the rows of all workers into the order of arrival, first frames before them."""
    before, n = sum(map(len, parts)) - sum(map(len, served)), len(arrivals)
    places = _places(parts, served, before)

    def spread(name: str, unserved: NDArray[Any]) -> NDArray[Any]:
        column = np.concatenate([np.zeros((before, *unserved.shape[1:]), unserved.dtype), unserved])
        column[places] = np.concatenate([getattr(part, name) for part in parts])
        return column

    due, none = arrivals.intended_ns + offset_ns, np.zeros(n, np.int64)
    started, frame_ns = spread("started_ns", due), spread("frame_ns", none)
    intended = np.concatenate([started[:before], due])
    answered = np.isin(np.arange(before + n), places)
    dropped = np.concatenate([np.zeros(before, np.bool_), desk.line.dropped])
    return replace(
        parts[0],
        times_ns=spread("times_ns", np.zeros((n, len(parts[0].stages)), np.int64)),
        frame_ns=frame_ns,
        warmup=_warmup(started, frame_ns, answered, intended, before, warmup_ns),
        started_ns=started,
        done_ns=spread("done_ns", due),
        intended_ns=intended,
        arrived_ns=np.concatenate([started[:before], desk.arrived_ns + offset_ns]),
        stream=np.concatenate([np.zeros(before, np.int64), arrivals.stream]),
        input_id=spread("input_id", np.arange(n) % frames),
        n_out=spread("n_out", none - 1),
        dropped=dropped,
        failed=~answered & ~dropped,
    )


def _places(parts: Sequence[Samples], served: Sequence[Sequence[int]], before: int) -> NDArray[np.int64]:
    """Return where each row of the parts, one after the other, belongs."""
    arrays, start = [], 0
    for part, rows in zip(parts, served, strict=True):
        first = len(part) - len(rows)
        arrays += [np.arange(start, start + first), before + np.array(rows, np.int64)]
        start += first
    return np.concatenate(arrays)


def _warmup(
    started: NDArray[np.int64],
    frame_ns: NDArray[np.int64],
    answered: NDArray[np.bool_],
    intended: NDArray[np.int64],
    before: int,
    warmup_ns: int,
) -> NDArray[np.bool_]:
    """Return (n,) True up to where service times settle in order of service, at least for the time asked."""
    rows = np.flatnonzero(answered)
    rows = rows[np.argsort(started[rows], kind="stable")]
    settled = find_warmup(frame_ns[rows], min_s=0.0, min_frames=before).frames
    timetable = intended[before:]
    least = timetable[0] + min(warmup_ns, (timetable[-1] - timetable[0]) // 2)
    until = max(int(least), int(intended[rows[settled]]) if settled < len(rows) else 0)
    warmup: NDArray[np.bool_] = intended < until
    warmup[:before] = True
    return warmup
