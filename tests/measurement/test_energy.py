from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from edgeopt.measurement.resources.energy import Energy, NotMeasured, judge_energy, make_trace, watch_energy
from edgeopt.measurement.resources.meters import (
    Absence,
    Meter,
    MeterKind,
    find_battery,
    find_board,
    find_meters,
    find_nvml,
    find_rapl,
    nvml_meter,
    parse_nvidia_smi,
)

SECOND = 1_000_000_000


def write(folder: Path, **files: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (folder / name).write_text(f"{value}\n")
    return folder


def rapl(system: Path, zone: str, name: str, uj: int, wrap: int = 1_000_000_000) -> Path:
    return write(system / "class/powercap" / zone, name=name, energy_uj=uj, max_energy_range_uj=wrap)


def power(kind: MeterKind = MeterKind.POWER, **changes: object) -> Meter:
    values = {"source": "hwmon", "coverage": "board", "kind": kind, "read": lambda: (1.0,)} | changes
    return Meter(**values)


def constant(watts: float, seconds: float, hz: float = 20, **changes: object):
    n = int(seconds * hz) + 1
    return make_trace(power(**changes), [(round(i * SECOND / hz), (watts,)) for i in range(n)])


def test_rapl_sums_packages_and_memory_and_leaves_out_parts_of_them(tmp_path):
    rapl(tmp_path, "intel-rapl:0", "package-0", 5_000_000)
    rapl(tmp_path, "intel-rapl:0:0", "core", 3_000_000)
    rapl(tmp_path, "intel-rapl:0:1", "dram", 1_000_000)
    rapl(tmp_path, "intel-rapl:1", "package-1", 2_000_000)
    rapl(tmp_path, "intel-rapl:2", "psys", 90_000_000)
    meter = find_rapl(tmp_path)
    assert (meter.kind, meter.coverage) == (MeterKind.COUNTER, "CPU package and memory, not the board")
    assert meter.read() == pytest.approx((5.0, 1.0, 2.0))
    assert meter.wraps_at_j == pytest.approx((1000.0,) * 3)


def test_rapl_without_root_says_why(tmp_path, monkeypatch):
    rapl(tmp_path, "intel-rapl:0", "package-0", 1)
    whole = Path.read_text

    def refused(self: Path, *args: object, **more: object) -> str:
        if self.name == "energy_uj":
            raise PermissionError(13, "Permission denied")
        return whole(self, *args, **more)

    monkeypatch.setattr(Path, "read_text", refused)
    assert "root only" in find_rapl(tmp_path).reason


def test_a_broken_counter_is_absent_with_its_reason(tmp_path):
    rapl(tmp_path, "intel-rapl:0", "package-0", 1)
    (tmp_path / "class/powercap/intel-rapl:0/energy_uj").write_text("odd")
    assert "odd" in find_rapl(tmp_path).reason


def test_the_rail_that_feeds_the_board_is_not_added_to_its_parts(tmp_path):
    chip = tmp_path / "class/hwmon/hwmon3"
    write(chip, name="ina3221", in1_label="VDD_IN", in1_input=5000, curr1_input=2000)
    write(chip, in2_label="VDD_CPU_GPU_CV", in2_input=5000, curr2_input=700, in7_input=1)
    meter = find_board(tmp_path)
    assert meter.coverage == "board input VDD_IN (ina3221)"
    assert meter.read() == pytest.approx((10.0,))


def test_rails_without_a_common_feed_are_all_read(tmp_path):
    chip = tmp_path / "class/hwmon/hwmon0"
    write(chip, name="ina3221", in1_label="CPU", in1_input=1000, curr1_input=500)
    write(chip, in2_input=2000, curr2_input=500, curr3_input=9)
    meter = find_board(tmp_path)
    assert meter.coverage == "rails CPU, channel 2 (ina3221)"
    assert meter.read() == pytest.approx((0.5, 1.0))


def test_power_inputs_are_read_but_not_those_of_a_graphics_card_or_battery(tmp_path):
    write(tmp_path / "class/hwmon/hwmon0", name="amdgpu", power1_input=30_000_000)
    write(tmp_path / "class/hwmon/hwmon1", name="BAT0", power1_input=9_000_000)
    assert isinstance(find_board(tmp_path), Absence)
    write(tmp_path / "class/hwmon/hwmon2", name="ina226", power1_input=2_500_000)
    assert find_board(tmp_path).read() == pytest.approx((2.5,))


def test_a_board_sensor_that_does_not_answer_is_absent(tmp_path):
    write(tmp_path / "class/hwmon/hwmon0", name="ina226", power1_input="")
    assert find_board(tmp_path).reason.startswith("ina226")


@pytest.mark.parametrize(
    ("files", "watts"),
    [
        ({"power_now": 7_500_000}, 7.5),
        ({"power_now": -7_500_000}, 7.5),
        ({"voltage_now": 10_000_000, "current_now": 500_000}, 5.0),
    ],
)
def test_a_discharging_battery_tells_power(tmp_path, files, watts):
    write(tmp_path / "class/power_supply/BAT0", type="Battery", status="Discharging", **files)
    meter = find_battery(tmp_path)
    assert meter.read() == pytest.approx((watts,))
    assert meter.least_s == 600


def test_a_battery_that_charges_or_belongs_to_a_mouse_is_no_source(tmp_path):
    write(tmp_path / "class/power_supply/mouse", type="Battery", scope="Device", status="Discharging", power_now=1)
    assert isinstance(find_battery(tmp_path), Absence)
    write(tmp_path / "class/power_supply/BAT0", type="Battery", status="Charging", power_now=1)
    assert "charging; unplug" in find_battery(tmp_path).reason
    write(tmp_path / "class/power_supply/BAT0", status="Discharging", power_now="odd")
    assert "odd" in find_battery(tmp_path).reason


def test_a_graphics_card_tells_energy_through_its_library():
    millijoules = iter([1000, 4500])
    nvml = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: next(millijoules),
    )
    meter = nvml_meter(nvml, 1)
    assert (meter.kind, meter.coverage, meter.read()) == (MeterKind.COUNTER, "graphics card 1 only", (4.5,))


