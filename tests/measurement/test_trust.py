from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from edgeopt.measurement.clock import ScriptedClock
from edgeopt.measurement.resources.anchor import AnchorTimes, drift_ratio, measure_anchor
from edgeopt.measurement.resources.readings import CounterReading, take_reading
from edgeopt.measurement.resources.trust import Thresholds, TrustLevel, judge_trust
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.statistics.quantile import combine_rounds
from edgeopt.measurement.statistics.trend import block_spread, mode_gap, own_spread

SECOND = 1_000_000_000
BEFORE = CounterReading(
    monotonic_ns=0,
    wall_ns=1_000 * SECOND,
    busy_s=100.0,
    steal_s=1.0,
    total_s=1000.0,
    own_s=50.0,
    pressure_us=0,
    switches=10,
    major_faults=5,
    throttled=3,
    heat_throttled=0,
    frequency_mhz=(2400.0, 800.0),
    temperature_c=(60.0,),
    heat_margin_c=30.0,
    load1=0.5,
)
QUIET = {
    "monotonic_ns": 10 * SECOND,
    "wall_ns": 1_010 * SECOND,
    "busy_s": 110.0,
    "total_s": 1020.0,
    "own_s": 60.0,
}


def after(**changes: object) -> CounterReading:
    return replace(BEFORE, **QUIET | changes)


def run(times: np.ndarray, **columns: np.ndarray) -> Samples:
    frames = times.astype(np.int64)
    return Samples(("execute",), frames.reshape(-1, 1), frames, np.zeros(len(frames), np.bool_), **columns)


def steady(n: int = 1000, sigma: float = 0.03) -> np.ndarray:
    return 1e7 * np.exp(sigma * np.random.default_rng(7).standard_normal(n))


def names(trust) -> list[str]:
    return [reason.name for reason in trust.reasons]


def test_a_quiet_machine_is_trusted():
    trust = judge_trust(run(steady()), [BEFORE, after()], [AnchorTimes((100, 101)), AnchorTimes((100, 102))])
    assert (trust.level, trust.reasons, trust.missing) == (TrustLevel.TRUSTED, (), ())
    assert trust.level.exit_code == 0


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"steal_s": 1.2}, "steal"),
        ({"busy_s": 113.0}, "background load"),
        ({"pressure_us": 2_200_000}, "pressure"),
        ({"switches": 2100}, "context switches"),
        ({"major_faults": 30}, "page faults"),
        ({"throttled": 6}, "quota"),
        ({"heat_throttled": 1}, "heat"),
        ({"heat_margin_c": -1.0}, "temperature"),
        ({"frequency_mhz": (1800.0, 800.0)}, "frequency"),
    ],
)
def test_each_disturbance_makes_the_run_noisy_by_its_name(changes, name):
    trust = judge_trust(run(steady()), [BEFORE, after(**changes)])
    assert (trust.level, names(trust)) == (TrustLevel.NOISY, [name])
    assert trust.level.exit_code == 4
    assert name in str(trust)


def test_more_workers_may_be_interrupted_more_often():
    readings = [BEFORE, after(switches=2100)]
    assert judge_trust(run(steady()), readings, workers=2).level is TrustLevel.TRUSTED


def test_a_set_clock_and_a_late_generator_make_the_run_invalid():
    stepped = judge_trust(run(steady()), [BEFORE, after(wall_ns=1_011 * SECOND)])
    late = judge_trust(run(steady()), [], send_lag_ratio=0.2)
    assert (stepped.level, names(stepped)) == (TrustLevel.INVALID, ["clock step"])
    assert (late.level, names(late)) == (TrustLevel.INVALID, ["send lag"])
    assert late.level.exit_code == 4


def test_an_anchor_that_changes_makes_the_run_noisy():
    trust = judge_trust(run(steady()), [], [AnchorTimes((100,)), AnchorTimes((104,))])
    assert names(trust) == ["anchor drift"]
    assert drift_ratio([AnchorTimes((100,))]) == 0.0
    assert drift_ratio([AnchorTimes((0,)), AnchorTimes((0,))]) == 0.0


