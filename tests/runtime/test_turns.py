"""Who runs next: priorities, rhythm, patience and batches, on scripted times."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_turns import MS, camera, simulate

from edgeopt.runtime.schedule.turns import CoreTurns, Rhythm, Terms


def of(runs, name):
    return [run for run in runs if run.name == name]


def order(runs):
    return [run.name for run in runs]


def test_the_higher_priority_goes_first_and_among_equals_the_one_that_is_due_first():
    terms = {
        "first": Terms(),
        "low": Terms(priority=-1, budget_ms=1),
        "lax": Terms(budget_ms=90),
        "tight": Terms(budget_ms=30),
        "high": Terms(priority=1),
    }
    runs = simulate(terms, [(i / 10, name, 0) for i, name in enumerate(terms)], lambda *_: 10)
    assert order(runs) == ["first", "high", "tight", "lax", "low"]


def test_the_same_model_serves_in_order_of_arrival():
    runs = simulate({"a": Terms()}, [(i, "a", i) for i in range(5)], lambda *_: 10)
    assert [run.stream for run in runs] == [0, 1, 2, 3, 4]
    assert [run.begun_ms for run in runs] == [0, 10, 20, 30, 40]


def doors_and_faces(priority: int, faces_ms: float = 15, patience_ms: float = 1000):
    """Return the runs of a camera of 30 frames per second, beside frames that always wait for their turn."""
    terms = {"doors": Terms(priority=priority), "faces": Terms(patience_ms=patience_ms)}
    backlog = [(i * 20.0, "faces", 0) for i in range(100)]
    return simulate(terms, camera("doors", 33.3, 3000) + backlog, lambda name, _: 10 if name == "doors" else faces_ms)


def test_a_lower_priority_begins_nothing_that_a_camera_would_have_to_wait_for():
    learnt = of(doors_and_faces(priority=1), "doors")[8:]
    assert max(run.waited_ms for run in learnt) == 0
    beside = of(doors_and_faces(priority=0), "doors")[8:]
    assert max(run.waited_ms for run in beside) >= 10


def test_the_gaps_of_a_camera_are_used():
    faces = of(doors_and_faces(priority=1), "faces")
    assert len([run for run in faces if run.done_ms < 3000]) > 80  # one of 15 ms fits into each gap of 23 ms


def test_what_fits_into_no_gap_has_its_turn_when_its_patience_ends():
    runs = doors_and_faces(priority=1, faces_ms=30, patience_ms=500)
    faces = [run for run in of(runs, "faces")[3:] if run.begun_ms < 2900]
    gaps = [later.begun_ms - run.done_ms for run, later in itertools.pairwise(faces)]
    assert all(500 <= gap <= 510 for gap in gaps)
    late = [run for run in of(runs, "doors")[8:] if run.waited_ms]
    assert len(late) <= 2 * len(faces) + 2  # the frame that waits, and the one after it
    assert max(run.waited_ms for run in late) <= 30


def test_a_camera_that_stops_is_not_waited_for():
    terms = {"doors": Terms(priority=1), "faces": Terms()}
    stopped = camera("doors", 33, 1000)
    runs = simulate(terms, [*stopped, *((1500 + i, "faces", 0) for i in range(3))], lambda *_: 30)
    assert [run.waited_ms for run in of(runs, "faces")] == [0, 29, 58]


def test_a_camera_without_rhythm_waits_for_one_run_at_most():
    terms = {"doors": Terms(priority=1), "faces": Terms()}
    irregular = [(i * 20 + (i * i * 7) % 19, "doors", 0) for i in range(50)]
    runs = simulate(terms, irregular + [(i * 20.0, "faces", 0) for i in range(50)], lambda *_: 9)
    assert 0 < max(run.waited_ms for run in of(runs, "doors")) <= 9
    assert len(of(runs, "faces")) == 50


def test_rhythm_forgives_a_lost_frame_and_follows_a_new_rate():
    rhythm, now = Rhythm(), 0
    for i in range(12):
        now += (66 if i == 9 else 33) * MS
        rhythm.note(now)
    assert rhythm.expected(now) == (now + 33 * MS, now + 33 * MS)
    assert rhythm.expected(now + 34 * MS) == (now + 66 * MS, now + 66 * MS)
    assert rhythm.expected(now + 200 * MS) is None
    for _ in range(8):
        now += 100 * MS
        rhythm.note(now)
    assert rhythm.expected(now) == (now + 100 * MS, now + 100 * MS)


def test_rhythm_expects_no_more_than_jitter_allows_and_none_where_there_is_none():
    rhythm, now = Rhythm(), 0
    for i in range(9):
        now += (33 + (-1) ** i * 2) * MS
        rhythm.note(now)
    begin, end = rhythm.expected(now)
    assert begin <= now + 31 * MS
    assert end >= now + 35 * MS
    for gap in (5, 60, 20, 90, 10, 45, 70, 30):
        now += gap * MS
        rhythm.note(now)
    assert rhythm.expected(now) is None
    assert Rhythm().expected(5) is None


def test_a_rate_that_the_app_knows_needs_no_learning():
    terms = {"doors": Terms(priority=1, fps=30), "faces": Terms()}
    arrivals = [*camera("doors", 1000 / 30, 200), *((i * 20.0 + 1, "faces", 0) for i in range(10))]
    runs = simulate(terms, arrivals, lambda name, _: 10 if name == "doors" else 15)
    assert max(run.waited_ms for run in of(runs, "doors")[1:]) == 0


def test_frames_that_waited_elsewhere_tell_no_rhythm():
    turns, now = CoreTurns({"a": Terms(priority=1, fps=10), "b": Terms()}), 0
    for _ in range(12):  # as a worker brings a backlog: each frame as soon as the one before is done
        turns.offer("a", now)
        turn = turns.decide(now)
        now += 5 * MS
        turns.done(turn, now)
    turns.learn("b", 1, 50 * MS)
    turns.offer("b", now)
    assert turns.decide(now) is None  # the next is due 100 ms after the first, not after the last


BATCHED = Terms(max_batch=4, max_delay_ms=6)


def batches(terms, arrivals, service=lambda _, size: 8 + size):
    return simulate({"detector": terms}, arrivals, service)


def four_cameras(apart_ms):
    return [one for i in range(4) for one in camera("detector", 40, 2000, i, i * apart_ms)]


def test_frames_of_several_streams_go_together():
    runs = batches(BATCHED, four_cameras(apart_ms=1.5))[8:]
    assert {run.together for run in runs} == {4}
    assert max(run.waited_ms for run in runs) == 4.5


def test_nobody_waits_for_a_batch_longer_than_the_delay():
    runs = batches(BATCHED, four_cameras(apart_ms=5))
    assert max(run.begun_ms - run.arrived_ms for run in runs if run.together < 4) <= 6 + 8 + 4
    alone = [run for run in batches(BATCHED, four_cameras(apart_ms=10)) if run.together == 1]
    assert max(run.waited_ms for run in alone) <= 6


@pytest.mark.parametrize(("budget_ms", "size"), [(20, 4), (14.5, 3), (13.5, 2), (10, 1)])
def test_a_batch_is_no_larger_than_the_budget_of_its_oldest_frame(budget_ms, size):
    terms = Terms(budget_ms=budget_ms, max_batch=4, max_delay_ms=6)
    turns = CoreTurns({"detector": terms})
    for one in range(1, 5):
        turns.learn("detector", one, (8 + one) * MS)
    runs = simulate({"detector": terms}, four_cameras(apart_ms=1.5), lambda _, size: 8 + size, turns=turns)
    assert runs[16].together == size
    assert runs[16].latency_ms <= budget_ms


def test_the_time_of_a_batch_that_never_ran_is_bounded_by_those_that_did():
    terms = Terms(budget_ms=19, max_batch=3)
    assert [run.together for run in batches(terms, [(0.0, "detector", i) for i in range(4)])] == [3, 3, 3, 1]
    turns = CoreTurns({"detector": terms})
    turns.learn("detector", 1, 9 * MS)
    crowd = [(1.0, "detector", i) for i in range(3)]
    pair, *_ = simulate({"detector": terms}, crowd, lambda _, size: 8 + size, turns=turns)
    assert pair.together == 2  # two may take 18 ms, three 27


def test_frames_that_are_late_already_go_together_to_catch_up():
    terms = Terms(budget_ms=12, max_batch=4)
    runs = batches(terms, [(0, "detector", 0), (1, "detector", 0), *((2, "detector", i) for i in range(8))])
    assert [run.together for run in runs] == [1, *[4] * 8, 1]


def test_one_stream_or_silent_streams_are_not_waited_for():
    assert {run.waited_ms for run in batches(BATCHED, camera("detector", 40, 1000))} == {0}
    silent = [(0.0, "detector", i) for i in range(3)] + camera("detector", 40, 4000, 0, 2000.0)
    assert {run.waited_ms for run in batches(BATCHED, silent)[3:]} == {0}


def test_a_lower_priority_uses_the_time_in_which_a_batch_gathers():
    terms = {"detector": Terms(priority=1, max_batch=2, max_delay_ms=10), "quick": Terms(), "slow": Terms()}
    seen = [(at, "detector", i) for at in (0.0, 50.0) for i in (0, 1)]
    waiting = [(100.0, "detector", 0), (101.0, "slow", 0), (102.0, "quick", 0), (200.0, "slow", 0), (199.0, "quick", 0)]
    learnt = [(20.0, "slow", 0), (40.0, "quick", 0)]
    runs = simulate(terms, [*seen, *learnt, *waiting], lambda name, _: {"detector": 5, "quick": 2, "slow": 20}[name])
    begun = [(run.name, run.begun_ms) for run in runs if 100 <= run.begun_ms < 190]
    assert begun == [("quick", 102), ("detector", 110), ("slow", 115)]


def test_a_frame_that_is_taken_back_is_forgotten():
    turns = CoreTurns({"a": Terms()})
    first, second = turns.offer("a", 1), turns.offer("a", 2)
    turns.withdraw(first)
    turn = turns.decide(3)
    assert turn.tickets == (second,)
    turns.withdraw(second)  # its turn has come: it stays
    assert turns.decide(4) is None
    turns.done(turn, 5)
    assert turns.waiting == 0


def test_streams_that_have_ended_are_forgotten():
    turns, now = CoreTurns({"a": Terms()}), 0
    for stream in range(1000):
        now += 100 * MS
        turns.offer("a", now, stream)
        turns.done(turns.decide(now), now + MS)
    assert len(turns._models["a"].streams) <= 64


@pytest.mark.parametrize("wrong", [{"patience_ms": 0}, {"budget_ms": -1}, {"max_batch": 0}, {"max_delay_ms": -1}])
def test_terms_that_cannot_be_are_refused(wrong):
    with pytest.raises(ValueError, match="above 0"):
        Terms(**wrong)


frames = st.lists(st.tuples(st.floats(0, 2000), st.sampled_from("abc"), st.integers(0, 3)), min_size=1, max_size=120)
some_terms = st.builds(
    Terms,
    priority=st.integers(-2, 2),
    budget_ms=st.none() | st.floats(1, 200),
    patience_ms=st.floats(10, 300),
    max_batch=st.integers(1, 5),
    max_delay_ms=st.floats(0, 30),
)


@settings(max_examples=60, deadline=None)
@given(frames, st.tuples(some_terms, some_terms, some_terms), st.tuples(*[st.floats(0.1, 40)] * 3))
def test_every_frame_is_served_once_one_run_at_a_time_and_nobody_starves(arrivals, terms, services):
    by_name, service = dict(zip("abc", terms, strict=True)), dict(zip("abc", services, strict=True))
    runs = simulate(by_name, arrivals, lambda name, size: service[name] * (0.5 + size / 2))
    assert sorted((run.name, run.stream) for run in runs) == sorted((name, stream) for _, name, stream in arrivals)
    begins = sorted({(run.begun_ms, run.done_ms) for run in runs})
    assert all(one[1] <= later[0] + 1e-3 for one, later in itertools.pairwise(begins))
    longest = max(run.done_ms - run.begun_ms for run in runs)
    for name, one in by_name.items():
        mine = of(runs, name)
        assert [run.arrived_ms for run in mine] == sorted(run.arrived_ms for run in mine)
        last_ms = 0.0
        for run in mine:
            waited = run.begun_ms - max(run.arrived_ms, last_ms)
            assert waited <= one.patience_ms + one.max_delay_ms + 3 * longest + 1e-3
            last_ms = max(last_ms, run.done_ms)
