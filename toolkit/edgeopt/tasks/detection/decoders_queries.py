"""Queries of transformers to boxes: one box a query, nothing left to suppress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from edgeopt.recipes.recipe import Boxes, Postprocess, Scores
from edgeopt.tasks.detection.head_parts import (
    Array,
    Candidates,
    best_class,
    corners,
    least,
    logit,
    probabilities,
    scores_first,
    scores_of,
    softmax,
    to_pixels,
)


def detr(outputs: Sequence[Array], numbers: Postprocess, size: tuple[int, int], threshold: float) -> Candidates:
    """Decode logits (1, n, classes + 1), the last one no object, and centre and size (1, n, 4), 0..1. DETR, YOLOS.

    Source: transformers, `DetrImageProcessor.post_process_object_detection`.
    """
    raw, boxes = scores_first(outputs)
    scores = raw if numbers.scores is Scores.PROBABILITIES else softmax(raw)
    kept, value, classes = best_class(scores[:, :-1], threshold)
    return _in_pixels(boxes[kept], numbers, size), value, classes


def rtdetr(outputs: Sequence[Array], numbers: Postprocess, size: tuple[int, int], threshold: float) -> Candidates:
    """Decode logits (1, n, classes) and centre and size (1, n, 4), 0..1. RT-DETR, D-FINE, deformable DETR.

    Ultralytics wrote one output, (1, n, 4 + classes), of probabilities. A query may give a box for several classes.

    Source: transformers, `RTDetrImageProcessor.post_process_object_detection`; Ultralytics, `RTDETRDecoder.forward`.
    """
    if len(outputs) == 1:
        boxes, raw = outputs[0][0, :, :4], outputs[0][0, :, 4:]
    else:
        raw, boxes = scores_first(outputs)
    usual = Scores.PROBABILITIES if len(outputs) == 1 else Scores.LOGITS
    is_logit = (usual if numbers.scores is Scores.USUAL else numbers.scores) is Scores.LOGITS
    above = -np.inf if threshold < 0 else logit(threshold) if is_logit else threshold
    rows, classes = np.nonzero(raw > above)
    value = raw[rows, classes]
    return _in_pixels(boxes[rows], numbers, size), probabilities(value) if is_logit else value, classes.astype(np.int64)


def rtdetr_rows(outputs: Sequence[Array], numbers: Postprocess, size: tuple[int, int], threshold: float) -> Candidates:
    """Decode (1, n, 6): centre and size, 0..1, score, class; the graph has chosen the best. RT-DETR of Ultralytics.

    Source: Ultralytics 8.4, `RTDETRDecoder.postprocess` and `RTDETRPredictor.postprocess`.
    """
    rows = outputs[0][0]
    found = rows[rows[:, 4] > least(numbers, threshold)]
    return (
        _in_pixels(found[:, :4], numbers, size),
        scores_of(found[:, 4], numbers),
        found[:, 5].round().astype(np.int64),
    )


def _in_pixels(boxes: Array, numbers: Postprocess, size: tuple[int, int]) -> Array:
    if numbers.boxes is Boxes.USUAL:
        numbers = replace(numbers, boxes=Boxes.RELATIVE)
    boxes = to_pixels(boxes, numbers, size)
    return corners(boxes[:, :2], boxes[:, 2:4])
