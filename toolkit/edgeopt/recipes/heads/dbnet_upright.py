"""docTR's DBNet: (1, 1, h, w) logits of text as `dbnet`, but each region by the upright box around it, in whole pixels.

Regions are opened by 3 x 3 first, and holes are none. Probabilities where the recipe says so.

Source: docTR, `DetectionPostProcessor._process_sample` and `DBPostProcessor.bitmap_to_boxes` of straight pages.
"""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.heads import Head, dbnet
from edgeopt.recipes.heads._candidates import Array, Candidates, Size, probabilities
from edgeopt.recipes.outputs.learned import Columns, LearnedHead, scale_of
from edgeopt.recipes.recipe import Postprocess, Scores

_LEAST_UPRIGHT = 2
"""Pixels of a side of an upright region that are too few."""


def _decode(outputs: Sequence[Array], numbers: Postprocess, size: Size, threshold: float) -> Candidates:
    found = outputs[0][0, 0].astype(np.float32)
    if numbers.scores is not Scores.PROBABILITIES:
        found = probabilities(found)
    mask = cv2.morphologyEx(
        (found >= numbers.map_threshold).astype(np.uint8), cv2.MORPH_OPEN, np.ones((3, 3), np.uint8)
    )
    regions, _ = cv2.findContours(mask, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    boxes, scores = [], []
    for region in regions:
        left, top, width, height = cv2.boundingRect(region)
        if min(width, height) <= _LEAST_UPRIGHT:
            continue
        score = float(found[top : top + height + 1, left : left + width + 1].mean())
        if score <= threshold:
            continue
        grown = numbers.unclip * width * height / (2 * (width + height))
        low = np.floor(np.array([left - grown, top - grown]) + 0.5)
        high = np.floor(np.array([left + width + grown, top + height + grown]) + 0.5) + 1  # its last pixel counts
        boxes.append(np.concatenate([low, high]))
        scores.append(score)
    scale = np.array([size[1] / found.shape[1], size[0] / found.shape[0]] * 2, np.float32)
    made = np.array(boxes, np.float32).reshape(-1, 4) * scale
    made = np.clip(made, 0, np.array([size[1], size[0]] * 2, np.float32))
    return made.astype(np.float32), np.array(scores, np.float32), np.zeros(len(scores), np.int64)


def _learned(numbers: Postprocess, outputs: Sequence[TensorSpec], size: Size) -> tuple[LearnedHead, ...]:
    del size
    return (LearnedHead(Columns(outputs[0].name, 1), scale_of(is_logit=numbers.scores is not Scores.PROBABILITIES)),)


HEAD = Head(dbnet.HEAD.why_unfit, _decode, learned=_learned, is_suppressed=True)