def test_times_that_drift_make_the_run_noisy():
    drifting = judge_trust(run(np.linspace(1e7, 1.3e7, 1000)), [])
    assert names(drifting) == ["block spread"]
    assert [sign.name for sign in drifting.signs] == ["autocorrelation"]


def test_two_groups_and_a_drift_of_a_thousandth_are_signs_and_make_no_figure_wrong():
    switching = np.where(np.random.default_rng(1).random(1000) < 0.4, 1.3, 1.0) * steady(sigma=0.01)
    even = np.linspace(1e7, 1.001e7, 1000)
    for times, sign in ((switching, "bimodality"), (even, "autocorrelation")):
        trust = judge_trust(run(times), [])
        assert (trust.level, trust.reasons, trust.warning) == (TrustLevel.TRUSTED, (), "")
        assert [one.name for one in trust.signs] == [sign]


def test_a_model_that_varies_by_itself_is_not_called_noisy_for_it():
    wide = steady(sigma=0.5)
    assert block_spread(wide) > 0.1
    assert own_spread(wide) > 0.1
    assert judge_trust(run(wide), []).level is TrustLevel.TRUSTED


def test_inputs_of_two_sizes_are_no_noise():
    ids = np.arange(1000) % 2
    times = steady(sigma=0.01) * np.where(ids, 2.0, 1.0)
    assert [sign.name for sign in judge_trust(run(times), []).signs] == ["bimodality"]
    assert judge_trust(run(times, input_id=ids), []).signs == ()


@pytest.mark.parametrize("shape", ["normal", "uniform", "lognormal", "exponential", "tail", "constant"])
def test_one_group_is_never_taken_for_two(shape):
    rng = np.random.default_rng(3)
    times = {
        "normal": rng.normal(10, 1, 1000),
        "uniform": rng.uniform(5, 15, 1000),
        "lognormal": np.exp(rng.normal(0, 0.5, 1000)),
        "exponential": 1 + rng.exponential(1, 1000),
        "tail": np.r_[rng.normal(10, 0.2, 950), rng.normal(20, 0.2, 50)],
        "constant": np.full(1000, 5.0),
    }[shape]
    assert mode_gap(times) < Thresholds().mode_gap


def test_a_reason_names_the_time_it_held_for():
    middle = after(monotonic_ns=5 * SECOND, wall_ns=1_005 * SECOND, busy_s=105.0, own_s=55.0, total_s=1010.0)
    end = after(steal_s=1.5)
    trust = judge_trust(run(steady()), [BEFORE, middle, end])
    assert trust.reasons[0].spans_ns == ((1_005 * SECOND, 1_010 * SECOND),)


def test_absent_sensors_are_named_and_judge_nothing():
    bare = CounterReading(monotonic_ns=0, wall_ns=0)
    trust = judge_trust(run(steady()), [bare, replace(bare, monotonic_ns=SECOND, wall_ns=SECOND)])
    assert trust.level is TrustLevel.TRUSTED
    assert {"steal_s", "frequency_mhz", "temperature_c", "pressure_us"} <= set(trust.missing)
    assert "not measured here: busy_s, steal_s" in trust.lines()[-1]


def test_every_threshold_is_printed_and_can_be_changed():
    strict = Thresholds(steal_ratio=0.0)
    trust = judge_trust(run(steady()), [BEFORE, after(steal_s=1.001)], thresholds=strict)
    assert names(trust) == ["steal"]
    text = "\n".join(trust.lines())
    assert all(f"{name} <= {value:g}" in text for name, value in asdict(strict).items())


@pytest.mark.parametrize("n", [0, 1, 2, 30, 60])
def test_short_and_empty_runs_are_judged_without_any_nan(n):
    for times in (np.zeros(n), np.full(n, 5e6), steady(n)):
        assert "nan" not in str(judge_trust(run(times), [BEFORE, after()]))


def test_the_readings_of_this_machine_never_go_back():
    first, second = take_reading(), take_reading()
    assert second.monotonic_ns > first.monotonic_ns
    for name in ("busy_s", "own_s", "switches", "major_faults", "throttled", "pressure_us"):
        old, new = getattr(first, name), getattr(second, name)
        assert (old is None) == (new is None)
        assert old is None or new >= old
    assert first.own_s is not None


