"""The joint choice is exact: on small cases it is what trying every combination gives."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeopt.optimization.pipelines.choice import StageForm, choose_jointly, front_of


def forms(*stages: list[tuple[float, float]]) -> list[list[StageForm]]:
    """Return forms of each stage from milliseconds and losses; the original is the first."""
    return [
        [StageForm(f"s{i}", f"f{j}", ms, loss) for j, (ms, loss) in enumerate(stage)] for i, stage in enumerate(stages)
    ]


def named(found) -> list[str]:
    return [one.name for one in found.forms]


DETECT = [(20.0, 0.0), (16.0, 0.0), (10.0, 0.02), (8.0, 0.05)]
RECOGNISE = [(12.0, 0.0), (6.0, 0.004), (5.0, 0.03)]


@pytest.mark.parametrize(
    ("budget_ms", "most_loss", "expected"),
    [
        (40.0, 0.1, ["f1", "f0"]),  # nothing is lost, so nothing is paid; what is faster for nothing is taken
        (29.0, 0.1, ["f1", "f1"]),  # 6 ms for 0.004 of the classifier, where the detector asks 0.02
        (22.0, 0.1, ["f2", "f1"]),
        (17.0, 0.1, ["f2", "f2"]),  # one millisecond more from the classifier, before the detector gives another
        (16.0, 0.1, ["f3", "f1"]),
        (15.0, 0.1, ["f3", "f2"]),
        (10.0, 0.1, ["f3", "f2"]),  # no combination is within the budget: the fastest
        (10.0, 0.03, ["f2", "f1"]),  # the fastest that loses no more than allowed
        (10.0, 0.0, ["f1", "f0"]),
    ],
)
def test_the_next_millisecond_goes_where_it_costs_least(budget_ms, most_loss, expected):
    front = front_of(2.0, forms(DETECT, RECOGNISE))
    assert named(choose_jointly(front, budget_ms, most_loss)) == expected


def test_a_model_that_runs_often_is_worth_its_runs():
    front = front_of(0.0, forms([(10.0, 0.0), (8.0, 0.01)], [(5 * 4.0, 0.0), (5 * 2.0, 0.01)]))
    assert named(choose_jointly(front, 22.0, 0.05)) == ["f0", "f1"]


def test_of_equal_forms_the_original_stays():
    assert named(choose_jointly(front_of(0.0, forms([(5.0, 0.0), (5.0, 0.0)])), 9.0, 0.1)) == ["f0"]


FIGURES = st.tuples(st.integers(0, 40).map(float), st.integers(0, 12).map(lambda n: n / 64))
STAGES = st.lists(st.lists(FIGURES, min_size=1, max_size=5), min_size=1, max_size=4)


@given(STAGES, st.integers(0, 120), st.integers(0, 40).map(lambda n: n / 64))
def test_it_is_what_trying_every_combination_gives(stages, budget_ms, most_loss):
    made, fixed_ms = forms(*stages), 3.0
    every = [(fixed_ms + sum(f.frame_ms for f in one), sum(f.loss for f in one)) for one in product(*made)]
    allowed = [one for one in every if one[1] <= most_loss]
    within = [one for one in allowed if one[0] <= budget_ms]
    found = choose_jointly(front_of(fixed_ms, made), budget_ms, most_loss)
    if within:
        assert (found.loss, found.frame_ms) == min((loss, ms) for ms, loss in within)
    elif allowed:
        assert (found.frame_ms, found.loss) == min(allowed)
    else:
        assert found is None
