from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeopt.measurement.statistics.distributions import (
    binomial_cdf,
    lower_bound,
    regularized_beta,
    student_quantile,
    upper_bound,
)


def summed(k: int, n: int, p: float) -> float:
    return math.fsum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k + 1))


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.001, 0.999))
def test_the_binomial_distribution_equals_the_sum_of_its_terms(counts, p):
    k, n = counts
    assert binomial_cdf(k, n, p) == pytest.approx(summed(k, n, p), abs=1e-10)


def test_counts_outside_the_range_are_certain():
    assert binomial_cdf(-1, 10, 0.5) == 0.0
    assert binomial_cdf(10, 10, 0.5) == 1.0
    assert regularized_beta(2, 3, 0.0) == 0.0
    assert regularized_beta(2, 3, 1.0) == 1.0


@pytest.mark.parametrize("n", [1, 30, 300, 3000, 100_000])
def test_no_event_in_n_trials_bounds_the_share_by_the_closed_form(n):
    assert upper_bound(0, n) == pytest.approx(1 - 0.05 ** (1 / n), rel=1e-6)
    assert lower_bound(0, n) == 0.0
    assert upper_bound(n, n) == 1.0
    assert lower_bound(n, n) == pytest.approx(0.05 ** (1 / n), rel=1e-6)


def test_300_clean_frames_prove_one_percent_and_3000_a_tenth_of_it():
    assert upper_bound(0, 299) <= 0.01 < upper_bound(0, 298)
    assert upper_bound(0, 2995) <= 0.001 < upper_bound(0, 2994)


def test_without_any_trial_nothing_is_known():
    assert (lower_bound(0, 0), upper_bound(0, 0)) == (0.0, 1.0)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_bounds_enclose_the_counted_share_and_invert_the_distribution(counts):
    k, n = counts
    low, high = lower_bound(k, n), upper_bound(k, n)
    assert low <= k / n <= high
    if k < n:
        assert binomial_cdf(k, n, high) == pytest.approx(0.05, abs=1e-6)


@pytest.mark.parametrize(
    ("p", "degrees", "expected"),  # the printed tables of Student's t
    [(0.975, 1, 12.7062), (0.975, 4, 2.7764), (0.975, 39, 2.0227), (0.95, 10, 1.8125), (0.975, 1e6, 1.95997)],
)
def test_student_quantiles_equal_the_printed_tables(p, degrees, expected):
    assert student_quantile(p, degrees) == pytest.approx(expected, abs=1e-4)
