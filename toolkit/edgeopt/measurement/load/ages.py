"""How regular and how old the answers are that leave a run, stream by stream."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from edgeopt.measurement.samples import Samples
from edgeopt.measurement.statistics.dependence import longest_run


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
    return np.concatenate([np.zeros(0, np.int64), *(np.diff(np.sort(rows.done_ns[one])) for one in by_stream(rows))])


def longest_run_of_a_stream(rows: Samples, missed: NDArray[np.bool_]) -> int:
    """Return the longest unbroken run of misses that one stream saw.

    Args:
        rows: In order of arrival.
        missed: (n,)
    """
    return max((longest_run(missed[mask]) for mask in by_stream(rows)), default=0)
