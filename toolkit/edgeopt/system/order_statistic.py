"""Which of a series' values is its p-quantile: one definition for a benchmark and for a running app."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

DEFINITION = "order statistics x_(ceil(n p))"


def order_statistic(ordered: NDArray[np.int64], p: float) -> int:
    """Return x_(ceil(n p)) of values in rising order, at least one of them."""
    return int(ordered[max(1, math.ceil(len(ordered) * p - 1e-9)) - 1])
