"""How like two pictures are, and the metrics on it."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from edgeopt.recipes.metrics import Counts, Metric

Values = NDArray[np.float32]
"""(height, width) or (height, width, channels), finite."""
_WINDOW, _SIGMA = (11, 11), 1.5
_C1, _C2 = 0.01, 0.03


def nearness(array: Values, expected: Values, span: float) -> float:
    """Return 1 less the root of the mean squared error over the span of values; 0 at least."""
    error = float(np.square(array.astype(np.float64) - expected).mean())
    return max(1 - math.sqrt(error) / span, 0.0)


def similarity(array: Values, expected: Values, span: float) -> float:
    """Return the structural similarity, the mean over pixels; 0 at least."""
    x, y = array.astype(np.float64) / span, expected.astype(np.float64) / span
    mean_x, mean_y = _blurred(x), _blurred(y)
    spread = _blurred(x * x) - mean_x**2 + _blurred(y * y) - mean_y**2
    common = _blurred(x * y) - mean_x * mean_y
    light = (2 * mean_x * mean_y + _C1**2) / (mean_x**2 + mean_y**2 + _C1**2)
    return max(float((light * (2 * common + _C2**2) / (spread + _C2**2)).mean()), 0.0)


def _blurred(values: NDArray[np.float64]) -> NDArray[np.float64]:
    import cv2  # where pictures are compared: a server of texts does without

    return np.asarray(cv2.GaussianBlur(values, _WINDOW, _SIGMA), np.float64)


def mean_of(row: int) -> Metric:
    """Return the metric that is the mean over samples of one row of (rows, samples, 2) shares."""

    def mean(shares: NDArray[np.float64], counts: Counts) -> NDArray[np.float64]:
        array: NDArray[np.float64] = counts @ shares[min(row, len(shares) - 1), :, 0] / counts.sum(axis=1)
        return array

    return Metric(("image",), mean)
