from __future__ import annotations

import numpy as np
import pytest
from fixture_load import MS, policies, runs
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_load import simulate

from edgeopt.errors import EdgeoptError
from edgeopt.measurement.load.arrivals import Arrivals, make_arrivals
from edgeopt.measurement.load.models.fps import FixedRate
from edgeopt.measurement.load.models.poisson import Poisson
from edgeopt.measurement.load.open_loop import QueueLine
from edgeopt.runtime.schedule.queueing import FIFO, LATEST, Queue, QueueKind, QueuePolicy, parse_queue


@pytest.mark.parametrize("text", ["fifo", "latest", "bounded:8"])
def test_a_queue_is_read_as_it_is_written(text):
    assert str(parse_queue(text)) == text


@pytest.mark.parametrize("text", ["", "lifo", "bounded", "bounded:0", "bounded:-1", "latest:1"])
def test_a_wrong_queue_says_what_to_write(text):
    with pytest.raises(EdgeoptError) as caught:
        parse_queue(text)
    assert caught.value.remedy == "write fifo, bounded:8 or latest"


def test_only_a_bounded_queue_has_a_depth():
    with pytest.raises(ValueError, match="no depth"):
        QueuePolicy(QueueKind.FIFO, 3)
    with pytest.raises(ValueError, match="no depth"):
        QueuePolicy(QueueKind.BOUNDED)


def test_a_full_queue_refuses_the_newcomer():
    queue = Queue(parse_queue("bounded:2"))
    assert [queue.offer(row, 0) for row in range(4)] == [None, None, 2, 3]
    assert [queue.take() for _ in range(3)] == [0, 1, None]


def test_the_latest_frame_replaces_the_older_one_of_its_stream_and_keeps_its_place():
    queue = Queue(LATEST)
    assert [queue.offer(row, stream) for row, stream in [(0, 7), (1, 8), (2, 7), (3, 7)]] == [None, None, 0, 2]
    assert [queue.take() for _ in range(3)] == [3, 1, None]


@settings(deadline=None)
@given(policies, st.lists(st.one_of(st.none(), st.integers(0, 2)), max_size=80))
def test_a_queue_keeps_its_promise_and_loses_no_row_unsaid(policy, events):
    """An event is a frame of that stream, or (None) a worker that takes one."""
    queue, waiting, out = Queue(policy), [], []
    for row, stream in enumerate(events):
        if stream is None:
            taken = queue.take()
            assert (taken is None) == (not waiting)
            if taken is not None:
                waiting.remove(taken)
                out.append(taken)
            continue
        lost = queue.offer(row, stream)
        waiting.append(row)
        if lost is not None:
            waiting.remove(lost)
        assert len(queue) == len(waiting)
        if policy.kind is QueueKind.LATEST:
            held = [events[one] for one in waiting]
            assert len(held) == len(set(held))
            assert row in waiting
        if policy.depth:
            assert len(waiting) <= policy.depth
        if policy.kind is QueueKind.FIFO:
            assert lost is None
    if policy.kind is not QueueKind.LATEST:
        assert out == sorted(out)


@settings(deadline=None)
@given(runs(), policies, st.integers(1, 3))
def test_every_arrival_is_served_or_dropped_and_never_before_it_arrives(run, policy, workers):
    arrivals, service = run
    samples = simulate(arrivals, service, policy, workers)
    served = samples.served()
    assert len(samples) == len(arrivals)
    assert (samples.started_ns >= samples.intended_ns).all()
    np.testing.assert_array_equal(served.done_ns - served.started_ns, service[~samples.lost])
    assert not samples.frame_ns[samples.lost].any()
    busy = np.array([((served.started_ns <= t) & (t < served.done_ns)).sum() for t in served.started_ns])
    assert busy.max() <= workers


@settings(deadline=None)
@given(runs(), policies, st.integers(1, 3))
def test_no_worker_is_idle_while_a_frame_waits(run, policy, workers):
    samples = simulate(*run, policy, workers)
    served = samples.served()
    for start, intended in zip(served.started_ns, served.intended_ns, strict=True):
        if start > intended:
            others = (served.started_ns <= start - 1) & (start - 1 < served.done_ns)
            assert others.sum() == workers


@settings(deadline=None)
@given(runs())
def test_one_fifo_worker_obeys_lindley(run):
    arrivals, service = run
    samples = simulate(arrivals, service)
    wait, expected = 0, []
    for i, instant in enumerate(arrivals.intended_ns):
        if i:
            wait = max(0, wait + service[i - 1] - (instant - arrivals.intended_ns[i - 1]))
        expected.append(wait)
    assert (samples.started_ns - samples.intended_ns).tolist() == expected


@settings(deadline=None)
@given(runs(), st.integers(1, 3))
def test_a_bounded_queue_with_room_for_all_is_a_fifo(run, workers):
    arrivals, _ = run
    roomy = QueuePolicy(QueueKind.BOUNDED, len(arrivals) + 1)
    np.testing.assert_array_equal(simulate(*run, roomy, workers).done_ns, simulate(*run, FIFO, workers).done_ns)


def test_frames_that_arrive_together_find_every_idle_worker():
    arrivals = Arrivals(np.array([MS, MS, MS]), np.zeros(3, np.int64))
    for policy in (FIFO, LATEST, QueuePolicy(QueueKind.BOUNDED, 1)):
        samples = simulate(arrivals, np.full(3, MS), policy, workers=3)
        assert not samples.lost.any()
        assert samples.started_ns.tolist() == [MS] * 3


def test_poisson_arrivals_at_one_server_wait_as_pollaczek_and_khinchine_say():
    load, service_s = Poisson(70.0), 0.01
    arrivals = make_arrivals(load, seconds=3000.0, seed=2)
    samples = simulate(arrivals, np.full(len(arrivals), int(service_s * 1e9)))
    rho = load.rate_per_s * service_s
    mean_wait_s = (samples.started_ns - samples.intended_ns).mean() / 1e9
    assert mean_wait_s == pytest.approx(rho * service_s / (2 * (1 - rho)), rel=0.03)


def test_a_simulation_needs_a_time_for_each_arrival_and_a_worker():
    arrivals = make_arrivals(FixedRate(10.0), seconds=1.0)
    with pytest.raises(ValueError, match="service times"):
        simulate(arrivals, np.ones(3, np.int64))
    with pytest.raises(ValueError, match="worker"):
        simulate(arrivals, np.ones(10, np.int64), workers=0)


def test_a_line_is_empty_after_the_last_arrival():
    line = QueueLine(Arrivals(np.array([5]), np.zeros(1, np.int64)), FIFO)
    assert (line.take(4), line.next_ns, line.take_next(), line.next_ns, line.take_next()) == (None, 5, 0, None, None)
