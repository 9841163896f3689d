"""Each decoder finds the box that was written into its raw output, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from detector_decoders import DECODERS, class_count

from edgeopt.recipes.recipe import Postprocess

SIZE = (64, 96)
STRIDES = (8, 16, 32)
CELLS = sum((SIZE[0] // s) * (SIZE[1] // s) for s in STRIDES)
BOX, LABEL, SCORE = np.array([20.0, 10.0, 44.0, 26.0]), 2, 0.72  # centre (32, 18), size (24, 16)
ANCHORS = ((10, 13, 16, 30, 33, 23), (30, 61, 62, 45, 59, 119), (116, 90, 156, 198, 373, 326))

ON_WHOLE_HEADS = {
    "dbnet",
    "dbnet_upright",
    "detections",
    "detections_yx",
    "scored_boxes",
    "columns",
    "yolov8_dfl",
    "nanodet",
    "detr",
    "rtdetr",
    "ssd_offsets",
    "ssd_offsets_yx",
}
"""Tested on graphs in test_detector_heads.py, test_other_heads.py and test_suppressed_rows.py."""


def logit(p: float) -> float:
    return float(np.log(p / (1 - p)))


def yolox():
    raw = np.zeros((1, CELLS, 10), np.float32)
    row = (18 // 8) * (SIZE[1] // 8) + 32 // 8
    raw[0, row, :4] = 32 / 8 - 32 // 8, 18 / 8 - 18 // 8, np.log(24 / 8), np.log(16 / 8)
    raw[0, row, 4], raw[0, row, 5 + LABEL] = 0.8, 0.9
    return [raw]


def yolov8():
    raw = np.zeros((1, 9, CELLS), np.float32)
    raw[0, :4, 7], raw[0, 4 + LABEL, 7] = (32, 18, 24, 16), SCORE
    return [raw]


def yolov5():
    raw = np.zeros((1, CELLS * 3, 10), np.float32)
    raw[0, 11, :4], raw[0, 11, 4], raw[0, 11, 5 + LABEL] = (32, 18, 24, 16), 0.8, 0.9
    return [raw]


def yolov5_heads(flat: bool = False):
    heads = [np.full((1, 3, SIZE[0] // s, SIZE[1] // s, 10), -12.0, np.float32) for s in STRIDES]
    row, column = 18 // 8, 32 // 8
    cell = heads[0][0, 2, row, column]
    cell[0], cell[1] = logit((32 / 8 - column + 0.5) / 2), logit((18 / 8 - row + 0.5) / 2)
    cell[2], cell[3] = logit(np.sqrt(24 / 33) / 2), logit(np.sqrt(16 / 23) / 2)
    cell[4], cell[5 + LABEL] = logit(0.8), logit(0.9)
    if flat:
        heads = [h.transpose(0, 1, 4, 2, 3).reshape(1, 30, *h.shape[2:4]) for h in heads]
    return heads[::-1]  # exporters order outputs as they like


def end_to_end():
    raw = np.zeros((1, 30, 6), np.float32)
    raw[0, 3] = (*BOX, SCORE, LABEL)
    return [raw]


def rtdetr_rows():
    raw = np.zeros((1, 30, 6), np.float32)
    raw[0, 3] = (32 / 96, 18 / 64, 24 / 96, 16 / 64, SCORE, LABEL)
    return [raw]


def ssd_corners():
    scores, corners = np.zeros((1, 40, 6), np.float32), np.zeros((1, 40, 4), np.float32)
    scores[0, :, 0] = 1.0
    scores[0, 9], corners[0, 9] = (0.1, 0, 0, SCORE, 0, 0), BOX / [96, 64, 96, 64]
    return [corners, scores]


CASES = {
    "yolox": (yolox(), Postprocess("yolox", STRIDES)),
    "yolov8": (yolov8(), Postprocess("yolov8", STRIDES)),
    "yolov5": (yolov5(), Postprocess("yolov5", STRIDES)),
    "yolov5_heads": (yolov5_heads(), Postprocess("yolov5_heads", STRIDES, ANCHORS)),
    "yolov5_heads flat": (yolov5_heads(flat=True), Postprocess("yolov5_heads", STRIDES, ANCHORS)),
    "end_to_end": (end_to_end(), Postprocess("end_to_end")),
    "rtdetr_rows": (rtdetr_rows(), Postprocess("rtdetr_rows")),
    "ssd_corners": (ssd_corners(), Postprocess("ssd_corners", background=True)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_decoder_finds_the_box_that_was_written(case):
    outputs, numbers = CASES[case]
    found, scores, classes = DECODERS[numbers.decoder](outputs, numbers, SIZE, 0.3)
    np.testing.assert_allclose(found, [BOX], rtol=1e-3, atol=1e-2)
    np.testing.assert_allclose(scores, [SCORE], rtol=1e-3)
    assert classes.tolist() == [LABEL]


@pytest.mark.parametrize("case", CASES)
def test_a_high_threshold_leaves_nothing(case):
    outputs, numbers = CASES[case]
    found, scores, classes = DECODERS[numbers.decoder](outputs, numbers, SIZE, 0.9)
    assert found.shape == (0, 4)
    assert len(scores) == len(classes) == 0


def test_every_decoder_is_tested():
    assert {numbers.decoder for _, numbers in CASES.values()} | ON_WHOLE_HEADS == DECODERS.keys()


def test_class_counts_are_read_from_shapes():
    assert class_count("yolox", [(1, 3549, 85)]) == 80
    assert class_count("yolov8", [(1, 84, 8400)]) == 80
    assert class_count("end_to_end", [(1, 300, 6)]) is None
