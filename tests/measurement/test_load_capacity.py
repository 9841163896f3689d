from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_load import simulate

from edgeopt.measurement.load.arrivals import make_arrivals
from edgeopt.measurement.load.capacity import find_capacity, probe_seconds
from edgeopt.measurement.load.models.fps import FixedRate
from edgeopt.measurement.load.models.poisson import Poisson
from edgeopt.measurement.load.result import LoadStatus, summarize_load
from edgeopt.measurement.statistics.distributions import upper_bound
from edgeopt.runtime.schedule.queueing import LATEST

MS = 1_000_000


def fixed_rate_runs(service_ms: float, *, seconds: float = 60.0, budget_ms: float = 40.0):
    """Return a run at a rate with a service that always takes the same."""

    def run(rate):
        arrivals = make_arrivals(FixedRate(rate), seconds=seconds)
        samples = simulate(arrivals, np.full(len(arrivals), int(service_ms * MS)), LATEST)
        return summarize_load(samples, FixedRate(rate), queue=LATEST, budget_ms=budget_ms)

    return run


@settings(max_examples=15, deadline=None)
@given(st.floats(5.0, 39.0), st.floats(0.3, 3.0), st.floats(1.1, 3.0))
def test_the_capacity_of_a_regular_camera_is_one_over_the_service_time(service_ms, low, width):
    low_rate = low * 1000 / service_ms
    found = find_capacity(fixed_rate_runs(service_ms), low=low_rate, high=low_rate * width, most_probes=30)
    assert found.rate_per_s == pytest.approx(1000 / service_ms, rel=0.025)


def test_the_curve_holds_every_probe_in_rising_order_and_waiting_rises_with_load():
    def run(rate):
        load = Poisson(rate)
        arrivals = make_arrivals(load, seconds=600.0, seed=1)
        return summarize_load(simulate(arrivals, np.full(len(arrivals), 10 * MS)), load, budget_ms=60)

    found = find_capacity(run, low=20.0, high=100.0)
    rates = [probe.rate_per_s for probe in found.probes]
    assert rates == sorted(rates)
    assert 20.0 <= found.rate_per_s < 100.0
    assert [probe.passes for probe in found.probes] == [rate <= found.rate_per_s for rate in rates]
    assert found.probes[-1].result.status in (LoadStatus.UNSTABLE_QUEUE, LoadStatus.VALID)
    stable = [probe.result.queue_wait.mean_ns for probe in found.probes if probe.result.queue_wait]
    assert stable == sorted(stable)


def test_a_model_slower_than_the_budget_has_no_capacity():
    found = find_capacity(fixed_rate_runs(50.0), low=1.0, high=10.0)
    assert found.rate_per_s is None
    assert "no rate down to 0.03125" in found.note
    assert len(found.probes) == 6


def test_a_range_that_is_too_low_is_said():
    found = find_capacity(fixed_rate_runs(0.01, seconds=0.5), low=700.0, high=800.0)
    assert found.rate_per_s == 800.0 * 2**5
    assert "every rate up to" in found.note


def test_too_few_frames_prove_nothing_and_the_note_says_so():
    found = find_capacity(fixed_rate_runs(10.0, seconds=0.5), low=50.0, high=95.0, most_probes=1)
    assert found.rate_per_s is None
    assert found.note == "no rate down to 50 per second passed: 25 frames are too few to decide"


def test_a_run_with_a_late_generator_passes_nothing():
    def run(rate):
        result = fixed_rate_runs(10.0)(rate)
        return replace(result, status=LoadStatus.INVALID, reasons=("sent late",)) if rate > 30 else result

    found = find_capacity(run, low=20.0, high=95.0)
    assert found.rate_per_s == pytest.approx(30.0, rel=0.02)
    assert found.note.endswith("is not disproven: sent late")


def test_an_undecided_rate_above_the_answer_is_not_called_disproven():
    def run(rate):
        seconds = 60.0 if rate <= 20.0 else 1.0
        return fixed_rate_runs(1.0, seconds=seconds)(rate)

    found = find_capacity(run, low=10.0, high=40.0)
    assert found.rate_per_s == pytest.approx(20.0, rel=0.02)
    assert "are too few to decide" in found.note


def test_a_search_that_runs_out_of_probes_says_between_what_the_truth_lies():
    found = find_capacity(fixed_rate_runs(10.0), low=50.0, high=200.0, most_probes=4)
    assert len(found.probes) == 4
    assert "the truth lies between" in found.note


@settings(deadline=None)
@given(st.floats(0.0005, 0.2), st.floats(1.0, 500.0))
def test_a_probe_is_long_enough_to_prove_the_budget_with_one_miss(allowed, rate):
    frames = int(probe_seconds(rate, allowed, least_s=0.0) * rate + 1e-6)
    assert upper_bound(1, frames) <= allowed * 1.0001
    assert probe_seconds(rate, allowed) >= 30.0


def test_a_range_must_rise():
    with pytest.raises(ValueError, match="low < high"):
        find_capacity(fixed_rate_runs(10.0), low=30.0, high=30.0)
