"""DBNet: (1, 1, h, w) probabilities of text, shrunk by training; each region becomes a box around its rectangle.

A region lies above `map_threshold`. Its score is the mean inside its smallest rectangle, of any angle, which is then
grown on all sides by `unclip` * area / perimeter.

Source: DBNet (arXiv 1911.08947), equation 10; PaddleOCR, `DBPostProcess.boxes_from_bitmap`, score_mode fast.
"""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.heads import Head
from edgeopt.recipes.heads._candidates import Array, Candidates, Size, probabilities
from edgeopt.recipes.heads._shapes import Shape, may_be
from edgeopt.recipes.outputs.learned import Columns, LearnedHead, scale_of
from edgeopt.recipes.recipe import Postprocess, Scores

_LEAST_SIDE = 3.0
"""Least side of a region's rectangle in pixels of the map; a thinner one is no region."""
_MOST_REGIONS = 1000


def _why_unfit(shapes: Sequence[Shape], numbers: Postprocess, size: Sequence[int]) -> str:
    del numbers
    wanted = "one map, 1 x 1 x height x width"
    if len(shapes) != 1 or len(shapes[0]) != 4 or not all(may_be(side, 1) for side in shapes[0][:2]):
        return wanted
    sides = zip(shapes[0][2:], size, strict=False)
    return "" if all(not isinstance(mine, int) or side % mine == 0 for mine, side in sides) else wanted


def _decode(outputs: Sequence[Array], numbers: Postprocess, size: Size, threshold: float) -> Candidates:
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


def _mean_inside(array: Array, points: Array) -> float:
    """Return the mean of a map inside a polygon, (n, 2) x and y; what lies outside the map does not count."""
    last = np.array(array.shape[::-1]) - 1
    low = np.clip(np.floor(points.min(axis=0)), 0, last).astype(int)
    high = np.clip(np.ceil(points.max(axis=0)), 0, last).astype(int)
    part = array[low[1] : high[1] + 1, low[0] : high[0] + 1]
    mask = np.zeros(part.shape, np.uint8)
    cv2.fillPoly(mask, [(points - low).astype(np.int32)], 1)
    return float(cv2.mean(part, mask)[0])


def _learned(numbers: Postprocess, outputs: Sequence[TensorSpec], size: Size) -> tuple[LearnedHead, ...]:
    del size
    return (LearnedHead(Columns(outputs[0].name, 1), scale_of(is_logit=numbers.scores is Scores.LOGITS)),)


HEAD = Head(_why_unfit, _decode, learned=_learned, is_suppressed=True)
