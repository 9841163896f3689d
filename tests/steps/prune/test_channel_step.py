"""The channel step of an engine: what a sweep shows, and what a profile says where nothing can be swept."""

from dataclasses import replace
from math import ceil

import numpy as np
import pytest

from edgeopt.runtime.devices.availability import load_executor
from edgeopt.steps._context import Engine
from edgeopt.steps.prune.latency_table import stopwatch_of
from edgeopt.steps.prune.network.channel_step import USUAL_STEP, channel_step, found_step, step_of, swept_counts
from edgeopt.system.declared.target import find_target, target_names

COUNTS = np.array([*swept_counts()], float)


def stairs(step, least=0.0):
    return least + np.ceil(COUNTS / step) * step


def sweeps(*rows):
    return np.stack([np.asarray(one, float) for one in rows])


@pytest.mark.parametrize("step", [8, 16, 32])
def test_a_staircase_shows_its_step(step):
    assert step_of(sweeps(*[stairs(step, 6.0)] * 4)) == step


def test_a_slope_has_the_finest_step_that_was_measured():
    assert step_of(sweeps(*[COUNTS] * 4)) == 4


def test_channels_in_and_out_must_both_fit():
    assert step_of(sweeps(COUNTS, stairs(16), COUNTS, stairs(16))) == 16


def test_of_two_kernels_the_finer_step_saves_time():
    assert step_of(sweeps(stairs(8), stairs(32), stairs(16), stairs(16))) == 16


@pytest.mark.parametrize("seed", range(5))
def test_noise_that_only_adds_time_invents_no_step(seed):
    chance = np.random.default_rng(seed)
    noisy = sweeps(*[stairs(16) for _ in range(4)])
    noisy *= np.where(chance.random(noisy.shape) < 0.15, 3.0, 1.0) + np.abs(chance.normal(0, 0.01, noisy.shape))
    assert step_of(noisy) in (16, None)


def test_where_fewer_channels_save_no_time_there_is_no_step():
    assert step_of(sweeps(*[np.full(len(COUNTS), 5.0)] * 4)) is None
    assert step_of(sweeps(*[np.full(len(COUNTS), np.nan)] * 4)) is None
    assert step_of(sweeps(*[np.zeros(len(COUNTS))] * 4)) is None


def test_the_profile_stands_in_where_the_sweep_shows_nothing():
    target = replace(find_target("qualcomm-htp-v73"), channel_step=32)
    found = found_step(lambda shapes: [1.0] * len(shapes), target)
    assert found.channels == 32
    assert "no step stands out" in found.note.hint


def test_a_target_that_is_not_here_has_its_profiles_step():
    target = find_target("qualcomm-htp-v73")
    engine = Engine(target, load_executor("onnxruntime"), 1)
    assert channel_step(engine, "w8a8", is_here=False).channels == 32
    silent = replace(target, channel_step=0)
    assert channel_step(replace(engine, target=silent), "w8a8", is_here=False).channels == USUAL_STEP


def test_every_profile_names_a_power_of_two_or_nothing():
    for name in target_names():
        step = getattr(find_target(name, lambda _: None), "channel_step", 0) if name not in ("cpu", "gpu", "npu") else 0
        assert step == 0 or (step >= 4 and step & (step - 1) == 0), name


def test_the_real_engine_gives_a_step_from_4_to_64_and_says_where_it_is_from():
    target = replace(find_target("cpu-xnnpack"), providers=("CPUExecutionProvider",), options={}, channel_step=0)
    engine = Engine(target, load_executor("onnxruntime"), 1)
    found = found_step(stopwatch_of(engine, "fp32"), target)
    assert found.channels in (4, 8, 16, 32)
    assert found.note.hint
    assert ceil(64 / found.channels) * found.channels == 64
