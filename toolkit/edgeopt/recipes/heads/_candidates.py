"""Helpers of heads in NumPy: grids, corners, and which raw scores are above a threshold.

Candidates are boxes (n, 4), left, top, right, bottom in pixels of the model's input, scores (n,) and classes (n,).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from edgeopt.recipes.recipe import Boxes, Postprocess, Scores

MOST_CLASSES = 1e6
"""Beyond it a number is no class."""
Array = NDArray[np.float32]
Candidates = tuple[Array, Array, NDArray[np.int64]]
Size = tuple[int, int]
"""Height and width of the input."""


@lru_cache(maxsize=8)
def grid(size: Size, strides: tuple[int, ...], *, rounds_up: bool = False) -> tuple[Array, Array]:
    """Return cell columns and rows, (n, 2), and strides, (n, 1), of all scales, row by row.

    Args:
        size: Height and width of the input.
        strides: Of the scales, in their order.
        rounds_up: Whether a last row or column that is not whole counts.
    """
    cells, steps = [], []
    for stride in strides:
        rows, columns = (-(-side // stride) if rounds_up else side // stride for side in size)
        x, y = np.meshgrid(np.arange(columns), np.arange(rows))
        cells.append(np.stack([x.ravel(), y.ravel()], axis=1))
        steps.append(np.full((rows * columns, 1), stride))
    return np.concatenate(cells).astype(np.float32), np.concatenate(steps).astype(np.float32)


def corners(centres: Array, sizes: Array) -> Array:
    """Return (n, 4) corners of (n, 2) centres and (n, 2) sizes."""
    half = sizes / 2
    return np.concatenate([centres - half, centres + half], axis=1)


def best_class(scores: Array, threshold: float) -> tuple[NDArray[np.int64], Array, NDArray[np.int64]]:
    """Return rows, scores and classes of the rows whose best class is above the threshold; `scores` is (n, classes)."""
    best = scores.argmax(axis=1)
    value = scores[np.arange(len(scores)), best]
    rows = np.flatnonzero(value > threshold)
    return rows, value[rows], best[rows].astype(np.int64)


def probabilities(values: Array) -> Array:
    """Return the sigmoid."""
    return np.asarray(1 / (1 + np.exp(-values)), np.float32)


def scores_of(values: Array, numbers: Postprocess) -> Array:
    """Return raw scores as probabilities."""
    return probabilities(values) if numbers.scores is Scores.LOGITS else values


def least(numbers: Postprocess, threshold: float) -> float:
    """Return the threshold for raw scores: sigmoid is monotonic, and computed for the survivors only."""
    return logit(threshold) if numbers.scores is Scores.LOGITS else threshold


def to_pixels(boxes: Array, numbers: Postprocess, size: Size) -> Array:
    """Return (n, 4) boxes that know no grid in pixels of the input."""
    if numbers.boxes is not Boxes.RELATIVE:
        return boxes
    return np.asarray(boxes * np.array([size[1], size[0]] * 2, np.float32), np.float32)


def softmax(values: Array) -> Array:
    """Return the softmax of each row."""
    exponents = np.exp(values - values.max(axis=1, keepdims=True))
    return np.asarray(exponents / exponents.sum(axis=1, keepdims=True), np.float32)


def scores_first(outputs: Sequence[Array]) -> tuple[Array, Array]:
    """Return scores (n, classes) and boxes (n, 4) of two outputs in either order; with four classes as they are."""
    is_swapped = outputs[0].shape[-1] == 4 != outputs[1].shape[-1]
    first, second = (array[0] for array in (reversed(outputs[:2]) if is_swapped else outputs[:2]))
    return first, second


def logit(probability: float) -> float:
    """Return the raw score of which the sigmoid is this."""
    clipped = min(max(probability, 1e-7), 1 - 1e-7)
    return float(np.log(clipped / (1 - clipped)))


def objectness_first(
    rows: Array, numbers: Postprocess, threshold: float
) -> tuple[NDArray[np.int64], Array, NDArray[np.int64]]:
    """Return rows, scores and classes where objectness * class is above the threshold; `rows` is (n, 5 + classes)."""
    likely = np.flatnonzero(rows[:, 4] > least(numbers, threshold))  # a class score is at most 1
    both = scores_of(rows[likely, 4:], numbers)
    kept, scores, classes = best_class(both[:, 1:] * both[:, :1], threshold)
    return likely[kept], scores, classes


def centred(boxes: Array, numbers: Postprocess, size: Size) -> Array:
    """Return corners in pixels of (n, 4) centre and size that know no grid."""
    boxes = to_pixels(boxes, numbers, size)
    return corners(boxes[:, :2], boxes[:, 2:4])


def around(middles: Array, distances: Array, strides: Array) -> Array:
    """Return corners of (n, 4) distances to left, top, right and bottom of (n, 2) middles, all in cells."""
    return np.concatenate([middles - distances[:, :2], middles + distances[:, 2:4]], axis=1) * strides


def usually_relative(numbers: Postprocess) -> Postprocess:
    """Return the numbers of a head whose exporter writes boxes relative to the input."""
    return replace(numbers, boxes=Boxes.RELATIVE) if numbers.boxes is Boxes.USUAL else numbers


def distances(raw: Array, bins: int) -> Array:
    """Return (n, 4) distances to left, top, right and bottom, in cells, of (n, 4 * bins); one bin is the distance.

    A side is the mean of 0, 1, ... bins - 1 under the softmax of its bins.

    Source: Generalized Focal Loss (arXiv 2006.04388), equation 6.
    """
    if bins == 1:
        return raw
    shares = softmax(raw.reshape(-1, bins))
    return np.asarray(shares @ np.arange(bins, dtype=np.float32), np.float32).reshape(-1, 4)
