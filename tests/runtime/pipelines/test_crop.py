"""Crops hold the best boxes, inside the picture, and know where each came from."""

from __future__ import annotations

import numpy as np
import pytest

from edgeopt.errors import EdgeoptError
from edgeopt.runtime.pipelines.crop import Crops, cut, whole
from edgeopt.runtime.pipelines.description import Stage
from edgeopt.tasks.detection.boxes import Detections

FRAME = np.arange(20 * 30 * 3, dtype=np.uint8).reshape(20, 30, 3)


def found(*rows: tuple[float, float, float, float, float]) -> Detections:
    table = np.array(rows, np.float32).reshape(-1, 5)
    return Detections(table[:, :4], table[:, 4], np.zeros(len(table), np.int64))


def crops(answer: object, **keys: object) -> Crops:
    return cut(Stage("crop", crop="detect", **keys), whole(FRAME), [answer])


def test_boxes_are_cut_out_best_first_and_widened_to_whole_pixels():
    made = crops(found((2.2, 3.7, 8.1, 9.0, 0.5), (10, 4, 20, 8, 0.9)), margin=0.5)
    assert made.boxes.tolist() == [[5, 2, 25, 10], [0, 1, 12, 12]]
    assert made.rows.tolist() == [1, 0]
    np.testing.assert_array_equal(made.pictures[0], FRAME[2:10, 5:25])


def test_the_most_are_kept_and_the_others_counted():
    made = crops(found(*((i, 0, i + 2, 4, 0.1 * i) for i in range(6))), most=2, least_score=0.15)
    assert made.rows.tolist() == [5, 4]
    assert made.left_out == 2


def test_what_lies_outside_or_is_empty_or_not_finite_is_no_crop():
    made = crops(found((40, 0, 50, 4, 0.9), (5, 5, 5, 9, 0.8), (np.nan, 0, 4, 4, 0.7), (28, 18, 99, 99, 0.6)))
    assert made.boxes.tolist() == [[28, 18, 30, 20]]
    assert made.rows.tolist() == [3]
    assert made.left_out == 0


def test_nothing_found_is_no_crop():
    made = crops(found())
    assert (len(made), made.boxes.shape) == (0, (0, 4))


def test_a_crop_of_crops_lies_in_the_frame():
    cars = crops(found((10, 5, 30, 20, 0.9), (0, 0, 10, 10, 0.8)))
    plates = cut(Stage("plates", crop="read"), cars, [found((1, 2, 5, 6, 0.5)), found((3, 3, 6, 9, 0.7))])
    assert plates.boxes.tolist() == [[3, 3, 6, 9], [11, 7, 15, 11]]
    assert plates.parents.tolist() == [1, 0]
    assert len(cut(Stage("plates", crop="read"), crops(found()), [])) == 0


@pytest.mark.parametrize("answer", [None, [1, 2], np.zeros((2, 4)), type("Odd", (), {"boxes": np.zeros(4)})()])
def test_what_has_no_boxes_is_refused(answer):
    with pytest.raises(EdgeoptError, match="stage detect gives no boxes"):
        crops(answer)
