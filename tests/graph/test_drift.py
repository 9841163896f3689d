import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgeopt.graph.drift import LIMIT_DB, TOTAL, Drift, measure_drift, worst_drift


def drift(expected, actual) -> Drift:
    return measure_drift({"y": np.asarray(expected)}, {"y": np.asarray(actual)})


def test_a_tenth_of_the_signal_as_noise_is_twenty_decibels() -> None:
    found = drift([3.0, 4.0], [3.3, 4.4])
    assert found.max_abs == pytest.approx(0.4)
    assert found.sqnr_db == pytest.approx(20)
    assert found.cosine == pytest.approx(1)
    assert found.is_within(0.1001)
    assert not found.is_within(0.0999)


def test_equal_outputs_have_no_drift() -> None:
    assert drift([1.0, -2.0], [1.0, -2.0]) == Drift(0.0, 1.0, LIMIT_DB)


@pytest.mark.parametrize(
    ("expected", "actual", "cosine", "sqnr_db"),
    [
        ([0.0, 0.0], [0.0, 0.0], 1, LIMIT_DB),
        ([0.0, 0.0], [0.0, 2.0], 0, -LIMIT_DB),
        ([0.0, 2.0], [0.0, 0.0], 0, 0),
        ([], [], 1, LIMIT_DB),
        ([1.0], [-1.0], -1, -20 * math.log10(2)),
    ],
    ids=["both silent", "noise in silence", "a lost signal", "empty", "opposite"],
)
def test_silence_has_defined_figures(expected, actual, cosine, sqnr_db) -> None:
    found = drift(expected, actual)
    assert (found.cosine, found.sqnr_db) == (pytest.approx(cosine), pytest.approx(sqnr_db))


@pytest.mark.parametrize(
    "actual",
    [{}, {"y": np.zeros(3)}, {"y": np.array([1.0, np.nan])}, {"y": np.array([1.0, np.inf])}],
    ids=["missing", "another shape", "not a number", "infinite"],
)
def test_what_cannot_be_compared_is_total_drift(actual) -> None:
    assert measure_drift({"y": np.array([1.0, 2.0])}, actual) == TOTAL


def test_the_same_infinities_in_the_same_places_are_no_drift() -> None:
    expected = [1.0, np.inf, np.nan, -np.inf]
    assert drift(expected, expected) == Drift(0.0, 1.0, LIMIT_DB)
    assert drift(expected, [1.0, -np.inf, np.nan, -np.inf]) == TOTAL


def test_texts_are_equal_or_not() -> None:
    assert drift(["a", "b"], ["a", "b"]).max_abs == 0
    assert drift(["a", "b"], ["a", "c"]) == TOTAL


def test_whole_numbers_and_truth_values_are_compared_as_numbers() -> None:
    assert drift(np.array([1, 255], np.uint8), np.array([1, 0], np.uint8)).max_abs == 255
    assert drift([True, False], [True, True]).max_abs == 1


def test_the_worst_of_several_outputs_counts_figure_by_figure() -> None:
    found = measure_drift({"a": np.array([1.0]), "b": np.array([100.0])}, {"a": np.array([1.5]), "b": np.array([99.0])})
    assert found.max_abs == pytest.approx(1)
    assert found.sqnr_db == pytest.approx(20 * math.log10(2))
    assert worst_drift([]) == Drift(0.0, 1.0, LIMIT_DB)


anything = hnp.arrays(np.float64, 4, elements=st.floats(allow_nan=True, allow_infinity=True))


@given(anything, anything)
def test_every_figure_is_finite_whatever_the_numbers(expected, actual) -> None:
    found = drift(expected, actual)
    assert all(math.isfinite(figure) for figure in (found.max_abs, found.cosine, found.sqnr_db))
    assert found.max_abs >= 0
    assert -1 <= found.cosine <= 1
    assert abs(found.sqnr_db) <= LIMIT_DB


@given(hnp.arrays(np.float64, 5, elements=st.floats(-1e3, 1e3)), st.floats(1e-6, 1e6))
def test_decibels_do_not_depend_on_the_unit(values, unit) -> None:
    other = values + np.array([1.0, -1.0, 0.5, 0.0, 0.25])
    assert drift(values, other).sqnr_db == pytest.approx(drift(values * unit, other * unit).sqnr_db, abs=1e-3)


def test_a_column_of_small_numbers_that_is_lost_is_not_within() -> None:
    random = np.random.default_rng(0)
    table = random.random((1, 40, 6)) * [1e4, 1e4, 1e4, 1e4, 10, 1]
    table[..., 5] = 7.0
    rounded = table + 1e-6 * random.normal(0, 1e4, table.shape)
    assert drift(table, rounded).is_within(1e-3)
    lost = table.copy()
    lost[..., 4] = table[..., 4].mean()
    assert drift(table, lost).sqnr_db > 60
    assert not drift(table, lost).is_within(1e-3)
    assert drift(table, lost).worst_db < 40
    assert not drift(np.swapaxes(table, 1, 2), np.swapaxes(lost, 1, 2)).is_within(1e-3)
