"""Mean over samples of the least cosine of an output with another model's."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeopt.recipes.metrics import Counts, Metric


def _mean(shares: NDArray[np.float64], counts: Counts) -> NDArray[np.float64]:
    least = shares[:, :, 0].min(axis=0, initial=1.0)
    array: NDArray[np.float64] = counts @ least / counts.sum(axis=1)
    return array


METRIC = Metric(("tensors", "embedding"), _mean)
