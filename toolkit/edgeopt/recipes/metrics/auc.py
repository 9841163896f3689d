"""Area under the curve of true against false alarms: how often a true stretch is more probable than another one.

Source: Hanley and McNeil 1982, with ties as halves. It knows no threshold.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeopt.recipes.metrics import Counts, Metric
from edgeopt.recipes.scoring.sound_spans import SoundSpans

_AT_ONCE = 64
"""Resamples."""


def _auc(stretches: SoundSpans, counts: Counts) -> NDArray[np.float64]:
    flat = np.nan_to_num(stretches.probabilities, nan=-1.0).reshape(-1)
    _, level = np.unique(flat, return_inverse=True)
    levels, is_true = int(level.max()) + 1, stretches.is_true.reshape(-1)
    length = stretches.probabilities.shape[1]
    areas = np.ones(len(counts))
    for first in range(0, len(counts), _AT_ONCE):
        each = np.repeat(counts[first : first + _AT_ONCE], length, axis=1).astype(np.float64)
        for row, weights in enumerate(each, first):
            yes = np.bincount(level, weights * is_true, levels)
            no = np.bincount(level, weights * ~is_true, levels)
            pairs = yes.sum() * no.sum()
            if pairs > 0:
                areas[row] = (yes * (np.cumsum(no) - no / 2)).sum() / pairs
    return areas


def _by_chance(stretches: SoundSpans, windows: int) -> float:
    """Return one half, and two standard errors of it without a difference."""
    yes = max(float(stretches.is_true.mean()) * windows, 1.0)
    no = max(windows - yes, 1.0)
    return min(0.5 + 2 * float(np.sqrt((yes + no + 1) / (12 * yes * no))), 1.0)


METRIC = Metric(("voice_activity",), _auc, _by_chance)
