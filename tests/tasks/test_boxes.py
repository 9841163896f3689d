"""Suppression and matching against independent implementations."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeopt.tasks.detection.boxes import Detections, matched_boxes, overlaps
from edgeopt.tasks.detection.suppression import suppress


def boxes(count: int, seed: int, span: float = 60.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    corner = rng.uniform(0, span, (count, 2))
    found = np.concatenate([corner, corner + rng.uniform(5, 40, (count, 2))], axis=1).astype(np.float32)
    scores = rng.permutation(np.linspace(0.1, 0.99, count)).astype(np.float32)  # no ties
    return found, scores, rng.integers(0, 3, count)


def textbook(found, scores, classes, iou) -> list[int]:
    """Greedy suppression as the papers write it, one class at a time."""
    kept = []
    for label in np.unique(classes):
        order = [i for i in np.argsort(-scores) if classes[i] == label]
        while order:
            best = order.pop(0)
            kept.append(int(best))
            order = [i for i in order if overlaps(found[[best]], found[[i]])[0, 0] <= iou]
    return sorted(kept, key=lambda i: -scores[i])


@settings(max_examples=60, deadline=None)
@given(count=st.integers(0, 60), seed=st.integers(0, 10_000), iou=st.sampled_from([0.3, 0.45, 0.65]))
def test_suppression_equals_the_textbook_class_by_class(count, seed, iou):
    found, scores, classes = boxes(count, seed)
    assert suppress(found, scores, classes, iou, 1000).tolist() == textbook(found, scores, classes, iou)


@pytest.mark.parametrize("seed", range(20))
def test_classes_stay_apart_left_of_the_picture_and_above_it(seed):
    found, scores, classes = boxes(60, seed)
    assert suppress(found - 500, scores, classes, 0.45, 1000).tolist() == textbook(found, scores, classes, 0.45)


@pytest.mark.parametrize("count", [399, 400, 900])
def test_many_boxes_are_suppressed_as_few_are(count):
    found, scores, classes = boxes(count, count, span=900)
    assert suppress(found, scores, classes, 0.45, 1000).tolist() == textbook(found, scores, classes, 0.45)


@pytest.mark.parametrize("seed", range(5))
def test_suppression_of_one_class_equals_opencv(seed):
    found, scores, _ = boxes(80, seed)
    sizes = np.concatenate([found[:, :2], found[:, 2:] - found[:, :2]], axis=1)
    expected = cv2.dnn.NMSBoxes(sizes.tolist(), scores.tolist(), 0.0, 0.5)
    kept = suppress(found, scores, np.zeros(80, np.int64), 0.5, 1000)
    assert kept.tolist() == np.asarray(expected).reshape(-1).tolist()


@pytest.mark.parametrize("count", [60, 600])
def test_of_equal_scores_the_first_row_comes_first(count):
    found, _, classes = boxes(count, 7, span=count)
    scores = np.repeat(np.array([0.9, 0.5, 0.2], np.float32), count // 3)
    hides = (overlaps(found, found) > 0.3) & (classes[:, None] == classes[None, :])
    expected: list[int] = []
    for row in range(count):
        if not hides[expected, row].any():
            expected.append(row)
    assert suppress(found, scores, classes, 0.3, 1000).tolist() == expected
    assert suppress(found, scores, classes, 0.3, 4).tolist() == expected[:4]


def test_boxes_of_two_classes_never_suppress_one_another():
    same = np.array([[0, 0, 10, 10]] * 2, np.float32)
    assert len(suppress(same, np.array([0.9, 0.8], np.float32), np.array([0, 1]), 0.5, 10)) == 2
    assert len(suppress(same, np.array([0.9, 0.8], np.float32), np.array([1, 1]), 0.5, 10)) == 1


def test_at_most_so_many_are_kept_the_best_first():
    found, scores, _ = boxes(50, 1, span=5000)
    kept = suppress(found, scores, np.zeros(50, np.int64), 0.5, 7)
    assert kept.tolist() == np.argsort(-scores)[:7].tolist()


def test_overlap_of_empty_boxes_is_zero_and_not_nan():
    empty = np.zeros((1, 4), np.float32)
    assert overlaps(empty, empty)[0, 0] == 0.0


def test_pycocotools_agrees_on_overlaps():
    mask = pytest.importorskip("pycocotools.mask")
    a, _, _ = boxes(10, 1)
    b, _, _ = boxes(12, 2)

    def sizes(found):
        return np.concatenate([found[:, :2], found[:, 2:] - found[:, :2]], axis=1).astype(np.float64)

    np.testing.assert_allclose(overlaps(a, b), mask.iou(sizes(a), sizes(b), [0] * 12), rtol=1e-4, atol=1e-5)


def test_equal_detections_match_wholly_and_disjoint_ones_not_at_all():
    found = Detections(*boxes(20, 3))
    matched, total = matched_boxes(found, found)
    assert matched == pytest.approx(total)
    far = Detections(found.boxes + 1000, found.scores, found.classes)
    assert matched_boxes(found, far)[0] == 0.0


def test_a_box_matches_once():
    one = Detections(np.array([[0, 0, 10, 10]], np.float32), np.array([0.9], np.float32), np.array([1]))
    two = Detections(np.repeat(one.boxes, 2, 0), np.array([0.9, 0.9], np.float32), np.array([1, 1]))
    matched, total = matched_boxes(two, one)
    assert matched == pytest.approx(1.8)
    assert total == pytest.approx(2.7)
