"""A map of probabilities to boxes: text detection."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

from edgeopt.recipes.recipe import Postprocess, Scores
from edgeopt.tasks.detection.head_parts import Array, Candidates, probabilities

_LEAST_SIDE = 3.0
"""In pixels of the map; a region whose rectangle is thinner is none."""
_MOST_REGIONS = 1000
_LEAST_UPRIGHT = 2
"""Pixels of a side of an upright region that are too few."""


def dbnet(outputs: Sequence[Array], numbers: Postprocess, size: tuple[int, int], threshold: float) -> Candidates:
    """Decode (1, 1, h, w) probabilities of text, shrunk by training; each region becomes a box around its rectangle.

    A region lies above `map_threshold`. Its score is the mean inside its smallest rectangle, of any angle, which is
    then grown on all sides by `unclip` * area / perimeter.

    Source: DBNet (arXiv 1911.08947), equation 10; PaddleOCR, `DBPostProcess.boxes_from_bitmap`, score_mode fast.
    """
    found = outputs[0][0, 0].astype(np.float32)
    if numbers.scores is Scores.LOGITS:
        found = probabilities(found)
    mask = (found > numbers.map_threshold).astype(np.uint8)
    regions, _ = cv2.findContours(mask, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    boxes, scores = [], []
    for region in regions[:_MOST_REGIONS]:
        centre, sides, angle = cv2.minAreaRect(region)
        if min(sides) < _LEAST_SIDE:
            continue
        score = _mean_inside(found, cv2.boxPoints((centre, sides, angle)))
        grown = numbers.unclip * sides[0] * sides[1] / (2 * (sides[0] + sides[1]))
        whole = (sides[0] + 2 * grown, sides[1] + 2 * grown)
        if score <= threshold or min(whole) < _LEAST_SIDE + 2:
            continue
        points = cv2.boxPoints((centre, whole, angle))
        boxes.append(np.concatenate([points.min(axis=0), points.max(axis=0)]))
        scores.append(score)
    scale = np.array([size[1] / found.shape[1], size[0] / found.shape[0]] * 2, np.float32)
    made = np.array(boxes, np.float32).reshape(-1, 4) * scale
    return made.astype(np.float32), np.array(scores, np.float32), np.zeros(len(scores), np.int64)


def dbnet_upright(
    outputs: Sequence[Array], numbers: Postprocess, size: tuple[int, int], threshold: float
) -> Candidates:
    """Decode (1, 1, h, w) logits of text as `dbnet`, but each region by the upright box around it, in whole pixels.

    Regions are opened by 3 x 3 first, and holes are none. Probabilities where the recipe says so.

    Source: docTR, `DetectionPostProcessor._process_sample` and `DBPostProcessor.bitmap_to_boxes` of straight pages.
    """
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


def _mean_inside(found: Array, points: Array) -> float:
    """Return the mean of a map inside a polygon, (n, 2) x and y; what lies outside the map does not count."""
    last = np.array(found.shape[::-1]) - 1
    low = np.clip(np.floor(points.min(axis=0)), 0, last).astype(int)
    high = np.clip(np.ceil(points.max(axis=0)), 0, last).astype(int)
    part = found[low[1] : high[1] + 1, low[0] : high[0] + 1]
    mask = np.zeros(part.shape, np.uint8)
    cv2.fillPoly(mask, [(points - low).astype(np.int32)], 1)
    return float(cv2.mean(part, mask)[0])
