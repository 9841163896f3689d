"""RT-DETR, D-FINE, deformable DETR: logits (1, n, classes) and centre and size (1, n, 4), 0..1.

Ultralytics wrote one output, (1, n, 4 + classes), of probabilities. A query may give a box for several classes.

Source: transformers, `RTDetrImageProcessor.post_process_object_detection`; Ultralytics, `RTDETRDecoder.forward`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeopt.graph.tensors import TensorSpec, ints
from edgeopt.recipes.heads import Exported, Head
from edgeopt.recipes.heads._candidates import (
    Array,
    Candidates,
    Size,
    centred,
    logit,
    probabilities,
    scores_first,
    usually_relative,
)
from edgeopt.recipes.heads._rows import FoundBoxes, HeadRows, fixed, scores_and_boxes
from edgeopt.recipes.heads._shapes import Shape, are_rows, classes_beside_boxes, why_no_scores_and_corners
from edgeopt.recipes.outputs.learned import BOX, Columns, LearnedHead, columns_of, scale_of, unit_of
from edgeopt.recipes.recipe import Boxes, Postprocess, Scores

_QUERIES = 300
"""Number of queries of Ultralytics' RT-DETR."""


def _why_unfit(shapes: Sequence[Shape], numbers: Postprocess, size: Sequence[int]) -> str:
    del numbers, size
    wanted = "scores 1 x queries x classes and boxes 1 x queries x 4, or 1 x 300 x (4 + classes)"
    if len(shapes) == 1:
        return "" if are_rows(shapes, 5) and shapes[0][1] == _QUERIES else wanted
    return wanted if len(shapes) != 2 or why_no_scores_and_corners(shapes, background=False) else ""


def _scores(numbers: Postprocess, outputs: int) -> Scores:
    """Return what the scores of so many outputs are."""
    usual = Scores.PROBABILITIES if outputs == 1 else Scores.LOGITS
    return usual if numbers.scores is Scores.USUAL else numbers.scores


def _decode(outputs: Sequence[Array], numbers: Postprocess, size: Size, threshold: float) -> Candidates:
    if len(outputs) == 1:
        boxes, raw = outputs[0][0, :, :4], outputs[0][0, :, 4:]
    else:
        raw, boxes = scores_first(outputs)
    is_logit = _scores(numbers, len(outputs)) is Scores.LOGITS
    above = -np.inf if threshold < 0 else logit(threshold) if is_logit else threshold
    rows, classes = np.nonzero(raw > above)
    value = raw[rows, classes]
    value = probabilities(value) if is_logit else value
    return centred(boxes[rows], usually_relative(numbers), size), value, classes.astype(np.int64)


def _write(rows: HeadRows, outputs: Sequence[TensorSpec]) -> FoundBoxes:
    nodes = rows.nodes
    if len(outputs) == 1:
        matrix, width = rows.matrix(outputs[0]), fixed(outputs[0], 2)
        boxes, raw = nodes.columns(matrix, 0, 4), nodes.columns(matrix, 4, width)
    else:
        scored, placed = scores_and_boxes(outputs)
        raw, boxes = rows.matrix(scored), rows.matrix(placed)
    rows = rows.with_scores(_scores(rows.numbers, len(outputs)))
    pairs = nodes("Transpose", nodes("NonZero", rows.above(raw, raw=True)), perm=[1, 0])
    query, label = (nodes("Squeeze", nodes.columns(pairs, i, i + 1), ints(1)) for i in (0, 1))
    corners = rows.usually_relative().centred(nodes("Gather", boxes, query, axis=0))
    return FoundBoxes(corners, rows.scores_of(nodes("GatherND", raw, pairs)), label, 0)


def _learned(numbers: Postprocess, outputs: Sequence[TensorSpec], size: Size) -> tuple[LearnedHead, ...]:
    name, unit = outputs[0].name, unit_of(numbers, size, Boxes.RELATIVE)
    is_alone = len(outputs) == 1
    scores, boxes = (Columns(name, 2, BOX), Columns(name, 2, 0, BOX)) if is_alone else columns_of(outputs)
    scale = scale_of(is_logit=_scores(numbers, len(outputs)) is Scores.LOGITS)
    return (LearnedHead(scores, scale, boxes=boxes, unit=unit),)


HEAD = Head(
    _why_unfit,
    _decode,
    _write,
    _learned,
    classes_beside_boxes,
    is_suppressed=True,
    are_queries=True,
    exported=Exported.QUERIES,
)
