"""`edgeopt run` judges late frames and lost ones, in their order."""

from __future__ import annotations

import pytest

from edgeopt.running.live import _Judged
from edgeopt.runtime.stream import StreamResult


def judged(*frames: tuple[int, bool]) -> _Judged:
    made = _Judged()
    for index, missed in frames:
        made.record(StreamResult(index, "", {}, None, 0, 0, {}, missed, "", "full"))
    return made


def test_what_lies_between_two_answers_was_lost_and_counts_as_missed():
    found = judged((5, False), (6, True), (10, False)).judge(33, 0.5)
    assert (found.n, found.misses, found.longest_miss_run) == (6, 4, 4)


def test_frames_before_the_first_answer_are_the_start_and_no_misses():
    found = judged((100, False), (101, False)).judge(33, 0.5)
    assert (found.n, found.misses) == (2, 0)


@pytest.mark.parametrize(("missed", "code"), [(False, 0), (True, 2)])
def test_enough_frames_prove_it(missed, code):
    found = judged(*((k, missed) for k in range(400))).judge(33, 0.01)
    assert found.verdict.exit_code == code


def test_no_frame_proves_nothing():
    assert judged().judge(33, 0.01).verdict.exit_code == 3


def test_a_year_of_frames_is_judged_by_the_last_million():
    found = judged((0, False), (10**9, False)).judge(33, 0.01)
    assert found.n == 10**6
