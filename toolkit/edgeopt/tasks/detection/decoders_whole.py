"""Answers of graphs that end in non-maximum suppression, in outputs of their own, to boxes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from edgeopt.recipes.columns import Column
from edgeopt.recipes.recipe import Boxes, Postprocess
from edgeopt.recipes.suppressed_outputs import boxes_and_classes, boxes_first
from edgeopt.tasks.detection.head_parts import MOST_CLASSES, Array, Candidates, corners, to_pixels


def columns(outputs: Sequence[Array], numbers: Postprocess, size: tuple[int, int], threshold: float) -> Candidates:
    """Decode rows (n, k) behind any batch of 1, whose columns the recipe names; nothing is left to suppress.

    Rows of another picture than the first, or without a class, are none: so some exporters fill up.
    """
    places = {column: i for i, column in enumerate(numbers.columns)}
    rows = outputs[0].reshape(-1, len(numbers.columns)).astype(np.float32)
    kept = rows[:, places[Column.SCORE]] > threshold
    if Column.BATCH in places:
        kept &= np.abs(rows[:, places[Column.BATCH]]) < 0.5
    if Column.CLASS in places:
        kept &= (rows[:, places[Column.CLASS]] > -0.5) & (rows[:, places[Column.CLASS]] < MOST_CLASSES)
    found = rows[kept]
    if Column.LEFT in places:
        boxes = found[:, [places[one] for one in (Column.LEFT, Column.TOP, Column.RIGHT, Column.BOTTOM)]]
    else:
        centred = found[:, [places[one] for one in (Column.X, Column.Y, Column.WIDTH, Column.HEIGHT)]]
        boxes = corners(centred[:, :2], centred[:, 2:])
    classes = np.zeros(len(found), np.int64)
    if Column.CLASS in places:
        classes = np.rint(found[:, places[Column.CLASS]]).astype(np.int64) - int(numbers.background)
    known = classes >= 0
    boxes = to_pixels(np.ascontiguousarray(boxes), numbers, size)
    return boxes[known], found[known, places[Column.SCORE]], classes[known]


def detections(outputs: Sequence[Array], numbers: Postprocess, size: tuple[int, int], threshold: float) -> Candidates:
    """Decode boxes (n, 4), left, top, right, bottom in pixels, classes (n,) and scores (n,), each with a batch or not.

    Whole numbers are the classes; where none are, the classes come before the scores. Where class 0 is `background`
    the first class is 1. Rows beyond a count of as many dimensions as the scores are none; beyond others none has a
    score.

    Source: torchvision, `SSD.postprocess_detections` and `GeneralizedRCNNTransform.postprocess`.
    """
    return _decoded(outputs, numbers, size, threshold, order=(0, 1, 2, 3))


def detections_yx(
    outputs: Sequence[Array], numbers: Postprocess, size: tuple[int, int], threshold: float
) -> Candidates:
    """Decode as `detections` boxes of top, left, bottom, right, 0..1 unless the recipe says otherwise.

    Source: TensorFlow Object Detection API, `exporter.add_output_tensor_nodes`.
    """
    if numbers.boxes is Boxes.USUAL:
        numbers = replace(numbers, boxes=Boxes.RELATIVE)
    return _decoded(outputs, numbers, size, threshold, order=(1, 0, 3, 2))


def scored_boxes(outputs: Sequence[Array], numbers: Postprocess, size: tuple[int, int], threshold: float) -> Candidates:
    """Decode boxes (n, 5), left, top, right, bottom in pixels and a score, and classes (n,), with a batch or not.

    Rows of a class below 0 are none: so TensorRT fills up. Masks beside them are not read.

    Source: MMDeploy, `multiclass_nms` in mmdeploy/mmcv/ops/nms.py; its outputs are called dets and labels.
    """
    boxes, labels = boxes_and_classes(outputs)
    rows, classes = boxes.reshape(-1, 5), np.rint(labels.reshape(-1)).astype(np.int64) - int(numbers.background)
    kept = (rows[:, 4] > threshold) & (classes >= 0)
    found = rows[kept].astype(np.float32)
    return to_pixels(np.ascontiguousarray(found[:, :4]), numbers, size), found[:, 4], classes[kept]


def _decoded(
    outputs: Sequence[Array], numbers: Postprocess, size: tuple[int, int], threshold: float, order: Sequence[int]
) -> Candidates:
    boxes, *others = boxes_first(outputs)
    rows, flat = boxes.reshape(-1, 4), [one.reshape(-1) for one in others]
    if len(flat) > 2 and (counts := [i for i, one in enumerate(flat) if one.size == 1]):
        count = max(int(flat.pop(counts[0])[0]), 0)
        rows, flat = rows[:count], [one[:count] for one in flat]
    labels, scores = sorted(flat[:2], key=lambda one: one.dtype.kind == "f")
    kept = np.flatnonzero(scores > threshold)
    classes = np.rint(labels[kept]).astype(np.int64) - int(numbers.background)
    found = to_pixels(rows[kept][:, order].astype(np.float32), numbers, size)
    known = classes >= 0
    return found[known], scores[kept][known].astype(np.float32), classes[known]
