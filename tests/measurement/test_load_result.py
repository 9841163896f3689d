from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from fixture_load import MS, PlainTask, frames_taking, policies, runs, session
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_load import check_little, simulate

from edgeopt.measurement.clock import ScriptedClock
from edgeopt.measurement.load.arrivals import Arrivals, make_arrivals
from edgeopt.measurement.load.closed_loop import run_closed, run_frames
from edgeopt.measurement.load.models.closed import Closed
from edgeopt.measurement.load.models.fps import FixedRate
from edgeopt.measurement.load.models.poisson import Poisson
from edgeopt.measurement.load.result import (
    LoadStatus,
    answer_gaps,
    hold_ages,
    queue_wait_ns,
    summarize_load,
)
from edgeopt.measurement.statistics.budget import Verdict
from edgeopt.runtime.schedule.queueing import FIFO, LATEST, parse_queue

FPS = FixedRate(30.0)


def spiky(n: int, seed: int = 5) -> np.ndarray:
    """20 ms, and 310 ms once in a hundred frames."""
    return np.where(np.random.default_rng(seed).random(n) < 0.01, 310 * MS, 20 * MS)


def result_of(samples, load=FPS, **options):
    return summarize_load(samples, load, **{"budget_ms": 100 / 3, **options})


def test_the_policy_decides_how_many_frames_miss_at_the_same_service_times():
    arrivals = make_arrivals(FPS, seconds=2000.0)
    service = spiky(len(arrivals))
    fifo = result_of(simulate(arrivals, service, FIFO), queue=FIFO)
    latest = result_of(simulate(arrivals, service, LATEST), queue=LATEST)
    alone = result_of(simulate(make_arrivals(FixedRate(1.0), seconds=60000.0), service), FixedRate(1.0))
    assert alone.budget.miss_ratio == pytest.approx(0.01, abs=0.002)
    assert fifo.budget.miss_ratio == pytest.approx(0.237, abs=0.02)
    assert latest.dropped_ratio == pytest.approx(0.079, abs=0.01)
    assert latest.budget.miss_ratio == pytest.approx(0.089, abs=0.01)
    assert fifo.response.p90.value_ms == pytest.approx(239, rel=0.08)
    assert latest.response.p90.value_ms == pytest.approx(21.5, rel=0.08)
    assert fifo.queue_wait.p90.value_ms == pytest.approx(206, rel=0.1)
    assert {fifo.status, latest.status} == {LoadStatus.VALID}


def test_a_load_that_nobody_can_serve_has_a_growth_rate_and_no_percentiles():
    arrivals = make_arrivals(FPS, seconds=60.0)
    samples = simulate(arrivals, np.full(len(arrivals), 50 * MS))
    result = result_of(samples)
    assert result.status is LoadStatus.UNSTABLE_QUEUE
    assert (result.response, result.queue_wait) == (None, None)
    assert result.offered_ratio == pytest.approx(1.5)
    assert result.growth_ratio == pytest.approx(0.5, rel=0.01)
    assert result.budget.verdict is Verdict.FAIL
    assert not check_little(samples).holds
    assert "0.500 s a second" in result.reasons[0]


@pytest.mark.parametrize("queue", ["latest", "bounded:2"])
def test_a_queue_that_drops_is_stable_at_any_load(queue):
    arrivals, policy = make_arrivals(FPS, seconds=60.0), parse_queue(queue)
    result = result_of(simulate(arrivals, np.full(len(arrivals), 50 * MS), policy), queue=policy)
    assert result.status is LoadStatus.VALID
    assert result.offered_ratio == pytest.approx(1.5)
    assert result.utilisation_ratio == pytest.approx(1.0, abs=0.01)
    assert result.dropped_ratio == pytest.approx(1 / 3, abs=0.01)
    assert result.throughput_per_s == pytest.approx(20, rel=0.01)
    assert result.arrivals == result.served + result.dropped


def test_a_late_generator_makes_the_run_invalid():
    arrivals = make_arrivals(FPS, seconds=60.0)
    samples = simulate(arrivals, np.full(len(arrivals), MS))
    late = samples.intended_ns.copy()
    late[::50] += 2 * MS
    assert result_of(samples).status is LoadStatus.VALID
    result = result_of(replace(samples, arrived_ns=late))
    assert result.status is LoadStatus.INVALID
    assert result.send_lag_ratio == pytest.approx(0.06)
    assert "6.0% of a period late" in result.reasons[0]
    late = samples.intended_ns + np.where(np.arange(len(samples)) % 200 == 0, 20 * MS, 0)
    assert result_of(replace(samples, arrived_ns=late)).status is LoadStatus.VALID


def test_lost_frames_are_misses_and_a_streak_is_of_one_stream():
    arrivals = make_arrivals(FixedRate(10.0), seconds=6.0, streams=2)
    samples = simulate(arrivals, np.full(len(arrivals), MS))
    dropped = (samples.stream == 1) & (np.arange(len(samples)) < 20)
    result = result_of(replace(samples, dropped=dropped), FixedRate(10.0), streams=2)
    assert (result.arrivals, result.dropped, result.served) == (120, 10, 110)
    assert result.budget.misses == 10
    assert result.budget.longest_miss_run == 1
    assert result.longest_miss_run == 10
    assert result.misses_per_minute == pytest.approx(100.0, rel=0.02)


