from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest

from edgeopt.measurement.load.sustained import sustained_curve
from edgeopt.measurement.resources.readings import CounterReading
from edgeopt.measurement.samples import Samples

MS, SECOND = 1_000_000, 1_000_000_000
EPOCH = 1_700_000_000 * SECOND


def run(times_ms: np.ndarray, **columns: object) -> Samples:
    times = (times_ms * MS).astype(np.int64)
    done = np.cumsum(times)
    made = {"started_ns": done - times, "done_ns": done, "epoch_ns": EPOCH} | columns
    return Samples(("execute",), times.reshape(-1, 1), times, np.zeros(len(times), np.bool_), **made)


def noise(n: int) -> np.ndarray:
    return np.exp(0.01 * np.random.default_rng(3).standard_normal(n))


def reading(at_s: float, **values: object) -> CounterReading:
    return CounterReading(monotonic_ns=0, wall_ns=EPOCH + round(at_s * SECOND), **values)


def test_a_steady_device_has_a_ratio_of_one():
    found = sustained_curve(run(10 * noise(3000)))
    assert found.ratio == pytest.approx(1, abs=0.01)
    assert found.ratio_low < 1 < found.ratio_high
    assert (found.slow_from_s, found.throttled_from_s) == (None, None)
    assert len(found.windows) == 20
    assert sum(one.frames for one in found.windows) == 3000
    assert found.windows[5].frames_per_s == pytest.approx(100, rel=0.05)


def test_a_device_that_throttles_shows_when_and_by_how_much():
    times = np.where(np.arange(3000) < 1500, 10.0, 15.0) * noise(3000)
    found = sustained_curve(run(times))
    assert found.ratio == pytest.approx(1.5, abs=0.03)
    assert found.ratio_low > 1.4
    assert found.slow_from_s == pytest.approx(15.0, abs=2.0)


def test_one_slow_window_is_no_state():
    times = np.full(2000, 10.0)
    times[1000:1060] = 30.0
    assert sustained_curve(run(times)).slow_from_s is None


def test_warm_up_is_not_part_of_the_curve():
    times = np.full(1000, 10.0)
    times[:100] = 100.0
    warm = run(times)
    marked = Samples(**{**raw(warm), "warmup": np.arange(1000) < 100})
    assert sustained_curve(marked).ratio == 1.0


def raw(samples: Samples) -> dict[str, object]:
    return {name: getattr(samples, name) for name in samples.__dataclass_fields__}


def test_sensors_are_placed_by_the_clock_on_the_wall():
    readings = [
        reading(
            i, temperature_c=(40.0 + i, 30.0), frequency_mhz=(2000.0 if i < 20 else 1500.0, 800.0), heat_throttled=0
        )
        for i in range(31)
    ]
    found = sustained_curve(run(np.full(3000, 10.0)), readings, windows=10)
    assert found.missing == ()
    assert found.windows[0].frequency_mhz == 2000.0
    assert found.windows[-1].temperature_c == pytest.approx(70.0)
    assert found.throttled_from_s == pytest.approx(18.0, abs=0.1)  # the window that holds second 20


def test_heat_counted_between_two_windows_belongs_to_the_later_one():
    readings = [reading(i, heat_throttled=0 if i < 15 else 2) for i in range(0, 31, 5)]
    found = sustained_curve(run(np.full(3000, 10.0)), readings, windows=6)
    assert sum(one.heat_throttled for one in found.windows) == 2
    assert found.throttled_from_s == pytest.approx(15.0, abs=5.1)
    assert found.missing == ("temperature_c", "frequency_mhz")


def test_without_a_wall_clock_or_sensors_what_is_missing_is_said():
    names = ("temperature_c", "frequency_mhz", "heat_throttled")
    unplaced = sustained_curve(run(np.full(100, 10.0), epoch_ns=0), [reading(0, temperature_c=(1.0,))])
    assert unplaced.missing == names
    assert all(one.temperature_c is None for one in unplaced.windows)


def test_without_instants_there_is_no_curve():
    with pytest.raises(ValueError, match="instants"):
        sustained_curve(run(np.full(100, 10.0), done_ns=None, started_ns=None))


def test_a_curve_of_no_frames_is_empty():
    found = sustained_curve(run(np.zeros(0)))
    assert (found.ratio, found.slow_from_s) == (None, None)
    json.dumps(found.to_json(), allow_nan=False)
    assert asdict(found)["windows"][0]["frames"] == 0
