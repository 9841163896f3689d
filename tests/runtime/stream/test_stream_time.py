"""The time arithmetic of a stream: real threads, the null executor, and a clock that moves only when all wait."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted_stream import FRAME, MS, Scripted, scripted

from edgeopt.runtime.stream import Stream, StreamResult

BUDGET_MS = 33
PERIOD_NS = 10**9 / 30


@pytest.fixture
def script(tmp_path) -> Iterator[Scripted]:
    with scripted(tmp_path) as made:
        yield made


def stream_of(script: Scripted, execute_ms, queue: str = "latest", count: int = 300, **wishes) -> Stream:
    wishes = {"fps": 30, "budget_ms": BUDGET_MS, "degrade": None, "pipelined": False} | wishes
    frames = (FRAME for _ in range(count))
    return Stream(script.runtime(execute_ms), frames, queue=queue, clockwork=script.clockwork, **wishes)


def adds_up(stream: Stream) -> bool:
    stats = stream.stats()
    return stats.fed == stats.served + stats.dropped + stats.failed and stats.waiting == 0


@pytest.mark.parametrize("service_ms", [10, 32, 34, 50, 70, 100, 333, 1000])
def test_latest_never_shows_a_frame_older_than_the_budget_and_one_service_time(script, service_ms):
    stream = stream_of(script, [service_ms])
    results = list(stream)
    assert max(one.age_ns for one in results) <= (BUDGET_MS + service_ms) * MS
    assert adds_up(stream)
    stats = stream.stats()
    assert stats.fed == 300
    assert stats.served == len(results)
    assert stats.missed == sum(one.age_ns > BUDGET_MS * MS for one in results) == sum(one.missed for one in results)
    if service_ms < 33:
        assert (stats.served, stats.dropped, stats.missed) == (300, 0, 0)
    else:  # at most one period is lost between two answers
        assert stats.served >= 300 * PERIOD_NS / (service_ms * MS + PERIOD_NS) - 1
    assert script.clockwork.running == []


def test_fifo_serves_all_and_reports_the_growing_wait(script):
    stream = stream_of(script, [50], "fifo")
    results = list(stream)
    stats = stream.stats()
    assert (stats.fed, stats.served, stats.dropped) == (300, 300, 0)
    for k, one in enumerate(results):
        assert one.index == k
        assert one.times_ns["wait"] == pytest.approx(k * (50 * MS - PERIOD_NS), abs=10)
        assert one.age_ns == one.times_ns["wait"] + 50 * MS
    assert stats.waiting_growth_ratio == pytest.approx(0.5, abs=0.01)  # 50 ms of work arrive in 33.3 ms
    assert stats.stages["wait"].p99_ms == pytest.approx(296 * (50 - PERIOD_NS / MS), rel=0.02)
    assert stats.answers_per_s == pytest.approx(20)


def test_bounded_refuses_the_newcomer(script):
    stream = stream_of(script, [100], "bounded:2")
    results = list(stream)
    stats = stream.stats()
    assert stats.served + stats.dropped == 300
    assert stats.dropped > 150
    assert max(one.age_ns for one in results) <= 100 * MS * 4  # two wait before it, one is on its way
    assert adds_up(stream)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["latest", "fifo", "bounded:1", "bounded:3"]),
    st.lists(st.integers(1, 120), min_size=1, max_size=6),
    st.integers(0, 40),
    st.integers(0, 90),
    st.booleans(),
)
def test_the_counts_add_up_in_every_policy_also_when_stopped_half_way(tmp_path, queue, times, after, reader, pipelined):
    with scripted(tmp_path, preprocess_ms=7) as script:
        stream = stream_of(script, times, queue, 60, pipelined=pipelined)
        results: list[StreamResult] = []
        with stream:
            for result in stream:
                results.append(result)
                script.clockwork.sleep_ns(reader * MS)
                if len(results) > after:
                    break
        stats = stream.stats()
        assert stats.fed == stats.served + stats.dropped + stats.failed
        assert stats.served == len(results)
        assert stats.fed <= 60
        assert [one.index for one in results] == sorted({one.index for one in results})
        if queue == "latest":
            slowest = max(one.latency_ns for one in results) if results else 0
            assert all(one.age_ns <= BUDGET_MS * MS + slowest for one in results)


@pytest.mark.parametrize(("queue", "most"), [("latest", 1), ("bounded:5", 5), ("fifo", 15)])
def test_a_reader_that_never_reads_costs_no_memory_and_its_frames_are_counted(script, queue, most):
    frames = ({"x": np.zeros(2**14, np.float32)} for _ in range(1000))
    stream = Stream(script.runtime([1]), frames, queue=queue, clockwork=script.clockwork, most_waiting_mib=1)
    with stream:
        script.clockwork.sleep_ns(40 * 10**9)
        stats = stream.stats()
        assert stats.served == 0
        assert stats.waiting <= most + 1  # one more is in the hands of the capture
        assert stats.fed == (1000 if queue != "fifo" else 16)
    assert adds_up(stream)
    assert [one.reason for one in stats.events] == ["15 frames of 0 MiB wait: the source waits"] * (queue == "fifo")


def test_frames_without_a_rate_come_as_fast_as_they_are_yielded_and_a_folder_when_it_is_wanted(script, tmp_path):
    stream = stream_of(script, [20], "fifo", 50, fps=None)
    assert [one.index for one in stream] == list(range(50))
    np.savez(tmp_path / "frames.npz", x=np.zeros((40, 1, 4), np.float32))
    runtime = script.runtime([20])
    stream = Stream(runtime, tmp_path / "frames.npz", fps=None, pipelined=False, clockwork=script.clockwork)
    results = list(stream)
    assert stream.stats().served == 40
    assert {one.age_ns for one in results} == {20 * MS}


@pytest.mark.parametrize("pipelined", [None, True, False])
def test_no_frame_of_a_folder_is_too_old_however_slow_the_model_is(tmp_path, pipelined):
    with scripted(tmp_path, preprocess_ms=50) as script:
        np.savez(tmp_path / "frames.npz", x=np.zeros((60, 1, 4), np.float32))
        wishes = {"fps": None, "pipelined": pipelined, "clockwork": script.clockwork}
        stream = Stream(script.runtime([100]), tmp_path / "frames.npz", **wishes)
        assert [one.index for one in stream] == list(range(60))
        assert (stream.stats().served, stream.stats().dropped) == (60, 0)
