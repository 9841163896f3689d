"""UltraFace and SSD exports: scores (1, n, classes) and corners (1, n, 4) relative to the input, 0..1.

With four classes both outputs look alike; the scores come first then.

Source: Ultra-Light-Fast-Generic-Face-Detector-1MB, `predict` in run_video_face_detect_onnx.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.heads import Head
from edgeopt.recipes.heads._candidates import (
    Array,
    Candidates,
    Size,
    best_class,
    probabilities,
    scores_first,
    softmax,
    to_pixels,
    usually_relative,
)
from edgeopt.recipes.heads._rows import FoundBoxes, HeadRows, fixed, scores_and_boxes
from edgeopt.recipes.heads._shapes import Shape, why_no_scores_and_corners
from edgeopt.recipes.heads._values import Usual, Values
from edgeopt.recipes.outputs.learned import LearnedHead, columns_of, scale_of, unit_of
from edgeopt.recipes.recipe import Boxes, Postprocess, Scores


def _why_unfit(shapes: Sequence[Shape], numbers: Postprocess, size: Sequence[int]) -> str:
    del size
    return why_no_scores_and_corners(shapes, background=numbers.background)


def _decode(outputs: Sequence[Array], numbers: Postprocess, size: Size, threshold: float) -> Candidates:
    scores, boxes = scores_first(outputs)
    if numbers.scores is Scores.LOGITS:
        scores = softmax(scores) if numbers.background else probabilities(scores)
    kept, value, classes = best_class(scores[:, int(numbers.background) :], threshold)
    return to_pixels(boxes[kept], usually_relative(numbers), size), value, classes


def _write(rows: HeadRows, outputs: Sequence[TensorSpec]) -> FoundBoxes:
    nodes, numbers = rows.nodes, rows.numbers
    scored, placed = scores_and_boxes(outputs)
    values, width = rows.matrix(scored), fixed(scored, 2)
    if numbers.scores is Scores.LOGITS:
        values = nodes("Softmax", values, axis=1) if numbers.background else nodes("Sigmoid", values)
    best, label, kept = rows.best_class(nodes.columns(values, int(numbers.background), width), raw=False)
    boxes = rows.usually_relative().to_pixels(nodes("Gather", rows.matrix(placed), kept, axis=0))
    return FoundBoxes(boxes, nodes("Gather", best, kept), nodes("Gather", label, kept), width - int(numbers.background))


def _learned(numbers: Postprocess, outputs: Sequence[TensorSpec], size: Size) -> tuple[LearnedHead, ...]:
    scores, boxes = columns_of(outputs)
    scale = scale_of(is_logit=numbers.scores is Scores.LOGITS, excludes=numbers.background)
    background = 0 if numbers.background else None
    return (LearnedHead(scores, scale, background, boxes=boxes, unit=unit_of(numbers, size, Boxes.RELATIVE)),)


def _scored(outputs: Sequence[TensorSpec]) -> TensorSpec:
    return next((output for output in outputs if output.shape[-1:] != (4,)), outputs[0])


def _gather(numbers: Postprocess, size: Sequence[int], frames: Sequence[Sequence[Array]]) -> Values:
    del numbers, size
    pairs = [sorted(outputs[:2], key=lambda output: output.shape[-1] == 4) for outputs in frames]
    return np.stack([boxes[0] for _, boxes in pairs]), np.stack([scores[0] for scores, _ in pairs]), None


HEAD = Head(
    _why_unfit,
    _decode,
    _write,
    _learned,
    usual=Usual(Boxes.RELATIVE, Scores.PROBABILITIES, _gather),
    scored=_scored,
)
