from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from small_nets import largest_pair

from edgeopt.errors import UnsupportedError
from edgeopt.steps.quantize.grids.affine import SMALLEST_SCALE, next_power_of_two
from edgeopt.steps.quantize.grids.weights import (
    along,
    choose_scale,
    quantize_bias,
    quantize_weight,
    smallest_scale_for_bias,
)

finite = st.floats(-1e6, 1e6, width=32)
arrays = hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=4), elements=finite)


@given(arrays, st.booleans(), st.booleans(), st.data())
def test_rounding_moves_no_weight_by_more_than_half_a_step(
    weight: np.ndarray, reduce_range: bool, per_channel: bool, data: st.DataObject
) -> None:
    axis = data.draw(st.integers(0, weight.ndim - 1))
    made = quantize_weight("w", weight, axis, reduce_range=reduce_range, per_channel=per_channel)
    step = along(made.scale, axis, weight.ndim)
    assert (np.abs(made.real - weight) <= step * 0.5001 + 1e-6 * np.abs(weight)).all()
    assert np.abs(made.values.astype(int)).max() <= 127
    assert made.scale.shape == ((weight.shape[axis],) if per_channel else (1,))


@given(hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=4, max_side=7), elements=finite), st.booleans())
def test_no_two_neighbours_saturate_16_bits_in_either_order_of_a_kernel(weight: np.ndarray, per_channel: bool) -> None:
    """255 times 128 is the most that fits; kernels pair the channels of a position, or go on to the next one."""
    made = quantize_weight("w", weight, 0, reduce_range=True, per_channel=per_channel).values
    last = np.moveaxis(made, 1, -1)
    assert largest_pair(last) <= 128
    assert largest_pair(last.reshape(len(last), -1)) <= 128
    matrix = quantize_weight("w", weight.reshape(len(weight), -1).T, 1, reduce_range=True, per_channel=per_channel)
    assert largest_pair(matrix.values.T) <= 128


def test_a_channel_without_two_large_neighbours_keeps_8_bits() -> None:
    weight = np.array([[1, -0.01, -1, 0.9], [1, 1, 0, 0]], np.float32)
    assert np.abs(quantize_weight("w", weight, 0, reduce_range=True).values).max(axis=1).tolist() == [127, 64]


@given(arrays)
def test_the_scale_is_always_a_normal_number_above_zero(weight: np.ndarray) -> None:
    scale = choose_scale(weight * np.float32(1e-40), 0)
    assert (scale >= np.finfo(np.float32).tiny).all()


def test_channels_of_zeros_stay_zeros_and_do_not_disturb_the_others() -> None:
    weight = np.zeros((3, 2, 3, 3), np.float32)
    weight[1] = 0.5
    made = quantize_weight("w", weight, 0)
    np.testing.assert_array_equal(made.values[[0, 2]], 0)
    np.testing.assert_allclose(made.real, weight, rtol=1e-6)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ([np.nan], "NaN"),
        ([np.inf], "infinity"),
        ([-np.inf, np.inf], "infinity"),
        ([np.nan, np.inf], "NaN and infinity"),
    ],
)
def test_a_weight_that_is_not_finite_is_named(bad: list[float], words: str) -> None:
    weight = np.ones((2, 2), np.float32)
    weight[1, : len(bad)] = bad
    with pytest.raises(UnsupportedError, match=rf"constant 'stem\.weight' holds {words}\n"):
        quantize_weight("stem.weight", weight, 0)


def test_a_large_bias_on_a_channel_of_zeros_still_fits_in_32_bits() -> None:
    weight, bias = np.zeros((2, 4, 1, 1), np.float32), np.array([5e5, -1.0], np.float32)
    weight[1] = 1.0
    made = quantize_weight("w", weight, 0, smallest=smallest_scale_for_bias(bias, 1e-6))
    steps = quantize_bias(bias, 1e-6, made.scale)
    np.testing.assert_allclose(steps * 1e-6 * made.scale.astype(np.float64), bias, rtol=1e-6)


def test_one_scale_for_all_channels_can_follow_the_bias_too() -> None:
    made = quantize_weight("w", np.ones((2, 4)), 0, per_channel=False, smallest=np.array([0.5, 0.1]))
    assert made.scale.tolist() == [0.5]


@given(arrays, st.booleans())
def test_scales_of_weights_may_be_powers_of_two_and_lose_no_more_than_the_next_one_above(
    weight: np.ndarray, per_channel: bool
) -> None:
    bound = quantize_weight("w", weight, 0, per_channel=per_channel, power_of_two=True)
    free = choose_scale(weight, 0, per_channel=per_channel)
    assert (np.frexp(bound.scale)[0] == 0.5).all()
    assert (bound.scale >= SMALLEST_SCALE).all()
    above = along(next_power_of_two(free), 0, weight.ndim)
    lost = np.square(weight - np.clip(np.rint(weight / above), -127, 127) * above, dtype=np.float64).sum()
    assert np.square(weight - bound.real, dtype=np.float64).sum() <= lost * 1.0001


def test_a_power_of_two_that_cuts_one_outlier_off_is_taken_where_it_loses_less() -> None:
    weight = np.full((1, 4000), 0.005, np.float32)
    weight[0, 0] = 1.01  # the next scale above is 1/64, half of it cuts the outlier to 127/128
    assert quantize_weight("w", weight, 0, power_of_two=True).scale == np.float32(1 / 128)


def test_a_bias_that_must_fit_holds_the_power_of_two_up() -> None:
    weight = np.full((1, 4000), 0.005, np.float32)
    weight[0, 0] = 1.01
    kept = quantize_weight("w", weight, 0, power_of_two=True, smallest=np.float32([0.01]))
    assert kept.scale == np.float32(1 / 64)