def test_a_graphics_card_tells_power_through_its_tool(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    meter = find_nvml(command=[sys.executable, "-c", "print('71.25')"])
    assert (meter.kind, meter.read()) == (MeterKind.POWER, (71.25,))
    assert "no NVIDIA driver" in find_nvml(command=[sys.executable, "-c", "print('[N/A]')"]).reason
    assert "no NVIDIA driver" in find_nvml(command=[sys.executable, "-c", "raise SystemExit(9)"]).reason
    assert parse_nvidia_smi("12.5\n80.0\n") == 12.5
    with pytest.raises(ValueError):
        parse_nvidia_smi("")


def test_sources_come_in_order_and_the_absent_ones_say_why(tmp_path):
    rapl(tmp_path, "intel-rapl:0", "package-0", 1)
    write(tmp_path / "class/hwmon/hwmon0", name="ina226", power1_input=1)
    found = find_meters(tmp_path, device=999)
    assert [meter.source for meter in found.found] == ["rapl", "hwmon"]
    assert found.best is found.found[0]
    nothing = find_meters(tmp_path / "empty", device=999)
    assert nothing.best is None
    assert [one.split(":")[0] for one in nothing.why_none().split("; ")] == ["rapl", "hwmon", "battery", "nvml"]


def test_energy_of_constant_power_is_power_times_time():
    found = judge_energy(constant(12.0, 40.0), frames=400, p50_ns=50e6, idle=constant(8.0, 10.0))
    assert isinstance(found, Energy)
    assert found.total_j == pytest.approx(480)
    assert found.gross_j == pytest.approx(1.2)
    assert found.net_j == pytest.approx(0.4)
    assert found.mean_watts == pytest.approx(12)
    assert found.edp_js == pytest.approx(0.06)
    assert str(found) == "1.2e+03 mJ, 400 mJ above idle an inference (board)"


def test_power_that_changes_is_integrated_by_trapezoids():
    trace = make_trace(power(), [(0, (0.0,)), (2 * SECOND, (10.0,)), (3 * SECOND, (10.0,))])
    assert trace.joules == pytest.approx(20)


def test_a_counter_that_wraps_goes_on(tmp_path):
    meter = power(MeterKind.COUNTER, wraps_at_j=(100.0, 0.0))
    taken = [(0, (90.0, 1.0)), (20 * SECOND, (98.0, 2.0)), (40 * SECOND, (6.0, 3.0))]
    trace = make_trace(meter, taken)
    assert trace.joules == pytest.approx(8 + 8 + 2)
    assert trace.mean_watts == pytest.approx(18 / 40)
    assert isinstance(judge_energy(trace, frames=10, p50_ns=1.0), Energy)


def test_a_counter_that_falls_without_a_known_wrap_is_not_measured():
    trace = make_trace(power(MeterKind.COUNTER), [(0, (5.0,)), (40 * SECOND, (4.0,))])
    assert "fell" in judge_energy(trace, frames=1, p50_ns=1.0).reason


@pytest.mark.parametrize(
    ("trace", "frames", "reason"),
    [
        (constant(1, 29.0), 9, "needs 30 s"),
        (constant(1, 300.0, least_s=600.0), 9, "needs 600 s"),
        (constant(1, 40.0, hz=2), 9, "81 readings"),
        (constant(1, 60.0, hz=4), 9, "every 0.25 s"),
        (constant(1, 40.0), 0, "no frame"),
        (make_trace(power(), [], "unplugged"), 9, "unplugged"),
        (make_trace(power(), []), 9, "0.0 s"),
    ],
)
def test_too_little_is_not_measured_with_the_reason(trace, frames, reason):
    found = judge_energy(trace, frames=frames, p50_ns=1.0)
    assert isinstance(found, NotMeasured)
    assert reason in str(found)
    assert str(found).startswith("not measured: ")


def test_idle_of_another_meter_or_too_short_is_not_subtracted():
    run = constant(12.0, 40.0)
    for idle in (constant(8.0, 10.0, coverage="CPU"), constant(8.0, 2.0), None):
        found = judge_energy(run, frames=1, p50_ns=1.0, idle=idle)
        assert found.net_j is None
        assert "above idle" not in str(found)


def test_a_meter_is_watched_beside_a_run(tmp_path):
    write(tmp_path / "class/hwmon/hwmon0", name="ina226", power1_input=2_000_000)
    meter = find_board(tmp_path)
    with watch_energy(meter, interval_s=0.001) as watch:
        np.ones(1000).sum()
    trace = make_trace(meter, watch.taken, watch.failure)
    assert len(trace.at_ns) >= 2
    assert trace.values[:, 0] == pytest.approx(2.0)
