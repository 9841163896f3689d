"""Prompts wait for the next tokens of others, where that is asked for, and none for ever."""

from __future__ import annotations

import pytest

from edgeopt.runtime.decoding.batching.pace import MOST_RUNS, PromptPace


def test_nobody_waits_unless_a_time_is_asked_for():
    pace = PromptPace()
    pace.count_prompt(100.0)
    pace.count_tokens(100.0)
    assert pace.lets_prompts_run


def test_the_time_between_tokens_is_on_average_the_one_that_is_asked_for():
    pace, passed_s, parts = PromptPace(0.040), 0.0, 0
    for _ in range(1000):
        if pace.lets_prompts_run:
            pace.count_prompt(0.050)
            passed_s, parts = passed_s + 0.050, parts + 1
        pace.count_tokens(0.020)
        passed_s += 0.020
    assert passed_s / 1000 == pytest.approx(0.040, rel=0.01)
    assert parts == pytest.approx(400, abs=2)


def test_no_prompt_waits_for_ever_where_tokens_alone_are_slower():
    pace, parts = PromptPace(0.010), []
    for run in range(3 * MOST_RUNS + 3):
        if pace.lets_prompts_run:
            parts.append(run)
            pace.count_prompt(0.050)
        pace.count_tokens(0.020)
    assert parts == [0, MOST_RUNS, 2 * MOST_RUNS, 3 * MOST_RUNS]


def test_what_was_saved_long_ago_lets_no_burst_of_prompts_in():
    pace = PromptPace(0.040)
    for _ in range(1000):
        pace.count_tokens(0.001)
    parts = 0
    while pace.lets_prompts_run:
        pace.count_prompt(0.030)
        parts += 1
    assert parts == 2
