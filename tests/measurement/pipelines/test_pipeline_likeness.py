"""Answers of any shape are compared: 1 where they are the same, less the more they differ."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeopt.measurement.pipelines.likeness import alike, alike_on_crops, scales_of
from edgeopt.runtime.pipelines.crop import Crops
from edgeopt.tasks.classification import Classes


@dataclasses.dataclass
class Reading:
    text: str
    value: float


@pytest.mark.parametrize(
    ("found", "reference", "expected"),
    [
        ("apple", "apple", 1),
        ("apple", "pear", 0),
        (3, 4, 0),
        (1.0, 1.0004, 1),
        (1.0, 1.01, 0),
        (None, None, 1),
        (True, False, 0),
        (["a", "b"], ["b", "a"], 1),
        (["a", "b", "c"], ["a"], 0.5),
        (["a", "a"], ["a"], 2 / 3),
        ([], [], 1),
        ([], ["a"], 0),
        ({"x": 1, "y": 2}, {"x": 1, "y": 3}, 0),
        ({"x": 1}, {"z": 1}, 0),
        ({"x": 1}, {"x": 1, "z": 1}, 0),
        ({"x": ["a", "b"], "y": 2}, {"x": ["a"], "y": 2}, 2 / 3),
        (("a", 1, 0.5), ("a", 2, 0.5), 0),
        (("a", "b"), ("b", "a"), 1),
        (np.array([1.0, 2.0]), np.array([1.0, 3.0]), 0.5),
        (np.zeros(2), np.zeros(3), 0),
        (np.zeros(0), np.zeros(0), 1),
        (Reading("a", 1.0), Reading("a", 2.0), 0),
        (["apple", {"n": 2}], [{"n": 2}, "apple"], 1),
        ("ab", ["a", "b"], 0),
    ],
)
def test_answers_are_alike_as_far_as_they_agree(found, reference, expected):
    assert alike(found, reference) == pytest.approx(expected)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(PLAIN, PLAIN)
def test_an_answer_is_like_itself_and_likeness_goes_both_ways(one, other):
    assert alike(one, one) == pytest.approx(1)
    assert 0 <= alike(one, other) <= 1 + 1e-9


class Overlap:
    """The agreement of a classifier: 1 for the same class."""

    def agreement(self, found, reference):
        return float(found[0].indices[0] == reference[0].indices[0])


def crops(*boxes: tuple[int, int, int, int]) -> Crops:
    table = np.array(boxes, np.int64).reshape(-1, 4)
    return Crops((), table, np.arange(len(table)), np.zeros(len(table), np.int64), 0)


def classes(*indices: int) -> list[Classes]:
    return [Classes(np.array([one]), np.ones(1, np.float32)) for one in indices]


def test_crops_of_one_object_are_compared_whatever_their_order():
    before, now = crops((0, 0, 8, 8), (20, 20, 30, 30)), crops((21, 20, 31, 30), (0, 0, 8, 9))
    assert alike_on_crops(Overlap(), classes(5, 3), classes(3, 5), now, before) == 1
    assert alike_on_crops(Overlap(), classes(5, 4), classes(3, 5), now, before) == 0.5
    assert alike_on_crops(Overlap(), classes(3), classes(3, 5), crops((0, 0, 8, 8)), before) == pytest.approx(2 / 3)
    assert alike_on_crops(Overlap(), classes(3), classes(3), crops((50, 50, 60, 60)), crops((0, 0, 8, 8))) == 0
    assert alike_on_crops(Overlap(), [], [], crops(), crops()) == 1
    assert alike_on_crops(Overlap(), [], classes(1), crops(), crops((0, 0, 8, 8))) == 0


def test_equal_boxes_do_not_outvote_scores_that_became_a_constant():
    table = np.random.default_rng(0).random((20, 6)) * [640, 640, 640, 640, 0.5, 1]
    lost = table.copy()
    lost[:, 4] = 0.25
    assert alike(lost, table) < 0.2
    assert alike(table * 1.01, table) > 0.99, "rounding of an integer model is no other answer"
    table[:, 5] = 3
    assert alike(table.copy(), table) == 1


def readings(seed: int) -> list[dict[str, object]]:
    """Answers of an app that reads plates: most keys never change, and the score varies."""
    rng = np.random.default_rng(seed)
    scores = rng.uniform(0.6, 1.0, 40).tolist()
    return [
        {"plate": f"AB {i}", "country": "DE", "lane": 1, "is_open": True, "boxes": [{"score": one}], "score": one}
        for i, one in enumerate(scores)
    ]


def test_keys_that_never_change_do_not_outvote_one_that_is_lost() -> None:
    reference = readings(0)
    scales = scales_of(reference)
    misread = [{**one, "plate": "AB 0"} for one in reference]
    likeness = [alike(a, b, scales) for a, b in zip(misread, reference, strict=True)]
    assert np.mean(likeness) == 1 / 40
    constant = [{**one, "score": 0.8} for one in reference]
    assert np.mean([alike(a, b, scales) for a, b in zip(constant, reference, strict=True)]) < 0.5


def test_numbers_of_an_integer_model_are_compared_by_how_they_vary() -> None:
    reference, rng = readings(0), np.random.default_rng(1)
    rounded = [
        {**one, "score": one["score"] + error, "boxes": [{"score": one["score"] - error}]}
        for one, error in zip(reference, rng.normal(0, 0.005, 40), strict=True)
    ]
    scales = scales_of(reference)
    assert np.mean([alike(a, b, scales) for a, b in zip(rounded, reference, strict=True)]) > 0.99
    assert np.mean([alike(a, b) for a, b in zip(rounded, reference, strict=True)]) < 0.3, "alone nobody knows"
    assert [*scales] == [("boxes", "*", "score"), ("score",)]
    assert not scales_of(reference[:3]), "of three numbers no variation is known"
