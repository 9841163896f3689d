"""DETR, YOLOS: logits (1, n, classes + 1), the last one no object, and centre and size (1, n, 4), 0..1.

Source: transformers, `DetrImageProcessor.post_process_object_detection`.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.heads import Head
from edgeopt.recipes.heads._candidates import (
    Array,
    Candidates,
    Size,
    best_class,
    centred,
    scores_first,
    softmax,
    usually_relative,
)
from edgeopt.recipes.heads._rows import FoundBoxes, HeadRows, fixed, scores_and_boxes
from edgeopt.recipes.heads._shapes import Shape, classes_beside_boxes, why_no_scores_and_corners
from edgeopt.recipes.outputs.learned import LearnedHead, columns_of, scale_of, unit_of
from edgeopt.recipes.recipe import Boxes, Postprocess, Scores


def _why_unfit(shapes: Sequence[Shape], numbers: Postprocess, size: Sequence[int]) -> str:
    del numbers, size
    wanted = "scores 1 x queries x classes, no object among them, and boxes 1 x queries x 4"
    return wanted if len(shapes) != 2 or why_no_scores_and_corners(shapes, background=True) else ""


def _decode(outputs: Sequence[Array], numbers: Postprocess, size: Size, threshold: float) -> Candidates:
    raw, boxes = scores_first(outputs)
    scores = raw if numbers.scores is Scores.PROBABILITIES else softmax(raw)
    kept, value, classes = best_class(scores[:, :-1], threshold)
    return centred(boxes[kept], usually_relative(numbers), size), value, classes


def _write(rows: HeadRows, outputs: Sequence[TensorSpec]) -> FoundBoxes:
    nodes = rows.nodes
    scored, placed = scores_and_boxes(outputs)
    values, width = rows.matrix(scored), fixed(scored, 2)
    if rows.numbers.scores is not Scores.PROBABILITIES:
        values = nodes("Softmax", values, axis=1)
    best, label, kept = rows.best_class(nodes.columns(values, 0, width - 1), raw=False)
    boxes = rows.usually_relative().centred(nodes("Gather", rows.matrix(placed), kept, axis=0))
    return FoundBoxes(boxes, nodes("Gather", best, kept), nodes("Gather", label, kept), 0)


def _learned(numbers: Postprocess, outputs: Sequence[TensorSpec], size: Size) -> tuple[LearnedHead, ...]:
    scores, boxes = columns_of(outputs)
    scale = scale_of(is_logit=numbers.scores is not Scores.PROBABILITIES, excludes=True)
    return (LearnedHead(scores, scale, -1, boxes=boxes, unit=unit_of(numbers, size, Boxes.RELATIVE)),)


def _count_classes(shapes: Sequence[Shape]) -> int | None:
    width = classes_beside_boxes(shapes)
    return None if width is None else width - 1


HEAD = Head(_why_unfit, _decode, _write, _learned, _count_classes, is_suppressed=True, are_queries=True)
