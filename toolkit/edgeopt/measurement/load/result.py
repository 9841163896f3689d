"""The result of a run under load: response, waiting, misses, losses, age, jitter, and whether it can be used at all.

All figures come from rows after warm-up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edgeopt.measurement.common_options import MAX_MISS_RATIO
from edgeopt.measurement.load.models import Load, OpenLoad
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.statistics.budget import BudgetResult, judge_budget
from edgeopt.measurement.statistics.dependence import longest_run
from edgeopt.measurement.statistics.quantile import Quantile, Summary, quantile, summarize
from edgeopt.runtime.schedule.queueing import FIFO, QueueKind, QueuePolicy
from edgeopt.system.order_statistic import order_statistic


def by_stream(rows: Samples) -> Iterator[NDArray[np.bool_]]:
    """Yield the mask (n,) of each stream's rows; one of all rows where there are no streams."""
    if rows.stream is None:
        yield np.ones(len(rows), np.bool_)
        return
    for stream in np.unique(rows.stream):
        yield rows.stream == stream


def hold_ages(rows: Samples) -> NDArray[np.int64]:
    """Return how old each answer had become when a newer one of its stream replaced it, nanoseconds.

    The age counts from the arrival of the frame. An answer that is overtaken by that of a newer frame is never
    used, so it replaces nothing.

    Args:
        rows: Served frames with `done_ns`.

    Returns:
        One age per answer that was used and replaced, all streams.
    """
    if rows.done_ns is None:
        return np.zeros(0, np.int64)
    ages = [np.zeros(0, np.int64)]
    for mask in by_stream(rows):
        done = rows.done_ns[mask]
        order = np.argsort(done, kind="stable")
        done, captured = done[order], (done - rows.response_ns[mask])[order]
        used = captured > np.concatenate([[np.iinfo(np.int64).min], np.maximum.accumulate(captured)])[:-1]
        ages.append(done[used][1:] - captured[used][:-1])
    return np.concatenate(ages)


def answer_gaps(rows: Samples) -> NDArray[np.int64]:
    """Return the times between neighbouring answers of one stream, all streams one after the other.

    Args:
        rows: Served frames with `done_ns`.
    """
    if rows.done_ns is None:
        return np.zeros(0, np.int64)
    return np.concatenate(
        [np.zeros(0, np.int64), *(np.diff(np.sort(rows.done_ns[array])) for array in by_stream(rows))]
    )


def longest_run_of_a_stream(rows: Samples, missed: NDArray[np.bool_]) -> int:
    """Return the longest unbroken run of misses that one stream saw.

    Args:
        rows: In order of arrival.
        missed: (n,)
    """
    return max((longest_run(missed[mask]) for mask in by_stream(rows)), default=0)


_MOST_LAG: Final = 0.05
"""Periods that the 99th percentile of the send lag may take."""


