"""Agreement by kind of output: what an error weighs, and which decisions it changes."""

from __future__ import annotations

import numpy as np
import pytest

from edgeopt.recipes.metrics import find_metric
from edgeopt.tasks._likeness import OutputKind, class_axis, compare_output, cosines, kind_of

RNG = np.random.default_rng(0)


def agreement(expected, found, told: str = "") -> float:
    expected = [np.asarray(one) for one in expected]
    shares = compare_output(
        expected, [None if one is None else np.asarray(one) for one in found], kind_of(expected, told)
    )
    return find_metric("agreement").score(np.stack(shares), len(expected))


def noisy(value: np.ndarray, level: float) -> np.ndarray:
    return value + RNG.normal(0, level, value.shape)


def test_noise_in_an_almost_empty_map_weighs_what_it_can_do_beside_full_ones():
    full, empty = RNG.normal(0, 1, (1, 8, 8)), RNG.normal(0, 1e-6, (1, 8, 8))
    found = [full, noisy(empty, 1e-6)]
    assert agreement([full, empty], found) > 0.999999
    assert find_metric("cosine").score(cosines([full, empty], found)[None], 2) < 0.9
    assert agreement([full, full], [full, noisy(full, 0.9)]) < 0.95


@pytest.mark.parametrize(("sqnr_db", "expected"), [(20, 0.99), (23, 0.995), (10, 0.9)])
def test_agreement_of_maps_is_their_signal_to_noise(sqnr_db, expected):
    maps = [RNG.normal(0, 1, 20000) for _ in range(4)]
    found = [noisy(one, 10 ** (-sqnr_db / 20)) for one in maps]
    assert agreement(maps, found) == pytest.approx(expected, abs=0.01)


def test_probabilities_that_decide_nothing_agree_whatever_their_noise():
    low = [np.full((1, 1), 10.0**-k, np.float32) for k in (4, 5, 6, 7)]
    found = [one * 1.4 for one in low]
    assert agreement(low, found, "probability") > 0.9999
    assert agreement(low, found) < 0.99, "without a word of the graph, small numbers are numbers"


def test_a_decision_at_one_half_counts_and_a_tie_does_not():
    speech = [np.array([[p]]) for p in (0.01, 0.02, 0.9, 0.95, 0.03, 0.52)]
    tie = [*speech[:5], np.array([[0.48]])]
    assert agreement(speech, tie, "probability") > 0.99
    flipped = [*speech[:3], np.array([[0.4]]), *speech[4:]]
    assert agreement(speech, flipped, "probability") == pytest.approx(4 / 5)  # five decisions for speech, one lost


def test_an_object_that_is_missed_in_a_mask_counts_by_its_own_size():
    mask = np.full((1, 1, 100, 100), 0.02)
    mask[..., 40:50, 40:50] = 0.97
    assert agreement([mask], [np.full_like(mask, 0.02)], "probability") == 0.0
    softer = np.where(mask > 0.5, 0.9, 0.05)
    assert agreement([mask], [softer], "probability") > 0.99


def test_rows_that_sum_to_one_are_decisions_and_their_background_is_not_counted():
    rows = np.full((1, 50, 6), 0.01)
    rows[:, :, 0] = 0.95
    letters = [3, 17, 30, 44]
    rows[:, letters, 0], rows[:, letters, [1, 2, 3, 4]] = 0.01, 0.95
    assert (kind_of([rows]), class_axis(rows)) == (OutputKind.DISTRIBUTION, 2)
    wrong = rows.copy()
    wrong[:, 17, [2, 5]] = wrong[:, 17, [5, 2]]
    assert np.mean(wrong.argmax(2) == rows.argmax(2)) == 0.98
    assert agreement([rows], [wrong]) == pytest.approx(3 / 4)
    assert agreement([rows], [rows]) == 1.0


def test_classes_of_a_map_are_found_along_the_channels():
    logits = RNG.normal(0, 2, (1, 5, 16, 16))
    classes = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert class_axis(classes) == 1
    assert agreement([classes], [classes]) == 1.0


def test_a_recipe_may_say_that_numbers_from_zero_to_one_are_no_probabilities():
    values = [RNG.random((1, 9))]
    assert kind_of(values, "map") is OutputKind.MAP
    assert kind_of(values) is OutputKind.MAP
    assert kind_of(values, "probability") is OutputKind.PROBABILITY
    assert kind_of([values[0] * 3], "probability") is OutputKind.MAP, "its own values contradict it"


@pytest.mark.parametrize("told", ["", "probability"])
def test_what_cannot_be_compared_agrees_in_nothing(told):
    good = np.array([[0.2, 0.9, 0.1]])
    for bad in (None, good[:, :2], np.full_like(good, np.nan), np.full_like(good, np.inf)):
        assert agreement([good], [bad], told) == 0.0
    assert agreement([good, good], [good, None], told) <= 0.5


def spoken(rows: int, classes: int) -> np.ndarray:
    """Return logits of a recogniser, (1, rows, classes): a blank in most rows, letters in others."""
    letters = np.where(RNG.random(rows) < 0.7, 0, RNG.integers(1, classes, rows))
    values = RNG.normal(0, 1, (1, rows, classes))
    values[0, np.arange(rows), letters] += 9
    return values


