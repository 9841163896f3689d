"""Parts that are ahead of a run: in their order, closer where their end is known, and none that is over."""

from __future__ import annotations

import pytest

from edgeopt.optimization.expected_progress import (
    BUNDLE,
    CONFIRM,
    FORMS,
    JUDGE,
    MEASURE,
    Course,
    PartListener,
    expected_parts,
    measuring_s,
)
from edgeopt.optimization.options import Options
from edgeopt.optimization.plan import make_plan
from edgeopt.optimization.run import Silence
from edgeopt.recipes.recipe import find_recipe
from edgeopt.system.declared.target import find_target


class Hears(Silence):
    """A listener that keeps what it was told is ahead."""

    def __init__(self) -> None:
        self.told = list[tuple[str, float, float]]()

    def ahead(self, part: str, part_s: float, rest_s: float) -> None:
        self.told.append((part, part_s, rest_s))


def test_a_part_that_begins_ends_those_before_it_and_nothing_is_told_twice():
    listener = Hears()
    course = Course(listener)
    course.begin("fuse")
    course.look_ahead({"fuse": 3.0, "prune": 60.0, MEASURE: 30.0, JUDGE: 5.0}, 0.01)
    course.begin("fuse")
    course.expect(MEASURE, 40.0)
    course.begin(MEASURE)
    course.begin("prune")
    course.begin(MEASURE)
    course.expect("prune", 1.0)
    course.begin(JUDGE)
    assert listener.told == [("fuse", 3.0, 95.0), (MEASURE, 40.0, 5.0), (JUDGE, 5.0, 0.0)]


def test_a_plan_tells_its_steps_and_what_follows_them_and_a_slow_model_takes_longer():
    plan = make_plan(find_recipe("yolox"), find_target("cpu-x86-vnni"), Options(calib="synthetic"), 1)
    quick, slow = (expected_parts(plan, frame_s, 100, 0, is_timed=True) for frame_s in (0.01, 1.0))
    assert [*quick] == [
        *(name for name, one in plan.steps.items() if one.in_line),
        FORMS,
        MEASURE,
        CONFIRM,
        JUDGE,
        BUNDLE,
    ]
    assert all(slow[name] >= seconds for name, seconds in quick.items())
    assert slow["quantize"] < 180 + 30, "a search has its limit"
    assert MEASURE not in expected_parts(plan, 0.01, 100, 0, is_timed=False)


def test_models_take_turns_until_there_are_enough_frames_and_no_longer_than_a_minute():
    assert measuring_s(3, 0.01) == pytest.approx(3 * 400 * 0.01)
    assert measuring_s(3, 1.0) == 60.0


def test_what_follows_a_part_of_a_larger_work_is_added():
    listener = Hears()
    Course(PartListener(listener, lambda left_s: 2 * left_s + 1), {"fuse": 3.0, JUDGE: 4.0}).begin("fuse")
    assert listener.told == [("fuse", 3.0, 4.0 + 2 * 7.0 + 1)]
