from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from edgeopt.errors import EdgeoptError
from edgeopt.executors.onnxruntime import _KNOWN_ENTRIES
from edgeopt.measurement.bench.neighbour import (
    NeighbourCost,
    _hear,
    _time_per_piece,
    judge_slowdown,
    measure_neighbour,
    start_neighbours,
)
from edgeopt.measurement.clock import ScriptedClock
from edgeopt.measurement.resources.cost import CloudCost, DeviceCost, battery_runtime_h, cost_per_inference
from edgeopt.measurement.resources.cpu_time import CpuCost, run_paced, spin_entries
from edgeopt.measurement.statistics.ratio import Change

MS = 1_000_000


def paced(run_ms: float, cpu_ms: float, spin_cores: float = 0.0, fps: float = 100.0, seconds: float = 1.0) -> CpuCost:
    """Run a scripted engine that uses `cpu_ms` a frame, and `spin_cores` while it waits."""
    clock, cpu = ScriptedClock(), ScriptedClock()

    def run(_: int) -> None:
        clock.advance(round(run_ms * MS))
        cpu.advance(round(cpu_ms * MS))

    def wait(duration_ns: int) -> None:
        clock.advance(duration_ns)
        cpu.advance(round(duration_ns * spin_cores))

    return run_paced(run, fps=fps, seconds=seconds, clock=clock, cpu_clock=cpu, wait_ns=wait)


def test_cpu_time_of_an_inference_counts_all_threads():
    cost = paced(run_ms=2, cpu_ms=6)
    assert (cost.frames, cost.late) == (100, 0)
    assert cost.per_inference_ms == pytest.approx(6)
    assert cost.cores == pytest.approx(0.6)


def test_spinning_between_frames_is_counted_too():
    cost = paced(run_ms=2, cpu_ms=4, spin_cores=1.0)
    assert cost.per_inference_ms == pytest.approx(4 + 8)


def test_a_pace_that_cannot_be_held_is_seen():
    cost = paced(run_ms=20, cpu_ms=20)
    assert cost.frames == 50
    assert cost.late == 49
    assert CpuCost(0, 0, 0, 30.0, 0).per_inference_ms is None
    assert CpuCost(0, 0, 0, 30.0, 0).cores == 0.0


def test_spin_entries_are_known_to_the_executor():
    assert set(spin_entries(on=True)) <= _KNOWN_ENTRIES
    assert set(spin_entries(on=False).values()) == {"0"}


def test_a_neighbour_that_does_less_work_is_slower():
    rng = np.random.default_rng(0)
    quiet = 1e5 * np.exp(0.01 * rng.standard_normal((10, 2)))
    slow = judge_slowdown(quiet * 1.5, quiet)
    assert (slow.verdict, round(slow.value, 6)) == (Change.SLOWER, 1.5)
    assert judge_slowdown(quiet[::-1], quiet).verdict is not Change.SLOWER
    assert _time_per_piece([["10", "1000"], ["30", "1000"]]) == 50.0


def test_costs_of_blocks_are_summed():
    ratio = judge_slowdown(np.full((2, 2), 2.0), np.full((2, 2), 1.0))
    cost = NeighbourCost(ratio, (CpuCost(4 * MS, 10 * MS, 2, 30, 0), CpuCost(2 * MS, 10 * MS, 1, 30, 0)))
    assert cost.cores == pytest.approx(0.3)
    assert cost.per_inference_ms == pytest.approx(2)
    assert NeighbourCost(ratio, ()).per_inference_ms is None


def test_real_neighbours_work_beside_each_load_in_turns():
    runs = {"a": [], "b": []}
    found = measure_neighbour(
        {name: seen.append for name, seen in runs.items()}, fps=200, rounds=2, block_s=0.03, processes=1, settle_s=0.0
    )
    assert set(found) == {"a", "b"}
    assert all(len(cost.cpu) == 4 and cost.slowdown.value > 0 for cost in found.values())
    assert all(len(seen) == sum(one.frames for one in found[name].cpu) > 0 for name, seen in runs.items())


def test_a_neighbour_that_dies_is_an_error_and_odd_requests_are_refused():
    with start_neighbours(1) as work:
        assert work(0.001, lambda: None) > 0
    with pytest.raises(ValueError, match="no load named 'quiet'"):
        measure_neighbour({"quiet": lambda _: None})
    with pytest.raises(ValueError, match="need 2 rounds"):
        measure_neighbour({"a": lambda _: None}, rounds=1)


def test_a_child_without_an_answer_is_reported():
    command = [sys.executable, "-c", "raise SystemExit(3)"]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child,
        pytest.raises(EdgeoptError, match="ended with code 3"),
    ):
        _hear(child)


def test_cost_follows_the_formula():
    device = DeviceCost(price=360.0, life_h=1000.0, duty_ratio=0.5, watts=10.0, price_per_kwh=0.36, operation_per_h=3.6)
    # 360 / (1000 * 3600 * 0.5) + 10 * 0.36 / 3.6e6 + 3.6 / 3600
    assert device.per_s == pytest.approx(2e-4 + 1e-6 + 1e-3)
    cost = cost_per_inference(device, 50.0)
    assert cost.per_inference == pytest.approx(1.201e-3 / 50)
    assert cost.per_thousand == pytest.approx(1.201e-3 / 50 * 1000)
    assert cost.per_stream_hour(25.0) == pytest.approx(1.201e-3 / 50 * 25 * 3600)
    assert cost_per_inference(CloudCost(3.6), 10).per_inference == pytest.approx(1e-4)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_device_that_never_keeps_the_budget_has_no_cost(rate):
    with pytest.raises(ValueError, match="above zero"):
        cost_per_inference(CloudCost(1.0), rate)


@pytest.mark.parametrize("wrong", [{"life_h": 0}, {"duty_ratio": 0}, {"duty_ratio": 1.5}])
def test_a_device_without_life_or_duty_is_refused(wrong):
    with pytest.raises(ValueError, match="life_h above 0"):
        DeviceCost(**{"price": 1.0, "life_h": 1.0} | wrong)


def test_a_battery_lasts_as_long_as_its_load_lets_it():
    assert battery_runtime_h(50.0, 4.0, 0.2, 30.0) == pytest.approx(5.0)
    assert battery_runtime_h(50.0, 5.0, 0.2, 0.0) == pytest.approx(10.0)
    with pytest.raises(ValueError, match="must draw power"):
        battery_runtime_h(50.0, 0.0, 0.0, 30.0)