class LoadStatus(StrEnum):
    """Whether the figures of a run under load mean anything."""

    VALID = "valid"
    INVALID = "invalid"
    """The load was not the load asked for."""
    UNSTABLE_QUEUE = "unstable_queue"
    """Frames arrive faster than they are served, so waiting times grow with the length of the run."""


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The figures of one run under load; None where a figure cannot be had."""

    load: str
    queue: str
    streams: int
    workers: int
    status: LoadStatus
    reasons: tuple[str, ...]
    """Why it is not valid."""
    arrivals: int
    served: int
    dropped: int
    """Replaced by a newer frame, or refused by a full queue."""
    failed: int
    """Still waiting when the run was given up."""
    service: Summary
    response: Summary | None
    """Times from the intended arrival to the answer, of served frames: also the age of the answer. None if unstable."""
    queue_wait: Summary | None
    hold_age: Summary
    """How old an answer was when the next one of its stream replaced it."""
    jitter_ns: float | None
    """Standard deviation of the time between answers of one stream."""
    jitter_p99: Quantile | None
    """Jitter p99 of the distance of that time from the period, for a fixed rate."""
    budget: BudgetResult
    """Lost frames are misses."""
    longest_miss_run: int
    """Longest miss run of one stream."""
    misses_per_minute: float
    throughput_per_s: float
    utilisation_ratio: float
    """Busy time over the time of all workers."""
    offered_ratio: float | None
    """Arrival rate times mean service time over workers; from 1 on, no queue can keep up."""
    growth_ratio: float | None
    """Seconds by which waiting grows in a second of an unstable queue."""
    send_lag_ratio: float | None
    """99th percentile of the lateness of arrivals, over the period."""

    @property
    def dropped_ratio(self) -> float:
        """Share of arrivals that were given up by the queue."""
        return self.dropped / self.arrivals if self.arrivals else 0.0

    @property
    def jitter_ms(self) -> float | None:
        """The jitter in milliseconds."""
        return None if self.jitter_ns is None else self.jitter_ns / 1e6


def summarize_load(
    samples: Samples,
    load: Load,
    *,
    queue: QueuePolicy = FIFO,
    streams: int = 1,
    workers: int = 1,
    budget_ms: float,
    max_miss_ratio: float = MAX_MISS_RATIO,
) -> LoadResult:
    """Derive the figures of a run under load.

    Args:
        samples: Of `run_open`, `run_closed` or `simulate`; rows in order of arrival.
        load: What was asked for, per stream.
        queue: The policy it ran with; a closed loop has none.
        streams: How many cameras sent frames.
        workers: How many pipelines served them.
        budget_ms: Time from the intended arrival to the answer.
        max_miss_ratio: Share of frames that may take longer or get lost.
    """
    rows = samples.steady()
    served, missed = rows.served(), rows.lost | (rows.response_ns > budget_ms * 1e6)
    offered, lag = _offered_ratio(served, load, streams, workers), _send_lag_ratio(rows, load)
    unstable = offered is not None and offered >= 1 and queue.kind is QueueKind.FIFO
    growth = _growth_ratio(served) if unstable else None
    status, reasons = _judge(lag, offered, growth)
    wall_s = _wall_ns(served) / 1e9
    gaps = answer_gaps(served)
    return LoadResult(
        load=str(load),
        queue=str(queue) if isinstance(load, OpenLoad) else "none",
        streams=streams,
        workers=workers,
        status=status,
        reasons=reasons,
        arrivals=len(rows),
        served=len(served),
        dropped=0 if rows.dropped is None else int(rows.dropped.sum()),
        failed=0 if rows.failed is None else int(rows.failed.sum()),
        service=summarize(served.frame_ns),
        response=None if unstable else summarize(served.response_ns),
        queue_wait=None if unstable else summarize(queue_wait_ns(served)),
        hold_age=summarize(hold_ages(served)),
        jitter_ns=float(gaps.std()) if len(gaps) > 1 else None,
        jitter_p99=_jitter_p99(gaps, load),
        budget=judge_budget(rows.response_ns, budget_ms, max_miss_ratio, lost=rows.lost),
        longest_miss_run=longest_run_of_a_stream(rows, missed),
        misses_per_minute=60 * float(missed.sum()) / wall_s if wall_s else 0.0,
        throughput_per_s=len(served) / wall_s if wall_s else 0.0,
        utilisation_ratio=float(served.frame_ns.sum()) / 1e9 / wall_s / workers if wall_s else 0.0,
        offered_ratio=offered,
        growth_ratio=growth,
        send_lag_ratio=lag,
    )


def queue_wait_ns(rows: Samples) -> NDArray[np.int64]:
    """Return (n,) from the intended arrival until a worker took the frame; zeros where nothing was intended."""
    if rows.intended_ns is None or rows.started_ns is None:
        return np.zeros(len(rows), np.int64)
    return rows.started_ns - rows.intended_ns


def _judge(lag: float | None, offered: float | None, growth: float | None) -> tuple[LoadStatus, tuple[str, ...]]:
    late, unstable = lag is not None and lag > _MOST_LAG, growth is not None
    reasons = []
    if late:
        reasons.append(f"one frame in a hundred was sent {lag:.1%} of a period late, {_MOST_LAG:.0%} is allowed")
    if unstable:
        reasons.append(
            f"{offered:.2f} times as much work arrives as is served; waiting grows by {growth:.3f} s a second"
        )
    status = LoadStatus.INVALID if late else LoadStatus.UNSTABLE_QUEUE if unstable else LoadStatus.VALID
    return status, tuple(reasons)


def _offered_ratio(served: Samples, load: Load, streams: int, workers: int) -> float | None:
    if not isinstance(load, OpenLoad) or not len(served):
        return None
    return load.rate_per_s * streams * float(served.frame_ns.mean()) / 1e9 / workers


def _growth_ratio(served: Samples) -> float:
    """Return the slope of the waiting time over the time of arrival, by least squares."""
    if served.intended_ns is None or len(served) < 2:
        return 0.0
    arrived, waited = served.intended_ns / 1e9, queue_wait_ns(served) / 1e9
    centred = arrived - arrived.mean()
    spread = float(centred @ centred)
    return float(centred @ waited) / spread if spread else 0.0


def _send_lag_ratio(rows: Samples, load: Load) -> float | None:
    if not isinstance(load, OpenLoad) or rows.arrived_ns is None or rows.intended_ns is None or not len(rows):
        return None
    lag = order_statistic(np.sort(rows.arrived_ns - rows.intended_ns), 0.99)
    return lag / load.period_ns


def _jitter_p99(gaps: NDArray[np.int64], load: Load) -> Quantile | None:
    if not isinstance(load, OpenLoad) or not load.takes_jitter:
        return None
    return quantile(np.abs(gaps - round(load.period_ns)), 0.99)


def _wall_ns(served: Samples) -> int:
    """Return from the first intended arrival to the last answer."""
    if served.done_ns is None or not len(served):
        return 0
    return int(served.done_ns.max() - (served.done_ns - served.response_ns).min())
