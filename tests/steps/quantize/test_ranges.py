from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeopt.steps.quantize.activations import silu
from edgeopt.steps.quantize.grids.affine import make_affine
from edgeopt.steps.quantize.grids.histogram import Histogram, count_values
from edgeopt.steps.quantize.grids.ranges import (
    FIRST_METHOD,
    LAST_METHODS,
    NEXT_METHODS,
    Method,
    choose_affine,
    entropy_limit,
    percentile_range,
)


def histogram(array: np.ndarray) -> Histogram:
    array = np.asarray(array, np.float32)
    return count_values(array, float(array.min()), float(array.max()))


def normal(seed: int = 0, outlier: float = 0.0) -> np.ndarray:
    array = np.random.default_rng(seed).normal(size=20_000).astype(np.float32)
    array[0] = outlier
    return array


def loss(array: np.ndarray, affine: object, after: object = None) -> float:
    function = after or (lambda x: x)
    return float(np.square(function(affine.round_trip(array)) - function(array)).mean())


def test_minmax_covers_all_values_exactly() -> None:
    array = normal(outlier=9.5)
    affine = choose_affine(histogram(array), Method.MINMAX)
    assert affine.scale == pytest.approx((9.5 - array.min()) / 255, rel=1e-6)


def test_percentile_leaves_an_outlier_out_and_equals_numpy_on_the_rest() -> None:
    array = normal(outlier=500.0)
    low, high = percentile_range(histogram(array), 99.0)
    width = histogram(array).width
    assert high == pytest.approx(np.percentile(array, 99.5), abs=1.5 * width)
    assert low == pytest.approx(np.percentile(array, 0.5), abs=1.5 * width)


@pytest.mark.parametrize("percent", [50.0, 100.5, 0.0])
def test_a_percentile_that_makes_no_sense_is_a_bug(percent: float) -> None:
    with pytest.raises(ValueError, match="percentile"):
        percentile_range(histogram(normal()), percent)


@given(st.integers(0, 1000), st.floats(4, 100))
@settings(max_examples=25, deadline=None)
def test_least_squares_never_loses_more_than_minmax(seed: int, outlier: float) -> None:
    array = normal(seed, outlier)
    best, full = (choose_affine(histogram(array), method) for method in (Method.MSE, Method.MINMAX))
    assert loss(array, best) <= loss(array, full) * 1.01


def test_least_squares_behind_silu_spends_nothing_on_large_negative_numbers() -> None:
    array = normal() * 8 - 4
    plain = choose_affine(histogram(array), Method.MSE)
    behind = choose_affine(histogram(array), Method.MSE, after=silu)
    assert behind.low > plain.low / 2
    assert loss(array, behind, silu) < loss(array, plain, silu) / 2


def test_entropy_saturates_a_lone_outlier() -> None:
    limit = entropy_limit(histogram(normal(outlier=100.0)), 128)
    assert 2 < limit < 60


@pytest.mark.parametrize("method", Method)
@pytest.mark.parametrize("value", [0.0, 3.5, -3.5, 1e-42])
def test_constant_activations_have_a_grid_that_holds_them(method: Method, value: float) -> None:
    array = np.full(1000, value, np.float32)
    affine = choose_affine(histogram(array), method)
    assert affine.round_trip(array)[0] == pytest.approx(value, rel=1e-2, abs=1e-30)


@pytest.mark.parametrize("method", Method)
def test_values_of_one_sign_use_all_integers(method: Method) -> None:
    affine = choose_affine(histogram(np.abs(normal())), method)
    assert affine.zero_point == 0


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_a_symmetric_search_stays_symmetric(dtype: str) -> None:
    affine = choose_affine(histogram(normal()), Method.MSE, dtype=dtype, symmetric=True)
    assert affine.zero_point == (128 if dtype == "uint8" else 0)


def test_a_search_tries_every_method_once() -> None:
    assert sorted((FIRST_METHOD, *NEXT_METHODS, *LAST_METHODS)) == sorted(Method)


def test_the_grid_of_a_percentile_covers_that_range() -> None:
    made = choose_affine(histogram(normal()), Method.PERCENTILE, percentile=99.0)
    assert made == make_affine(*percentile_range(histogram(normal()), 99.0))
