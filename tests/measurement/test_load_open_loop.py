from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from fixture_load import MS, PICTURE, PlainTask, frames_taking, policies, runs, session, waiting_on
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_load import simulate

from edgeopt.measurement.clock import ScriptedClock
from edgeopt.measurement.load.arrivals import make_arrivals
from edgeopt.measurement.load.closed_loop import run_closed
from edgeopt.measurement.load.models.fps import FixedRate
from edgeopt.measurement.load.models.poisson import Poisson
from edgeopt.measurement.load.open_loop import run_open, wait_by
from edgeopt.measurement.statistics.quantile import quantile
from edgeopt.runtime.schedule.queueing import FIFO, LATEST


def served_by_script(arrivals, service_ns, **options):
    """Run the real loop with one worker on a scripted clock that does not start at zero."""
    clock = ScriptedClock(now_ns=77 * MS)
    return run_open(
        frames_taking(service_ns, clock),
        [(PlainTask(), session(clock.advance))],
        arrivals,
        clock=clock,
        wait_until=waiting_on(clock),
        **{"first_frames": 0, "warmup_s": 0.0, "drain_s": 1e6, **options},
    )


@settings(deadline=None)
@given(runs(), policies)
def test_the_real_loop_and_the_simulation_are_the_same_to_the_nanosecond(run, policy):
    arrivals, service = run
    real, simulated = served_by_script(arrivals, service, queue=policy), simulate(arrivals, service, policy)
    for column in ("intended_ns", "started_ns", "done_ns", "frame_ns", "dropped", "failed", "stream"):
        np.testing.assert_array_equal(getattr(real, column), getattr(simulated, column), err_msg=column)
    np.testing.assert_array_equal(real.arrived_ns, real.intended_ns)
    np.testing.assert_array_equal(real.input_id, np.arange(len(arrivals)))


@settings(deadline=None)
@given(runs(), policies, st.integers(0, 5))
def test_first_frames_come_before_the_timetable_and_are_warm_up(run, policy, first_frames):
    arrivals, service = run
    plain = served_by_script(arrivals, service, queue=policy)
    primed = served_by_script(arrivals, service, queue=policy, first_frames=first_frames)
    begun = int(service[np.arange(first_frames) % len(service)].sum())
    assert len(primed) == len(plain) + first_frames
    assert primed.warmup[:first_frames].all()
    np.testing.assert_array_equal(primed.response_ns[first_frames:], plain.response_ns)
    np.testing.assert_array_equal(primed.intended_ns[first_frames:], plain.intended_ns + begun)
    np.testing.assert_array_equal(primed.dropped[first_frames:], plain.dropped)


def test_a_stall_of_one_second_shows_in_the_open_loop_and_hides_in_the_closed_one():
    arrivals = make_arrivals(FixedRate(100.0), seconds=30.0)
    service = np.full(len(arrivals), MS)
    service[1500] = 1000 * MS
    opened = served_by_script(arrivals, service)
    clock = ScriptedClock()
    closed = run_closed(
        frames_taking(service, clock),
        [(PlainTask(), session(clock.advance))],
        seconds=3.9,
        min_frames=3000,
        warmup_s=0.0,
        clock=clock,
    )
    assert quantile(closed.response_ns, 0.99).value_ns == MS
    assert closed.response_ns.max() == 1000 * MS
    assert quantile(opened.response_ns, 0.99).value_ns == pytest.approx(700 * MS, rel=0.05)
    assert quantile(simulate(arrivals, service).response_ns, 0.99).value_ns == pytest.approx(700 * MS, rel=0.05)


def test_a_sender_that_wakes_late_is_seen_in_the_arrival_and_counted_in_the_response():
    clock = ScriptedClock()
    arrivals = make_arrivals(FixedRate(10.0), seconds=1.0)
    samples = run_open(
        frames_taking([5 * MS], clock),
        [(PlainTask(), session(clock.advance))],
        arrivals,
        warmup_s=0.0,
        first_frames=0,
        clock=clock,
        wait_until=lambda due: clock.advance(due + 3 * MS - clock.now_ns),
    )
    assert (samples.arrived_ns - samples.intended_ns).tolist() == [0] + [3 * MS] * 9
    assert samples.response_ns.tolist() == [5 * MS] + [8 * MS] * 9


def test_frames_still_waiting_long_after_the_last_arrival_are_failed_not_forgotten():
    arrivals = make_arrivals(FixedRate(100.0), seconds=1.0)
    samples = served_by_script(arrivals, [50 * MS], drain_s=0.5, queue=FIFO)
    assert len(samples) == 100
    assert samples.failed.sum() == 100 - 30  # 1.49 s at 20 a second, and the one begun at 1.45 s
    assert not samples.dropped.any()
    assert samples.failed[30:].all()