def test_answers_of_a_regular_camera_have_no_jitter_and_age_one_period_more():
    arrivals = make_arrivals(FPS, seconds=60.0, streams=3)
    result = result_of(simulate(arrivals, np.full(len(arrivals), 8 * MS)), streams=3)
    assert result.jitter_ms == pytest.approx(0, abs=1e-5)
    assert result.jitter_p99.value_ns <= 1
    assert result.hold_age.max_ns == pytest.approx(8 * MS + 1e9 / 30, abs=2)
    assert result.response.max_ns == 8 * MS


def test_an_answer_overtaken_by_a_newer_frame_is_never_held():
    arrivals = Arrivals(np.array([0, 10, 20, 30]) * MS, np.zeros(4, np.int64))
    samples = simulate(arrivals, np.array([5, 35, 5, 5]) * MS, workers=2)
    assert samples.done_ns.tolist() == [5 * MS, 45 * MS, 25 * MS, 35 * MS]
    assert hold_ages(samples).tolist() == [25 * MS, 15 * MS]
    assert answer_gaps(samples).tolist() == [20 * MS, 10 * MS, 10 * MS]


@settings(deadline=None)
@given(runs(), policies, st.integers(1, 3))
def test_every_arrival_is_accounted_for_and_nothing_takes_negative_time(run, policy, workers):
    arrivals, service = run
    samples = simulate(arrivals, service, policy, workers)
    result = result_of(samples, Poisson(100.0), queue=policy, streams=3, workers=workers)
    assert result.arrivals == result.served + result.dropped + result.failed
    assert (queue_wait_ns(samples) >= 0).all()
    assert (hold_ages(samples.served()) >= 0).all()
    assert (answer_gaps(samples.served()) >= 0).all()
    assert 0 < result.utilisation_ratio <= 1 + 1e-9
    assert result.budget.misses >= result.dropped
    assert result.longest_miss_run <= result.budget.misses
    np.testing.assert_array_equal(
        samples.served().response_ns, queue_wait_ns(samples.served()) + samples.served().frame_ns
    )
    json.dumps(asdict(result), allow_nan=False)


@pytest.mark.parametrize("workers", [1, 2])
def test_littles_law_holds_for_a_stable_queue(workers):
    load = Poisson(60.0 * workers)
    arrivals = make_arrivals(load, seconds=300.0, seed=8)
    samples = simulate(arrivals, np.full(len(arrivals), 10 * MS), workers=workers)
    result = result_of(samples, load, workers=workers)
    assert check_little(samples).holds
    assert result.utilisation_ratio == pytest.approx(0.6, rel=0.05)


def test_little_says_nothing_where_no_time_passes():
    one = simulate(Arrivals(np.array([3]), np.zeros(1, np.int64)), np.array([MS]))
    together = simulate(Arrivals(np.array([3, 3]), np.zeros(2, np.int64)), np.array([MS, MS]))
    assert check_little(one) is None
    assert check_little(together) is None


def test_warm_up_is_in_no_figure():
    arrivals = make_arrivals(FPS, seconds=60.0)
    service = np.where(np.arange(len(arrivals)) < 100, 200 * MS, 5 * MS)
    samples = simulate(arrivals, service)
    warm = replace(samples, warmup=samples.started_ns - samples.intended_ns > 0)
    assert result_of(warm).response.max_ns <= 200 * MS
    assert result_of(warm).arrivals == len(arrivals) - warm.warmup.sum()


def test_a_closed_loop_has_service_times_and_no_queue():
    clock = ScriptedClock()
    samples = run_closed(
        frames_taking([10 * MS], clock),
        [(PlainTask(), session(clock.advance))],
        seconds=5.0,
        warmup_s=1.0,
        clock=clock,
    )
    result = result_of(samples, Closed(1))
    assert (result.load, result.queue) == ("closed:1", "none")
    assert (result.offered_ratio, result.send_lag_ratio, result.jitter_p99) == (None, None, None)
    assert result.queue_wait.max_ns == 0
    assert result.response == result.service
    assert result.throughput_per_s == pytest.approx(100.0)
    assert result.utilisation_ratio == pytest.approx(1.0)
    assert check_little(samples).holds
    assert check_little(samples).measured == pytest.approx(1.0, rel=0.01)


def test_a_plain_closed_loop_without_workers_is_one_stream():
    clock = ScriptedClock()
    samples = run_frames(
        frames_taking([10 * MS], clock),
        PlainTask(),
        session(clock.advance),
        seconds=2.0,
        min_frames=100,
        warmup_s=0.0,
        clock=clock,
    )
    result = result_of(samples, Closed(1))
    assert result.status is LoadStatus.VALID
    assert result.response.max_ns == 10 * MS
    assert result.longest_miss_run == 0
    assert (result.dropped, result.failed) == (0, 0)


def test_samples_without_instants_have_times_but_no_ages():
    samples = replace(simulate(make_arrivals(FPS, seconds=1.0), np.full(30, MS)), done_ns=None, stream=None)
    assert not len(hold_ages(samples))
    assert not len(answer_gaps(samples))
    assert check_little(samples) is None
