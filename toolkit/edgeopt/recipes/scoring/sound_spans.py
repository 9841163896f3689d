"""Stretches of sound in which something is there or not: evidence of the metrics `f1` and `auc`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class SoundSpans:
    """A detector's stretches, and the true ones."""

    probabilities: NDArray[np.float64]
    """(windows, stretches)."""
    is_true: NDArray[np.bool_]
    """(windows, stretches)."""
    threshold: float
    """Probability from which on the answer is yes."""