def test_rows_of_which_one_stands_out_are_logits_and_features_are_not():
    assert kind_of([spoken(20, 40) for _ in range(3)]) is OutputKind.LOGITS
    assert kind_of([RNG.normal(0, 1, (1, 20, 40)) for _ in range(3)]) is OutputKind.MAP
    assert kind_of([np.maximum(RNG.normal(0, 1, (1, 20, 40)), 0) - 0.1 for _ in range(3)]) is OutputKind.MAP
    assert kind_of([spoken(20, 40) for _ in range(3)], "map") is OutputKind.MAP


def test_logits_agree_by_the_letters_that_are_read_and_not_by_their_error_alone():
    expected = [spoken(30, 50) for _ in range(8)]
    assert agreement(expected, [noisy(one, 0.2) for one in expected]) > 0.99
    wrong = [one.copy() for one in expected]
    for one in wrong[:4]:  # one letter in every second text, an error far below that of the noise above
        row = int(np.flatnonzero(one[0].argmax(axis=1))[0])
        letter = int(one[0, row].argmax())
        one[0, row, letter], one[0, row, 1 + letter % 40] = one[0, row, 1 + letter % 40], one[0, row, letter]
    assert agreement(wrong, expected) < 0.98


def heads(count: int = 4, rows: int = 50) -> list[np.ndarray]:
    """Return tables of four boxes in pixels and two scores, (1, rows, 6)."""
    size = np.array([300, 300, 40, 40, 0.2, 0.01])
    return [RNG.random((1, rows, 6)) * size for _ in range(count)]


@pytest.mark.parametrize("column", range(6))
def test_a_column_that_became_a_constant_agrees_in_nothing(column):
    expected = heads()
    found = [one.copy() for one in expected]
    for one in found:
        one[..., column] = np.mean([each[..., column].mean() for each in expected])
    assert agreement(expected, found) == 0.0
    turned = [np.swapaxes(one, 1, 2) for one in expected]
    assert agreement(turned, [np.swapaxes(one, 1, 2) for one in found]) == 0.0


def test_noise_of_each_columns_own_size_agrees():
    expected = heads()
    assert agreement(expected, [one + 0.05 * one.std(axis=1) * RNG.normal(0, 1, one.shape) for one in expected]) > 0.99


def test_columns_of_one_row_are_told_apart_over_all_samples():
    expected = heads(16, rows=1)
    found = [one * [1, 1, 1, 1, 1, 0] for one in expected]
    assert agreement([one[0] for one in expected], [one[0] for one in found]) < 0.5
    assert agreement([one[0] for one in expected], [one[0] * 1.01 for one in expected]) > 0.99


def test_a_channel_that_is_constant_within_each_sample_tells_the_samples_apart():
    expected = [RNG.normal(0, 1, (1, 8, 9, 9)) for _ in range(16)]
    for one in expected:
        one[:, 3] = RNG.normal(0, 0.01)
    found = [one.copy() for one in expected]
    for one in found:
        one[:, 3] = 0
    assert agreement(expected, found) < 0.1
    assert agreement(expected, [noisy(one, 0.0005) for one in expected]) > 0.99


def test_what_is_constant_or_rounding_in_the_reference_decides_nothing():
    expected = heads()
    for one in expected:
        one[..., 3:] = 0.5, 0.0, 0.0
        one[..., 5] = RNG.normal(0, 1e-6, one.shape[:2])
    found = [one + RNG.normal(0, 0.001, one.shape) for one in expected]
    assert agreement(expected, found) > 0.99
    for one in found:
        one[..., 3] = 0.9
    assert agreement(expected, found) < 0.95, "a constant has a value"


def test_of_many_channels_a_weak_one_is_no_verdict_and_a_usual_one_is():
    expected = [np.maximum(RNG.normal(0, 1, (1, 64, 7, 7)), 0) for _ in range(4)]
    for one in expected:
        one[:, 5] *= 1e-3
    found = [noisy(one, 0.02) for one in expected]
    assert agreement(expected, found) > 0.99
    for one in found:
        one[:, 6] = 0.4
    assert agreement(expected, found) < 0.5


def test_a_column_of_other_units_makes_no_logits():
    rows = [RNG.normal(0, 1, (1, 40, 12)) for _ in range(3)]
    for one in rows:
        one[..., 0] += 300
    assert kind_of(rows) is OutputKind.MAP
    for one in rows:
        one[..., :2] = RNG.random((1, 40, 2)) * 640
    assert kind_of(rows) is OutputKind.MAP


def test_a_rare_class_that_is_never_decided_any_more_counts_for_itself():
    expected = [np.full((1, 2000, 20), 0.02) for _ in range(4)]
    for one in expected:
        for column in range(20):
            one[0, RNG.integers(0, 2000, 4 if column == 9 else 60), column] = 0.9
    found = [one.copy() for one in expected]
    for one in found:
        one[..., 9] = 0.02
    assert agreement(expected, found, "probability") < 0.95
    assert agreement(expected, [np.clip(noisy(one, 0.02), 0, 1) for one in expected], "probability") > 0.99
