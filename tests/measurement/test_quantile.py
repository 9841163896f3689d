from __future__ import annotations

import json
import math
from dataclasses import asdict
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgeopt.measurement.statistics.dependence import (
    autocorrelation,
    count_clusters,
    effective_count,
    longest_run,
)
from edgeopt.measurement.statistics.distributions import binomial_cdf
from edgeopt.measurement.statistics.quantile import interval_ranks, minimum_n, quantile, summarize
from edgeopt.system.order_statistic import order_statistic

times = hnp.arrays(np.int64, st.integers(0, 600), elements=st.integers(0, 10**10))
shares = st.sampled_from([0.01, 0.05, 0.5, 0.9, 0.95, 0.99])


def lognormal(rng: np.random.Generator, n: int, sigma: float = 0.2) -> np.ndarray:
    return (1e7 * np.exp(sigma * rng.standard_normal(n))).astype(np.int64)


def test_the_least_samples_are_those_of_the_table():
    assert [minimum_n(p) for p in (0.5, 0.9, 0.95, 0.99, 0.999)] == [6, 36, 72, 368, 3688]
    assert minimum_n(0.01) == minimum_n(0.99)


@pytest.mark.parametrize("p", [0.5, 0.9, 0.95, 0.99])
def test_one_sample_fewer_than_the_table_gives_no_value(p):
    least = minimum_n(p)
    few = quantile(np.arange(least - 1), p)
    assert few.value_ns is None
    assert str(few) == "n/a"
    assert str(least) in few.note
    assert quantile(np.arange(least), p).value_ns is not None


@settings(deadline=None, max_examples=80)
@given(times.filter(len), shares)
def test_a_quantile_is_a_sample_with_the_right_share_at_or_below_it(values, p):
    found = order_statistic(np.sort(values), p)
    assert found in values
    assert np.count_nonzero(values <= found) >= p * len(values) - 1e-6
    assert np.count_nonzero(values < found) < p * len(values) + 1e-6


@settings(deadline=None, max_examples=80)
@given(times, shares)
def test_the_interval_encloses_the_value_and_knows_its_n(values, p):
    found = quantile(values, p)
    assert found.n == len(values)
    assert 0 <= found.n_effective <= found.n
    if found.value_ns is not None:
        assert found.low_ns is None or found.low_ns <= found.value_ns
        assert found.high_ns is None or found.high_ns >= found.value_ns
        assert found.value_ms == found.value_ns / 1e6


@settings(deadline=None, max_examples=60)
@given(times)
def test_a_summary_is_ordered_and_never_not_a_number(values):
    summary = summarize(values)
    text = json.dumps(asdict(summary), allow_nan=False)
    assert "NaN" not in text
    found = [summary.p1, summary.p5, summary.p50, summary.p90, summary.p95, summary.p99]
    inner = [one.value_ns for one in found if one.value_ns is not None]
    ordered = [one for one in (summary.min_ns, *inner, summary.max_ns) if one is not None]
    assert ordered == sorted(ordered)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 4999), shares)
def test_the_ranks_are_the_widest_that_the_binomial_allows(n, p):
    low, high = interval_ranks(n, p)
    assert low == 0 or binomial_cdf(low - 1, n, p) <= 0.025
    assert binomial_cdf(low, n, p) > 0.025
    assert high == n + 1 or binomial_cdf(high - 1, n, p) >= 0.975
    assert high == 1 or binomial_cdf(high - 2, n, p) < 0.975


def test_the_normal_form_continues_the_exact_ranks():
    for p in (0.5, 0.9, 0.99):
        exact, normal = interval_ranks(4999, p), interval_ranks(5001, p)
        assert all(abs(a - b) <= 3 for a, b in zip(exact, normal, strict=True))


@pytest.mark.parametrize(("n", "p"), [(100, 0.5), (1000, 0.5), (500, 0.99), (1000, 0.99), (5000, 0.99)])
def test_intervals_cover_the_truth_on_independent_samples(n, p):
    rng, truth = np.random.default_rng(1), 1e7 * math.exp(0.2 * NormalDist().inv_cdf(p))
    runs = [quantile(lognormal(rng, n), p) for _ in range(400)]
    covered = [(run.low_ns or 0) <= truth <= (run.high_ns or math.inf) for run in runs]
    assert np.mean(covered) >= 0.93
    assert np.mean([run.low_ns is not None and run.high_ns is not None for run in runs]) >= 0.85


def bursts(rng: np.random.Generator, n: int) -> np.ndarray:
    """2 % of frames three times as slow, in bursts of 20 on the average."""
    lengths = rng.geometric(np.tile([0.02 / 0.98 / 20, 1 / 20], n // 500))
    slow = np.repeat(np.tile([False, True], n // 500), lengths)[:n]
    return (np.where(slow, 3e7, 1e7) * np.exp(0.1 * rng.standard_normal(len(slow)))).astype(np.int64)


def test_bursts_lower_the_effective_count_and_raise_the_coverage():
    rng = np.random.default_rng(2)
    truth = order_statistic(np.sort(bursts(rng, 1_000_000)), 0.99)
    hits, naive, worth = [], [], []
    for _ in range(120):
        sample = bursts(rng, 10_000)
        found, (low, high) = quantile(sample, 0.99), interval_ranks(len(sample), 0.99)
        ordered = np.sort(sample)
        hits.append((found.low_ns or 0) <= truth <= (found.high_ns or math.inf))
        naive.append(ordered[low - 1] <= truth <= ordered[high - 1])
        worth.append(found.n_effective / found.n)
    assert np.mean(hits) >= 0.8
    assert np.mean(naive) < 0.6
    assert np.median(worth) < 0.2


def test_a_tail_of_few_bursts_is_called_indicative():
    sample = np.full(2000, 10_000_000)
    sample[500:550] = 90_000_000
    found = quantile(sample, 0.95)
    assert found.clusters == 1
    assert "indicative" in found.note


def test_a_constant_series_is_worth_its_length():
    assert effective_count(np.zeros(1000, np.bool_)) == 1000
    assert effective_count(np.zeros(0, np.bool_)) == 0
    found = quantile(np.full(1000, 7), 0.5)
    assert (found.low_ns, found.value_ns, found.high_ns) == (7, 7, 7)


@settings(deadline=None, max_examples=60)
@given(hnp.arrays(np.bool_, st.integers(0, 200)))
def test_clusters_and_runs_are_those_of_the_text(marks):
    runs = "".join("x" if mark else " " for mark in marks).split()
    assert count_clusters(marks) == len(runs)
    assert longest_run(marks) == max(map(len, runs), default=0)


def test_autocorrelation_tells_a_drift_from_noise_and_a_constant():
    rng = np.random.default_rng(4)
    assert autocorrelation(np.arange(100)) > 0.9
    assert abs(autocorrelation(rng.random(2000))) < 0.1
    assert autocorrelation(np.tile([1, 9], 50)) < -0.9
    assert autocorrelation(np.full(50, 3)) == 0.0
    assert autocorrelation(np.array([1, 2])) == 0.0
