from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgeopt.steps.quantize.grids.affine import SMALLEST_SCALE, Affine, integer_range, make_affine, next_power_of_two

ends = st.floats(-(2.0**100), 2.0**100, width=32)
dtypes = st.sampled_from(["uint8", "int8", "uint16", "int16"])


@given(ends, ends, dtypes, st.booleans())
def test_zero_is_always_exact(a: float, b: float, dtype: str, symmetric: bool) -> None:
    affine = make_affine(min(a, b), max(a, b), dtype, symmetric=symmetric)
    assert affine.round_trip(np.zeros(1))[0] == 0


@given(ends, ends, dtypes)
def test_the_range_is_covered_to_half_a_step(a: float, b: float, dtype: str) -> None:
    low, high = min(a, b, 0.0), max(a, b, 0.0)
    affine = make_affine(low, high, dtype)
    slack = affine.scale * 0.51 + 1e-5 * max(-low, high)
    assert affine.low <= low + slack
    assert affine.high >= high - slack


@given(hnp.arrays(np.float32, (50,), elements=st.floats(-100, 100, width=32)), dtypes)
def test_no_value_inside_moves_by_more_than_half_a_step(values: np.ndarray, dtype: str) -> None:
    affine = make_affine(float(values.min()), float(values.max()), dtype)
    inside = np.clip(values, affine.low, affine.high)
    assert (np.abs(affine.round_trip(values) - inside) <= affine.scale * 0.5001 + 1e-5 * np.abs(values)).all()


@given(hnp.arrays(np.float32, (50,), elements=st.floats(-100, 100, width=32)), dtypes, st.booleans())
def test_integers_and_round_trip_agree_and_a_second_trip_changes_nothing(
    values: np.ndarray, dtype: str, symmetric: bool
) -> None:
    affine = make_affine(float(values.min()), float(values.max()), dtype, symmetric=symmetric)
    integers = affine.quantize(values)
    real = (integers.astype(np.float32) - affine.zero_point) * np.float32(affine.scale)
    np.testing.assert_allclose(affine.round_trip(values), real, rtol=1e-6)
    np.testing.assert_allclose(affine.round_trip(real), real, rtol=1e-6)


@pytest.mark.parametrize(("low", "high"), [(0, 0), (1e-42, 1e-42), (-1e-45, 1e-45), (0, 1e-38)])
def test_ranges_of_nothing_and_subnormal_ranges_have_a_normal_scale(low: float, high: float) -> None:
    affine = make_affine(low, high)
    assert affine.scale >= SMALLEST_SCALE
    assert np.isfinite(affine.round_trip(np.array([low, high, 1.0]))).all()


@pytest.mark.parametrize("value", [3.0, -3.0])
def test_a_range_of_one_value_keeps_that_value(value: float) -> None:
    assert make_affine(value, value).round_trip(np.array([value]))[0] == pytest.approx(value, rel=1e-6)


def test_a_symmetric_grid_has_zero_in_the_middle() -> None:
    assert make_affine(-1, 3, "int8", symmetric=True).zero_point == 0
    assert make_affine(-1, 3, "uint8", symmetric=True).zero_point == 128
    assert integer_range("int8") == (-128, 127)


@pytest.mark.parametrize(("low", "high"), [(1.0, 0.0), (float("nan"), 1.0), (0.0, float("inf"))])
def test_a_reversed_or_infinite_range_is_a_bug(low: float, high: float) -> None:
    with pytest.raises(ValueError, match="is no range"):
        make_affine(low, high)


@pytest.mark.parametrize(("scale", "zero"), [(0.0, 0), (1.0, 256), (float("inf"), 0)])
def test_an_impossible_grid_is_a_bug(scale: float, zero: int) -> None:
    with pytest.raises(ValueError, match="is no uint8 grid"):
        Affine(scale, zero)


def test_rounding_is_half_to_even_as_onnx_says() -> None:
    assert make_affine(0, 255).quantize(np.array([0.5, 1.5, 2.5, 300.0, -1.0])).tolist() == [0, 2, 2, 255, 0]


@given(ends, ends, dtypes, st.booleans())
def test_a_scale_that_must_be_a_power_of_two_is_the_next_one(a: float, b: float, dtype: str, symmetric: bool) -> None:
    free = make_affine(min(a, b), max(a, b), dtype, symmetric=symmetric)
    bound = make_affine(min(a, b), max(a, b), dtype, symmetric=symmetric, power_of_two=True)
    assert np.frexp(bound.scale)[0] == 0.5
    assert free.scale <= bound.scale < 2 * free.scale


def test_a_scale_that_is_a_power_of_two_stays() -> None:
    np.testing.assert_array_equal(next_power_of_two(np.float32([0.5, 1.0, 4.0])), np.float32([0.5, 1.0, 4.0]))
    assert next_power_of_two(0.3) == 0.5
