"""NOISY where a close figure is wrong, and nowhere else: models against themselves on a loaded and on quiet machines.

`loaded.json` holds runs that `benchmarks/noise_truth.py record digits_detector` made on a virtual machine of two cores
on which eight other programs worked, `quiet.json` eight runs of the same machine, idle. More quiet runs are simulated
from what an idle virtual machine shows: a little stolen
time, interrupts, pages of the model read from disk, another clock rate, sessions that differ by some percent.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgeopt.measurement.resources.anchor import AnchorTimes
from edgeopt.measurement.resources.readings import CounterReading
from edgeopt.measurement.resources.trust import Thresholds, TrustLevel, judge_turns, undecided, warning_of
from edgeopt.measurement.statistics.ratio import rounds_reach

ROOT = Path(__file__).parents[2]
LOADED = json.loads((ROOT / "tests/fixtures/noise/loaded.json").read_text("utf-8"))
QUIET = json.loads((ROOT / "tests/fixtures/noise/quiet.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def truth():
    spec = importlib.util.spec_from_file_location("noise_truth", ROOT / "benchmarks/noise_truth.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def quiet_rounds(rng: np.random.Generator) -> np.ndarray:
    """Return rounds of four legs, whose sessions lie elsewhere in memory; one round in 30 is held up."""
    legs = np.repeat(rng.normal(0, 0.015, 4), rng.integers(8, 40))
    held_up = np.where(rng.random(len(legs)) < 1 / 30, rng.normal(0, 0.1, len(legs)), 0)
    return legs + rng.normal(0, 0.008, len(legs)) + held_up


def quiet_readings(rng: np.random.Generator, seconds: float = 15.0) -> tuple[CounterReading, CounterReading]:
    """Return the counters around a run on two cores of an idle virtual machine without a clock rate or a sensor."""
    first = CounterReading(
        monotonic_ns=0, wall_ns=0, busy_s=0, steal_s=0, total_s=0, own_s=0, pressure_us=0, switches=0, major_faults=0
    )
    own_s = seconds * 1.02
    last = replace(
        first,
        monotonic_ns=round(seconds * 1e9),
        wall_ns=round(seconds * 1e9),
        own_s=own_s,
        busy_s=own_s + rng.uniform(0.01, 0.15) * seconds,
        steal_s=rng.uniform(0, 0.004) * 2 * seconds,
        total_s=2 * seconds,
        pressure_us=round(rng.uniform(0.01, 0.12) * seconds * 1e6),
        switches=round(rng.uniform(10, 120) * seconds),
        major_faults=int(rng.integers(0, 20)),
    )
    return first, last


def quiet_runs(count: int = 200) -> Iterator[tuple[np.ndarray, tuple[CounterReading, CounterReading]]]:
    rng = np.random.default_rng(5)
    for _ in range(count):
        yield quiet_rounds(rng), quiet_readings(rng)


def test_no_quiet_run_is_called_noisy():
    for rounds, readings in quiet_runs():
        trust = judge_turns(rounds, readings)
        assert trust.level is TrustLevel.TRUSTED, str(trust)


def test_every_loaded_run_whose_close_figure_was_wrong_is_noisy(truth):
    fastest_us = min(one["p50_us"] for one in LOADED)
    wrong = [one for one in LOADED if truth.is_wrong(one, fastest_us)]
    assert len(wrong) > len(LOADED) / 2
    assert all(truth.judge(one).level is TrustLevel.NOISY for one in wrong)


def test_recorded_runs_of_an_idle_virtual_machine_are_not_called_noisy(truth):
    assert [truth.judge(one).level for one in QUIET] == [TrustLevel.TRUSTED] * len(QUIET)
    assert all(rounds_reach(np.array(one["rounds"])) < 0.02 for one in QUIET), "none is off by a close figure"


def test_rounds_tell_most_of_the_loaded_runs_without_any_counter(truth):
    """A container may see no other program: the times have to tell."""
    reaches = [rounds_reach(np.array(one["rounds"])) for one in LOADED]
    allowed = Thresholds().rounds_reach_ratio
    assert np.mean([reach > allowed for reach in reaches]) > 0.7
    bare = CounterReading(monotonic_ns=0, wall_ns=0)
    worst = LOADED[int(np.argmax(reaches))]
    trust = judge_turns(np.array(worst["rounds"]), [bare, bare])
    assert [reason.name for reason in trust.reasons] == ["rounds"]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"busy_s": 15.3 + 0.6 * 15}, "background load"),
        ({"steal_s": 0.05 * 30}, "steal"),
        ({"major_faults": 90}, "page faults"),
        ({"pressure_us": 6_000_000}, "pressure"),
    ],
)
def test_a_machine_that_really_works_for_others_is_told_by_its_name(change, name):
    rounds, (first, last) = next(quiet_runs())
    trust = judge_turns(rounds, (first, replace(last, **change)))
    assert [reason.name for reason in trust.reasons] == [name]
    assert trust.warning == f"NOISY: do not trust small differences ({name})"


def test_one_sentence_warns_and_one_blocks_a_gate():
    assert (
        warning_of("NOISY; steal: 3.00% of the time; rounds: 4%")
        == "NOISY: do not trust small differences (steal, rounds)"
    )
    assert warning_of("INVALID; clock step: 3 s") == "INVALID: do not trust these figures (clock step)"
    assert warning_of("TRUSTED") == warning_of("") == ""
    assert undecided(TrustLevel.NOISY, "p99 3 ms") == "NOISY: nothing is decided; seen: p99 3 ms"


def test_a_drift_that_slows_all_models_alike_is_a_sign_only():
    rounds, readings = next(quiet_runs())
    trust = judge_turns(rounds, readings, [AnchorTimes((100,)), AnchorTimes((120,))])
    assert (trust.level, trust.reasons) == (TrustLevel.TRUSTED, ())
    assert [sign.name for sign in trust.signs] == ["anchor drift"]


@pytest.mark.parametrize("rounds", [[], [0.1], [0.0, 0.0]])
def test_a_run_of_hardly_any_round_is_judged_without_nan(rounds):
    assert judge_turns(np.array(rounds), []).level is TrustLevel.TRUSTED
