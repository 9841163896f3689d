"""Points of the frontier of a small net, where the table of times and the whole models' speeds are scripted."""

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from time import monotonic

import pytest
from scripted_pruning import STEP, prune, ratio, wide

from edgeopt.graph.groups import trace
from edgeopt.steps.prune.points import SAVED, UNTIMED, Goal
from edgeopt.system.processes.time_limit import OutOfTime

FIXTURES = Path(__file__).parents[2] / "fixtures"


def test_the_frontier_is_faster_and_loses_more_from_point_to_point():
    found = prune()
    assert len(found.points) >= 3
    expected = [one.expected_ratio for one in found.points]
    assert expected == sorted(expected)
    assert expected[0] >= 1 / (1 - SAVED[0])
    assert all(one.loss < 0.5 for one in found.points)
    assert found.notes == ()


def test_a_time_limit_leaves_the_points_that_were_made():
    made = []

    def tell(point):
        if len(made) == 2:
            raise OutOfTime
        made.append(point)

    found = prune(on_point=tell)
    assert [one.model.fingerprint for one in found.frontier] == [one.model.fingerprint for one in made]
    assert "time limit" in found.notes[0].detail


@pytest.mark.parametrize("goal", [None, Goal(speedup=1.2)])
def test_channels_that_are_not_ranked_in_time_are_not_cut(goal):
    found = prune(goal=goal, ends_at_s=monotonic() - 1)
    assert found.frontier == ()
    assert "time limit" in found.notes[0].detail


def test_no_number_of_channels_is_off_the_step():
    groups = trace(wide())
    for point in prune().frontier:
        for name, count in point.keep.items():
            assert count % STEP == 0
            assert STEP <= count < groups[name].channels
            assert len(point.kept[name]) == count
            assert sorted(point.kept[name].tolist()) == point.kept[name].tolist()


def test_a_block_that_adds_almost_nothing_goes():
    assert any(point.removed_blocks == ("f",) for point in prune().frontier)


def test_where_nothing_is_timed_a_few_points_show_what_multiplications_cost():
    found = prune(None).frontier
    assert 2 <= len(found) <= len(UNTIMED)
    assert all(one.measured is None for one in found)
    expected = [one.expected_ratio for one in found]
    assert expected == sorted(set(expected))
    assert 1 / (1 - UNTIMED[0]) <= expected[0] < expected[-1] < 1.6


def test_of_two_repairs_that_lose_about_as_much_both_are_points_of_one_speed():
    losses = {}

    def near(model):
        return losses.setdefault(model.fingerprint, 0.01 + 0.0001 * len(losses))

    measured = []

    def measure(model):
        measured.append(model.fingerprint)
        return ratio(1.2)

    found = prune(measure, loss=near).frontier
    ways = [(tuple(one.keep.items()), one.removed_blocks) for one in found]
    twice = {one for one in ways if ways.count(one) == 2}
    assert twice
    assert {one.repair for one in found} == {"local", "sequential"}
    assert len(measured) == len(set(ways))
    assert sum(b.is_twin_of(a) for a, b in pairwise(found)) == len(twice)


def test_a_slower_model_is_never_offered_and_the_dense_one_stays_with_a_sentence():
    found = prune(lambda _: ratio(0.97))
    assert found.points == ()
    assert len(found.frontier) >= 3
    (note,) = found.notes
    assert "the dense model stays" in note.detail
    assert "0.97x" in note.detail


def test_less_than_three_percent_is_not_worth_a_loss():
    assert prune(lambda _: ratio(1.025)).points == ()
    assert prune(lambda _: ratio(1.04)).points


def test_what_may_be_slower_is_not_offered():
    assert prune(lambda _: ratio(1.05, spread=0.1)).points == ()


def test_where_every_cut_loses_too_much_no_point_is_made():
    found = prune(loss=lambda _: 0.9)
    assert found.frontier == ()
    assert "loses too much" in found.notes[0].detail


def test_a_loss_that_is_not_a_number_is_hopeless():
    assert prune(loss=lambda _: float("nan")).frontier == ()


def test_one_point_of_a_share_of_the_channels():
    groups = trace(wide())
    whole = sum(one.channels for one in groups.free)
    (point,) = prune(None, goal=Goal(ratio=0.4)).points
    gone = sum(groups[name].channels - count for name, count in point.keep.items())
    assert 0.4 * whole <= gone + (16 if point.removed_blocks else 0)
    assert point.measured is None


def test_one_point_of_a_speed_is_looked_for_until_the_measured_one_is_reached():
    made = []
    (point,) = prune(
        lambda one: ratio(1 + 0.5 * (wide().size_bytes / one.size_bytes - 1)),
        goal=Goal(speedup=1.3),
        on_point=made.append,
    ).points
    assert point.speedup >= 1.3
    assert len(made) <= 4
    assert all(one.speedup < 1.3 for one in made[:-1])


def test_pinned_groups_keep_all():
    names = [one.name for one in trace(wide()).free]
    found = prune(pinned=frozenset(names[:1]))
    assert found.points
    assert all(names[0] not in one.keep for one in found.frontier)


def test_two_processes_with_the_same_table_make_the_same_bytes():
    told = []
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join([str(FIXTURES), *sys.path])}
        command = [sys.executable, str(FIXTURES / "scripted_pruning.py")]
        told.append(subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout)
    assert told[0] == told[1]
    assert len(told[0].splitlines()) >= 3


@pytest.mark.parametrize("goal", [Goal(), Goal(ratio=0.3), Goal(speedup=1.2)])
def test_each_finished_point_is_told_at_once(goal):
    made = []
    found = prune(goal=goal, on_point=made.append)
    assert [one.model.fingerprint for one in made[-len(found.frontier) :]] == [
        one.model.fingerprint for one in found.frontier
    ]
