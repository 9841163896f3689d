"""Times of the last frames: what is kept, how it is told, and that writers do not disturb each other."""

from __future__ import annotations

import json
import struct
import sys
import tracemalloc
from threading import Thread

import numpy as np
import pytest

from edgeopt.executors.null import NullSession, Script
from edgeopt.graph.tensors import TensorSpec
from edgeopt.measurement.statistics.quantile import summarize
from edgeopt.measurement.turns.fed_back import feed_back
from edgeopt.recipes.recipe import find_recipe
from edgeopt.runtime.pool import Pool
from edgeopt.runtime.stats.ring import NOT_RUN, StageRing
from edgeopt.tasks import make_task


def filled(times: np.ndarray, length: int = 1024) -> StageRing:
    ring = StageRing(("run",), length)
    for one in times.tolist():
        ring.record((one,), one + 10, one + 20)
    return ring


def test_a_ring_that_saw_nothing_says_none_and_never_nan():
    stats = StageRing(("preprocess", "execute")).stats()
    assert stats.frame.p50_ms is stats.age.p99_ms is stats.last_age_ms is stats.missed_ratio is None
    assert stats.fed == stats.served == stats.frame.frames == 0
    assert json.loads(json.dumps(stats.to_json(), allow_nan=False))["stages"]["execute"]["p99_ms"] is None


def test_percentiles_are_the_benchmarks_own_over_the_last_frames():
    times = np.random.default_rng(1).integers(1, 10**9, 2500)
    stats = filled(times, 1000).stats()
    summary = summarize(times[-1000:])
    assert stats.stages["run"].p50_ms == summary.p50.value_ms
    assert stats.stages["run"].p90_ms == summary.p90.value_ms
    assert stats.stages["run"].p99_ms == summary.p99.value_ms
    assert stats.frame.p50_ms == pytest.approx(summary.p50.value_ms + 10e-6)
    assert (stats.served, stats.frame.frames) == (2500, 1000)


@pytest.mark.parametrize("frames", [1, 9, 10, 11, 25, 30])
def test_totals_tell_of_all_frames_however_often_the_ring_went_round(frames):
    times = np.arange(1, frames + 1)
    stats = filled(times, 10).stats()
    assert stats.stages["run"].total_ms == pytest.approx(times.sum() / 1e6)
    assert stats.stages["run"].total_frames == frames
    assert stats.stages["run"].frames == min(frames, 10)
    assert stats.last_age_ms == pytest.approx((frames + 20) / 1e6)


def test_a_pool_reads_the_clock_of_its_session():
    class SlowClock(NullSession):
        @property
        def clock(self):
            return lambda: 7

    script = Script((TensorSpec("x", "float32", (1,)),), ({"y": np.zeros(1, np.float32)},))
    session = SlowClock(script)
    task = make_task(find_recipe("tensors"), session.inputs, session.outputs, evaluating=False)
    for each in (session, feed_back(session, {"x": "y"})):
        pool = Pool(each, lambda: task, lambda _, frame: (frame, None))
        with pool.take() as work:
            work.preprocess({"x": np.zeros(1, np.float32)})
            work.execute()
            work.postprocess()
            assert set(work.times_ns) == {0}


def test_a_stage_that_a_frame_did_not_have_counts_for_nothing():
    ring = StageRing(("detect", "recognise"))
    ring.record((1_000_000, NOT_RUN), 1_000_000)
    ring.record((3_000_000, 5_000_000), 8_000_000)
    stats = ring.stats()
    assert (stats.stages["recognise"].p50_ms, stats.stages["recognise"].total_frames) == (5.0, 1)
    assert stats.stages["detect"].total_ms == 4.0
    assert stats.age.p50_ms is stats.last_age_ms is None


def test_every_frame_that_came_in_is_accounted_for():
    ring = StageRing(("run",))
    ring.feed(7)
    ring.record((5,), 5, is_missed=True)
    ring.record((5,), 5)
    ring.drop(2)
    ring.fail()
    stats = ring.stats()
    assert (stats.fed, stats.served, stats.dropped, stats.failed, stats.missed) == (7, 2, 2, 1, 1)
    assert (stats.waiting, stats.missed_ratio) == (2, 0.5)


def test_many_writers_lose_no_frame_and_tear_no_row():
    ring = StageRing(("a", "b", "c"), 64)
    torn = []

    def write(value: int) -> None:
        for _ in range(4000):
            ring.record((value, value, value), value, value)

    def read() -> None:
        for _ in range(200):
            rows = ring.stats()
            torn.extend([rows] if rows.frame.total_frames != rows.served else [])

    threads = [Thread(target=write, args=(one,)) for one in range(1, 9)] + [Thread(target=read)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    finally:
        sys.setswitchinterval(before)
    stats = ring.stats()
    assert stats.served == 8 * 4000
    assert stats.frame.total_ms == pytest.approx(4000 * 36 / 1e6)
    assert stats.stages["a"] == stats.stages["c"] == stats.frame == stats.age
    assert not torn


def test_recording_takes_no_memory():
    ring = StageRing(("a", "b", "c"))
    ring.record((1, 2, 3), 6)
    tracemalloc.start()
    try:
        for one in range(10**6, 10**6 + 5000):
            ring.record((one, one, one), one, one)
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown < 2000


def test_a_frame_with_too_few_times_is_refused_and_not_counted():
    ring = StageRing(("a", "b"))
    with pytest.raises(struct.error):
        ring.record((1,), 1)
    assert ring.stats().served == 0
    for stages, length in ((("a", "a"), 4), (("a",), 0)):
        with pytest.raises(ValueError, match="names that differ"):
            StageRing(stages, length)
