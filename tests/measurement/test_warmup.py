from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgeopt.measurement.statistics.trend import Steadiness, find_warmup, truncation_point


def decay(seed: int, amplitude: float = 0.3, frames: float = 40.0, n: int = 1000) -> np.ndarray:
    noise = np.exp(0.05 * np.random.default_rng(seed).standard_normal(n))
    return (1e7 * (1 + amplitude * np.exp(-np.arange(n) / frames)) * noise).astype(np.int64)


def test_an_exponential_warmup_is_found_within_one_batch_of_its_ninety_percent_point():
    ninety_percent = 40.0 * np.log(10)
    found = [truncation_point(decay(seed)) for seed in range(200)]
    assert abs(np.median(found) - ninety_percent) <= 5


def test_a_run_without_warmup_loses_next_to_nothing_and_is_steady():
    found = [find_warmup(decay(seed, amplitude=0.0), min_s=0) for seed in range(100)]
    assert np.median([one.frames for one in found]) == 10
    assert all(one.status is Steadiness.STEADY for one in found)


def test_single_stalls_do_not_move_the_end_of_warmup():
    frames = decay(0)
    stalled = frames.copy()
    stalled[[333, 500, 777]] *= 100
    assert truncation_point(stalled) == truncation_point(frames)


def test_a_run_that_never_settles_says_so():
    ramp = np.linspace(1e7, 2e7, 1000).astype(np.int64)
    found = find_warmup(ramp, min_s=0)
    assert found.status is Steadiness.NOT_STEADY
    assert any("drift" in reason for reason in found.reasons)
    assert found.drift_ratio > 0.2


def test_a_real_but_harmless_slope_is_steady():
    ramp = np.linspace(1.00e7, 1.01e7, 1000).astype(np.int64)
    assert not any("drift" in reason for reason in find_warmup(ramp, min_s=0).reasons)


def test_warmup_lasts_at_least_the_given_seconds_and_frames():
    frames = np.full(1000, 10_000_000)
    assert find_warmup(frames, min_s=2.0).frames == 200
    assert find_warmup(frames, min_s=0.0).frames == 10
    assert find_warmup(frames, min_s=0.0, min_frames=33).frames == 33


def test_every_input_shape_is_seen_three_times_before_the_steady_part():
    shapes = np.zeros(1000, np.int64)
    shapes[[50, 90, 120, 400, 500, 600]] = 1
    assert find_warmup(np.full(1000, 10_000_000), min_s=0, input_id=shapes).frames == 121


def test_warmup_longer_than_half_of_the_run_is_not_steady():
    found = find_warmup(np.full(100, 10_000_000), min_s=2.0)
    assert (found.frames, found.status) == (50, Steadiness.NOT_STEADY)
    assert "half of the run" in found.reasons[0]


def test_warmup_of_more_than_a_minute_is_not_steady():
    slow_start = np.where(np.arange(1000) < 300, 400_000_000, 100_000_000)
    assert any("only after" in reason for reason in find_warmup(slow_start).reasons)


def test_the_first_frame_is_compared_with_the_steady_median():
    frames = np.full(1000, 10_000_000)
    frames[:2] = (80_000_000, 15_000_000)
    found = find_warmup(frames, min_s=0)
    assert (found.first_ns, found.second_ns, found.steady_p50_ns) == (80_000_000, 15_000_000, 10_000_000)
    assert found.first_ratio == pytest.approx(8.0)
    assert found.mask(1000).sum() == found.frames


@settings(deadline=None, max_examples=80)
@given(hnp.arrays(np.int64, st.integers(0, 300), elements=st.integers(0, 10**10)))
def test_at_most_half_of_any_run_is_warmup(frames):
    found = find_warmup(frames)
    assert 0 <= found.frames <= len(frames) // 2
    assert np.isfinite(found.drift_ratio)
