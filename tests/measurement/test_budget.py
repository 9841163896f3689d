from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeopt.measurement.statistics.budget import Verdict, judge_budget


def run(n: int, misses: int) -> np.ndarray:
    frames = np.full(n, 20_000_000)
    frames[np.linspace(0, n - 1, misses).astype(int)] = 50_000_000
    return frames


@pytest.mark.parametrize(
    ("n", "misses", "verdict"),
    [
        (299, 0, Verdict.PASS),
        (298, 0, Verdict.INCONCLUSIVE),
        (1000, 4, Verdict.PASS),
        (1000, 30, Verdict.FAIL),
        (50, 1, Verdict.INCONCLUSIVE),
        (0, 0, Verdict.INCONCLUSIVE),
    ],
)
def test_the_verdict_is_what_the_bound_proves(n, misses, verdict):
    result = judge_budget(run(n, misses), 33.3, 0.01)
    assert result.verdict is verdict
    assert (result.n, result.misses) == (n, misses)
    assert result.miss_low_ratio <= result.miss_ratio <= result.miss_high_ratio
    assert "nan" not in str(result)


def test_each_verdict_has_its_exit_code():
    assert [verdict.exit_code for verdict in (Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE)] == [0, 2, 3]


def test_a_frame_of_exactly_the_budget_keeps_it():
    assert judge_budget(np.full(400, 33_000_000), 33.0).misses == 0


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 298), st.sampled_from([0.01, 0.02, 0.05]))
def test_as_many_clean_frames_more_as_it_says_do_decide(n, allowed):
    result = judge_budget(run(n, 0), 33.3, allowed)
    if result.frames_needed == 0:
        assert result.verdict is Verdict.PASS
        return
    more = result.frames_needed
    assert more is not None
    assert judge_budget(run(n + more, 0), 33.3, allowed).verdict is Verdict.PASS
    assert judge_budget(run(n + more - 1, 0), 33.3, allowed).verdict is Verdict.INCONCLUSIVE


def test_a_share_above_the_allowed_needs_frames_to_be_proven_too():
    result = judge_budget(run(50, 1), 33.3, 0.01)
    assert result.frames_needed is not None
    longer = run(50 + result.frames_needed, (50 + result.frames_needed) // 50)
    assert judge_budget(longer, 33.3, 0.01).verdict is Verdict.FAIL


def test_a_share_equal_to_the_allowed_is_never_decided():
    result = judge_budget(run(1000, 10), 33.3, 0.01)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.frames_needed is None


def test_dropped_frames_are_misses_whatever_their_time():
    frames, lost = run(1000, 0), np.zeros(1000, np.bool_)
    lost[::20] = True
    assert judge_budget(frames, 33.3, 0.01, lost=lost).misses == 50


def test_misses_in_one_burst_prove_less_than_as_many_alone():
    burst = np.full(3000, 20_000_000)
    burst[100:115] = 50_000_000
    together, apart = judge_budget(burst, 33.3, 0.01), judge_budget(run(3000, 15), 33.3, 0.01)
    assert together.longest_miss_run == 15
    assert apart.longest_miss_run == 1
    assert together.n_effective < apart.n_effective == 3000
    assert together.miss_high_ratio > apart.miss_high_ratio


def test_proofs_are_wrong_no_more_often_than_the_confidence_says():
    rng = np.random.default_rng(5)
    verdicts = [judge_budget(np.where(rng.random(2000) < 0.01, 5e7, 2e7), 33.3, 0.01).verdict for _ in range(400)]
    assert verdicts.count(Verdict.PASS) <= 0.07 * 400
    assert verdicts.count(Verdict.FAIL) <= 0.07 * 400
