"""F1 of each class, the mean over classes that occur in answers or truth.

Source: as scikit-learn's `f1_score(average="macro")`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeopt.recipes.metrics import Counts, Metric, NamedClasses


def _mean(named_classes: NamedClasses, counts: Counts) -> NDArray[np.float64]:
    total, present = np.zeros(len(counts)), np.zeros(len(counts))
    for value in sorted({*named_classes.true.tolist(), *named_classes.first.tolist()} - {-1}):
        is_true, is_found = named_classes.true == value, named_classes.first == value
        right = counts @ (is_true & is_found).astype(np.float64)
        both = counts @ (is_true.astype(np.float64) + is_found)
        there = both > 0
        present += there
        total += np.divide(2 * right, both, out=np.zeros(len(counts)), where=there)
    return np.divide(total, present, out=np.zeros(len(counts)), where=present > 0)


def _by_chance(named_classes: NamedClasses, texts: int) -> float:
    """Return that of a guess among all classes and two standard errors of it, or of always the most common class."""
    guess = 1 / max(named_classes.classes, 1)
    drawn = guess + 2 * float(np.sqrt(guess * (1 - guess) / max(texts, 1)))
    _, sizes = np.unique(named_classes.true, return_counts=True)
    share = float(sizes.max(initial=0)) / max(texts, 1)
    return min(max(drawn, 2 * share / (1 + share) / max(len(sizes), 1)), 1.0)


METRIC = Metric(("text_classification",), _mean, _by_chance)
