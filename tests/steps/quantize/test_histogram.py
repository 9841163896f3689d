from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgeopt.steps.quantize.grids.histogram import CAPACITY, Histogram, count_values

sizes = st.floats(2.0**-40, 2.0**66, width=32)
values = hnp.arrays(np.float32, st.integers(1, 200), elements=st.one_of(st.just(0.0), sizes, sizes.map(lambda x: -x)))


def histogram(array: np.ndarray) -> Histogram:
    return count_values(array, float(array.min()), float(array.max()))


@given(values, values)
@settings(max_examples=200)
def test_adding_histograms_is_the_histogram_of_all_values(a: np.ndarray, b: np.ndarray) -> None:
    both, together = histogram(a) + histogram(b), histogram(np.concatenate([a, b]))
    assert (both.low, both.high, both.total) == (together.low, together.high, together.total)
    same = together.coarsened(both.exponent), both.coarsened(together.exponent)
    filled = [{int(k) + one.first: int(one.counts[k]) for k in np.flatnonzero(one.counts)} for one in same]
    assert filled[0] == filled[1]


@given(values, values, values)
def test_the_order_of_adding_does_not_matter(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    one, other = (histogram(a) + histogram(b)) + histogram(c), histogram(c) + (histogram(b) + histogram(a))
    assert (one.exponent, one.first) == (other.exponent, other.first)
    np.testing.assert_array_equal(one.counts, other.counts)


@given(values)
def test_every_value_is_counted_once_in_its_own_bin(array: np.ndarray) -> None:
    made = histogram(array)
    assert made.total == array.size
    assert len(made.counts) <= CAPACITY
    bins = np.floor(array.astype(np.float64) / made.width).astype(int) - made.first
    np.testing.assert_array_equal(np.bincount(bins, minlength=len(made.counts)), made.counts)


def test_memory_does_not_grow_with_the_range() -> None:
    made = histogram(np.ones(10, np.float32))
    for power in range(-20, 30):
        made += histogram(np.full(10, 2.0**power, np.float32))
    assert len(made.counts) <= CAPACITY
    assert made.total == 510


def test_a_large_array_is_counted_in_pieces() -> None:
    array = np.random.default_rng(0).normal(size=200_000).astype(np.float32)
    made = histogram(array)
    assert made.total == array.size
    assert (made.centres * made.counts).sum() / made.total == pytest.approx(array.mean(), abs=1e-3)
