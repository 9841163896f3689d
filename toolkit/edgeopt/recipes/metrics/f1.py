"""F1 of stretches: the harmonic mean of the share of alarms that are right and of the share of truth that is found."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeopt.recipes.metrics import Counts, Metric
from edgeopt.recipes.scoring.sound_spans import SoundSpans


def _f1(stretches: SoundSpans, counts: Counts) -> NDArray[np.float64]:
    says = stretches.probabilities >= stretches.threshold
    right, alarms, there = (counts @ array.sum(axis=1) for array in (says & stretches.is_true, says, stretches.is_true))
    whole = alarms + there
    return np.asarray(np.divide(2 * right, whole, out=np.ones(len(whole)), where=whole > 0), np.float64)


def _by_chance(stretches: SoundSpans, windows: int) -> float:
    """Return that of an alarm everywhere, and two standard errors of a share on so many windows."""
    share = float(stretches.is_true.mean())
    return min(2 * share / (1 + share) + 2 * float(np.sqrt(share * (1 - share) / max(windows, 1))), 1.0)


METRIC = Metric(("voice_activity",), _f1, _by_chance)
