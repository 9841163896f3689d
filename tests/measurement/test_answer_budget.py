"""Limits of answers: how they are written, and what answers prove about them."""

from __future__ import annotations

import pytest

from edgeopt.errors import EdgeoptError
from edgeopt.measurement.generation.answer_budget import AnswerBudget, parse_answer_budget
from edgeopt.measurement.generation.budget import fewest_to_pass, judge_answers
from edgeopt.measurement.statistics.budget import Verdict, worst_of


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("ttft:200ms,tpot:20ms", {"TTFT": 200, "TPOT": 20}),
        ("TPOT: 1.5s", {"TPOT": 1500}),
    ],
)
def test_limits_are_read_as_durations_are(text, limits):
    assert parse_answer_budget(text).limits_ms == limits


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("ttft:20kg", "'20kg' is not a duration"),
        ("ttft:200", "'ttft:200' has no unit"),
        ("ttft:", "is not a duration"),
        ("itl:20ms", "limits neither ttft nor tpot"),
        ("ttft:20ms,", "limits neither"),
        ("ttft:20ms,ttft:9ms", "limits TTFT twice"),
        ("ttft:-1ms", "is not a duration"),
    ],
)
def test_what_is_no_limit_is_one_line(text, told):
    with pytest.raises(EdgeoptError, match=told) as caught:
        parse_answer_budget(text)
    assert "\n" not in caught.value.problem


def test_a_limit_is_met_missed_or_open():
    budget = AnswerBudget({"TTFT": 10, "TPOT": 1})
    quick, slow = [5e6] * 59, [2e6] * 59
    judged = judge_answers(budget, {"TTFT": quick, "TPOT": slow})
    assert [one.counted.verdict for one in judged.limits] == [Verdict.PASS, Verdict.FAIL]
    assert judged.exit_code == 2
    assert judged.sentence == "missed: TPOT 1 ms; met: TTFT 10 ms"
    assert "0 of 59 answers over 10 ms; at most 4.95% miss, 5% allowed" in str(judged.limits[0])
    few = judge_answers(AnswerBudget({"TTFT": 10}), {"TTFT": quick[:20]})
    assert few.exit_code == 3
    assert not few.is_decided
    assert few.limits[0].counted.frames_needed == 39
    met = judge_answers(AnswerBudget({"TTFT": 10}), {"TTFT": quick})
    assert worst_of([met.verdict, few.verdict]) is Verdict.INCONCLUSIVE
    assert worst_of([met.verdict, few.verdict, judged.verdict]) is Verdict.FAIL
    assert worst_of([met.verdict]) is Verdict.PASS


def test_as_many_answers_as_prove_a_limit_are_known():
    budget, needed = AnswerBudget({"TTFT": 1.0}), fewest_to_pass(0.05)
    assert needed == 59
    verdicts = [judge_answers(budget, {"TTFT": [1000 + i % 7 for i in range(n)]}).verdict for n in (needed - 1, needed)]
    assert verdicts == [Verdict.INCONCLUSIVE, Verdict.PASS]
