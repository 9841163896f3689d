from __future__ import annotations

import numpy as np
import pytest

from edgeopt.steps.quantize.grids.affine import make_affine
from edgeopt.steps.quantize.keep_float.scores import (
    PERFECT_DB,
    channel_sqnr_db,
    is_rescaled,
    plain_score_db,
    rows_score_db,
    score_db,
    sqnr_db,
)


def test_the_plain_ratio_is_ten_times_the_logarithm_of_the_energies() -> None:
    signal = np.full((10, 2), 10.0, np.float32)
    assert sqnr_db(signal, np.full((10, 2), 1.0, np.float32)) == pytest.approx(20)
    assert sqnr_db(signal, np.zeros((10, 2), np.float32)) == PERFECT_DB
    assert sqnr_db(np.zeros((2, 2), np.float32), np.ones((2, 2), np.float32)) == -PERFECT_DB


def test_a_loud_channel_that_hides_the_others_is_seen_by_the_normalised_ratio_only() -> None:
    chance = np.random.default_rng(0)
    samples = chance.normal(size=(1000, 16)).astype(np.float32) * 0.05
    samples[:, 0] *= 2000
    affine = make_affine(float(samples.min()), float(samples.max()))
    assert plain_score_db(samples, affine) > 30
    assert score_db(samples, affine) < 3


def test_a_loud_token_spoils_a_grid_for_all_rows_and_a_loud_channel_those_of_each() -> None:
    samples = np.random.default_rng(0).normal(size=(64, 256)).astype(np.float32)
    token, channel = samples.copy(), samples.copy()
    token[3, 7] = 3000
    channel[:, 7] += 3000
    assert rows_score_db(samples) > 35
    assert score_db(token, make_affine(float(token.min()), float(token.max()))) < 1
    assert rows_score_db(token) > 15
    assert rows_score_db(channel) < 1


def test_rows_of_nothing_and_of_the_largest_numbers_have_a_score() -> None:
    samples = np.zeros((3, 2), np.float32)
    samples[0] = np.finfo(np.float32).max, np.finfo(np.float32).min
    assert rows_score_db(samples) > 35


def test_channels_of_equal_size_score_alike_in_both_ways() -> None:
    samples = np.random.default_rng(0).normal(size=(2000, 8)).astype(np.float32)
    affine = make_affine(float(samples.min()), float(samples.max()))
    assert score_db(samples, affine) == pytest.approx(plain_score_db(samples, affine), abs=0.5)


def test_constant_channels_say_nothing() -> None:
    samples = np.ones((10, 3), np.float32)
    assert channel_sqnr_db(samples, samples * 0.1) == PERFECT_DB


def test_a_channel_cannot_lose_more_than_all_it_says() -> None:
    samples = np.random.default_rng(0).normal(size=(100, 2)).astype(np.float32)
    assert channel_sqnr_db(samples, np.full_like(samples, 1e6)) == pytest.approx(0, abs=1e-9)


def test_channels_with_factors_of_their_own_are_rescaled_and_a_wrong_scale_for_all_is_an_error() -> None:
    signal = np.random.default_rng(0).normal(size=(500, 4)).astype(np.float32)
    inside = np.ones(signal.shape, bool)
    factors = np.array([1, 1, 3, 0.5], np.float32)
    assert is_rescaled(signal, signal * factors - signal, inside, 0.01)
    assert not is_rescaled(signal, signal * 2 - signal, inside, 0.01)
    assert not is_rescaled(signal[:8], (signal * factors - signal)[:8], inside[:8], 0.01)  # chance does it too


def test_what_a_grid_cuts_off_or_rounds_to_few_steps_is_no_factor() -> None:
    signal = np.random.default_rng(0).normal(size=(500, 3)).astype(np.float32) * np.array([1, 4, 0.02], np.float32)
    affine = make_affine(-2.0, 2.0)
    made = affine.round_trip(signal)
    inside = (made > affine.low) & (made < affine.high)
    assert not is_rescaled(signal, made - signal, inside, affine.scale)