@pytest.fixture
def linux(tmp_path: Path) -> Path:
    """A tree of the files that Linux offers."""
    files = {
        "proc/pressure/cpu": "some avg10=0.00 avg60=0.00 avg300=0.00 total=4711\nfull avg10=0.00 total=3\n",
        "proc/self/task/1/status": "Name:\tpython\nvoluntary_ctxt_switches:\t9\nnonvoluntary_ctxt_switches:\t40\n",
        "proc/self/task/2/status": "nonvoluntary_ctxt_switches:\t2\n",
        "proc/self/cgroup": "0::/group\n",
        "sys/fs/cgroup/group/cpu.stat": "usage_usec 5\nnr_periods 9\nnr_throttled 7\n",
        "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "3\n",
        "sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count": "4\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "2400000\n",
        "sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq": "800000\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "ascii")
    return tmp_path


def test_every_counter_of_linux_is_read(linux: Path):
    reading = take_reading(linux / "proc", linux / "sys")
    assert reading.pressure_us == 4711
    assert reading.switches == 42
    assert reading.throttled == 7
    assert reading.heat_throttled == 7
    assert reading.frequency_mhz == (2400.0, 800.0)


def test_damaged_and_absent_files_are_missing_sensors(linux: Path):
    (linux / "proc/pressure/cpu").write_text("nonsense\n", "ascii")
    (linux / "proc/self/cgroup").unlink()
    (linux / "sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq").write_text("<unknown>\n", "ascii")
    missing = take_reading(linux / "proc", linux / "sys").missing
    assert {"pressure_us", "throttled", "frequency_mhz"} <= set(missing)
    assert "heat_throttled" not in missing


def test_a_system_without_those_folders_still_gives_a_reading(tmp_path: Path):
    reading = take_reading(tmp_path, tmp_path)
    assert {"pressure_us", "throttled", "heat_throttled", "frequency_mhz"} <= set(reading.missing)
    assert reading.switches is not None  # from psutil, which has it on every system


def test_temperatures_are_read_where_the_system_has_them(monkeypatch: pytest.MonkeyPatch):
    limited = SimpleNamespace(current=71.0, high=85.0, critical=95.0)
    found = {"soc": [limited, SimpleNamespace(current=50.0, high=None, critical=None)]}
    monkeypatch.setattr(psutil, "sensors_temperatures", lambda: found, raising=False)
    reading = take_reading()
    assert reading.temperature_c == (71.0, 50.0)
    assert reading.heat_margin_c == pytest.approx(14.0)
    monkeypatch.delattr(psutil, "sensors_temperatures")
    assert "temperature_c" in take_reading().missing


def test_the_anchor_does_its_work_as_often_as_asked():
    anchor = measure_anchor(repeats=7, clock=ScriptedClock(reading_costs_ns=50))
    assert anchor.times_ns == (50,) * 7
    assert anchor.p50_ns == 50
    assert measure_anchor(repeats=1).p50_ns > 0


def rounds(seed: int, count: int = 8, between: float = 0.05) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    levels = 1e7 * np.exp(between * rng.standard_normal(count))
    return [(level * np.exp(0.03 * rng.standard_normal(400))).astype(np.int64) for level in levels]


def test_the_interval_between_rounds_covers_the_truth_where_the_pooled_one_does_not():
    found = [combine_rounds(rounds(seed), 0.5) for seed in range(200)]
    assert np.mean([one.low_ns <= 1e7 <= one.high_ns for one in found]) >= 0.92
    assert np.mean([one.pooled.low_ns <= 1e7 <= one.pooled.high_ns for one in found]) < 0.8
    assert all(one.note == "" for one in found)


def test_few_rounds_are_indicative_and_one_has_no_interval():
    few = combine_rounds(rounds(0, count=3), 0.5)
    assert "indicative" in few.note
    assert few.spread_ratio is not None
    one = combine_rounds(rounds(0, count=1), 0.5)
    assert (one.low_ns, one.spread_ratio) == (None, None)
    assert "one round" in one.note
    assert "n/a" in str(one)


def test_rounds_too_short_for_a_quantile_have_none():
    found = combine_rounds([np.arange(1, 20)] * 3, 0.99)
    assert (found.value_ns, str(found)) == (None, "n/a")
    assert found.rounds_ns == ()
