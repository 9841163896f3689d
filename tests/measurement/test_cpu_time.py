from __future__ import annotations

import pytest

from edgeopt.executors.onnxruntime import _KNOWN_ENTRIES
from edgeopt.measurement.clock import ScriptedClock
from edgeopt.measurement.resources.cost import cloud_per_s, cost_per_inference, device_per_s
from edgeopt.measurement.resources.cpu_time import CpuCost, run_paced, spin_entries

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


def test_cost_follows_the_formula():
    per_s = device_per_s(360.0, life_h=1000.0, watts=10.0, price_per_kwh=0.36)
    assert per_s == pytest.approx(1e-4 + 1e-6)  # 360 / (1000 * 3600) + 10 * 0.36 / 3.6e6
    cost = cost_per_inference(per_s, 50.0)
    assert cost.per_inference == pytest.approx(1.01e-4 / 50)
    assert cost.per_thousand == pytest.approx(1.01e-4 / 50 * 1000)
    assert cost.per_stream_hour(25.0) == pytest.approx(1.01e-4 / 50 * 25 * 3600)
    assert cost_per_inference(cloud_per_s(3.6), 10).per_inference == pytest.approx(1e-4)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_device_that_never_keeps_the_budget_has_no_cost(rate):
    with pytest.raises(ValueError, match="above zero"):
        cost_per_inference(cloud_per_s(1.0), rate)