def test_warm_up_lasts_as_long_as_asked_and_until_times_settle():
    arrivals = make_arrivals(FixedRate(50.0), seconds=10.0)
    service = np.full(len(arrivals), 5 * MS)
    assert served_by_script(arrivals, service, warmup_s=2.0).warmup.sum() == 100
    assert served_by_script(arrivals, service, warmup_s=60.0).warmup.sum() == 250
    service[:200] = 15 * MS
    assert served_by_script(arrivals, service, warmup_s=2.0).warmup.sum() == 200


def test_progress_is_told_four_times_a_second_at_most():
    told = []
    arrivals = make_arrivals(FixedRate(100.0), seconds=2.0)
    served_by_script(arrivals, [MS], on_progress=lambda frames, seconds: told.append((frames, seconds)))
    assert 6 <= len(told) <= 8
    assert told == sorted(told)


def test_a_closed_run_tells_its_progress_too():
    told, clock = [], ScriptedClock()
    run_closed(
        frames_taking([10 * MS], clock),
        [(PlainTask(), session(clock.advance))],
        seconds=1.0,
        warmup_s=1.0,
        clock=clock,
        on_progress=lambda frames, seconds: told.append((frames, seconds)),
    )
    assert told == [(25 * k, pytest.approx(0.25 * k)) for k in range(1, 8)]


def test_a_run_needs_a_worker_and_an_arrival():
    arrivals = make_arrivals(FixedRate(10.0), seconds=1.0)
    with pytest.raises(ValueError, match="pipeline"):
        run_open([PICTURE], [], arrivals)
    with pytest.raises(ValueError, match="worker"):
        run_closed([PICTURE], [], seconds=1.0)


class BrokenTask(PlainTask):
    """Fails at its third frame."""

    turns = 0

    def preprocess(self, frame):
        self.turns += 1
        if self.turns == 3:
            raise RuntimeError("the camera fell down")
        return super().preprocess(frame)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_in_any_worker_ends_the_run_and_reaches_the_caller(workers):
    def pipelines():
        return [(BrokenTask() if i == 0 else PlainTask(), session(lambda _: None)) for i in range(workers)]

    arrivals = make_arrivals(Poisson(2000.0), seconds=30.0)
    with pytest.raises(RuntimeError, match="the camera fell down"):
        run_open([PICTURE], pipelines(), arrivals, first_frames=0)
    with pytest.raises(RuntimeError, match="the camera fell down"):
        run_closed([PICTURE], pipelines(), seconds=3600.0)


def test_real_workers_keep_every_row_and_never_run_two_frames_at_once():
    """The only run here in which time passes; nothing is said about how much."""
    pipelines = [(PlainTask(), session(lambda _: time.sleep(0.001))) for _ in range(2)]
    arrivals = make_arrivals(FixedRate(100.0), seconds=0.4, streams=2)
    threads_before = {*threading.enumerate()}
    samples = run_open([PICTURE], pipelines, arrivals, queue=LATEST, first_frames=2, warmup_s=0.1)
    assert {*threading.enumerate()} <= threads_before  # one of another test may have ended meanwhile
    served, steady = samples.served(), samples.select(np.arange(len(samples)) >= 4)
    assert len(samples) == len(arrivals) + 4
    assert len(served) + samples.dropped.sum() + samples.failed.sum() == len(samples)
    np.testing.assert_array_equal(steady.stream, arrivals.stream)
    np.testing.assert_array_equal(np.diff(steady.intended_ns), np.diff(arrivals.intended_ns))
    assert (samples.arrived_ns >= samples.intended_ns).all()
    assert (served.started_ns >= served.intended_ns).all()
    np.testing.assert_array_equal(served.done_ns - served.started_ns, served.frame_ns)
    assert (served.overhead_ns >= 0).all()
    begun = np.sort(served.started_ns)
    assert max(((served.started_ns <= t) & (t < served.done_ns)).sum() for t in begun) <= 2


def test_real_closed_workers_take_different_frames_in_order_of_their_start():
    pipelines = [(PlainTask(), session(lambda _: time.sleep(0.0005))) for _ in range(2)]
    samples = run_closed([PICTURE] * 7, pipelines, seconds=0.1, warmup_s=0.02, min_frames=20, variant="two")
    assert samples.variant == "two"
    assert set(samples.stream.tolist()) == {0, 1}
    assert (np.diff(samples.started_ns) >= 0).all()
    for worker in range(2):
        mine = samples.select(samples.stream == worker)
        assert mine.input_id.tolist() == [(worker + 2 * i) % 7 for i in range(len(mine))]
        assert (mine.started_ns[1:] >= mine.done_ns[:-1]).all()
    assert (np.diff(samples.warmup.astype(int)) <= 0).all()


def test_waiting_ends_at_or_after_the_instant():
    wait, due = wait_by(time.perf_counter_ns), time.perf_counter_ns() + 3 * MS
    wait(due)
    assert time.perf_counter_ns() >= due
    wait(due)
