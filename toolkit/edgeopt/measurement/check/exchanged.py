"""Whether a model answers as another one does, but with its classes exchanged: no labels are needed to see that."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.tasks import Task
from edgeopt.tasks.detection.boxes import overlaps

_SAME_PLACE, _SAME_SCORE = 0.8, 0.05
"""Overlap and distance of scores within which two things are the same one, whatever their classes."""
_CLEARLY = 3.0
"""Times as much as a class is itself, it has become another."""
_FEWEST = 3
"""Things of a class, or samples with it, that have become another: one or two are an error like others."""
_EXPLAINED = 0.5
"""Share of the disagreement that an exchange of classes explains at least."""
_MOST_CLASSES = 65_536


def exchanged_classes(task: Task, found: Sequence[Any], reference: Sequence[Any]) -> dict[int, int]:
    """Return which class has become which other one; nothing where classes are not the reason why answers differ.

    Args:
        task: Of both models.
        found: Answers of one model.
        reference: Those of the other to the same samples.
    """
    weights: dict[tuple[int, int], float] = defaultdict(float)
    counts = Counter[tuple[int, int]]()
    for mine, theirs in zip(found, reference, strict=True):
        for before, after, weight in _pairs(mine, theirs):
            weights[before, after] += weight
            counts[before, after] += 1
    moved, taken = dict[int, int](), set[int]()
    for (before, after), weight in sorted([*weights.items()], key=lambda item: -item[1]):
        if before in moved or after in taken:
            continue
        is_clear = weight >= _CLEARLY * weights[before, before] and counts[before, after] >= _FEWEST
        moved[before] = after if is_clear else before
        taken.add(moved[before])
    exchanged = {before: after for before, after in moved.items() if before != after}
    if not exchanged:
        return {}
    agreement = task.agreement(found, reference)
    renamed = task.agreement(found, [_renamed(value, exchanged) for value in reference])
    return exchanged if renamed - agreement > _EXPLAINED * (1 - agreement) else {}


def _pairs(mine: Any, theirs: Any) -> Iterator[tuple[int, int, float]]:
    """Yield the class of the reference, that of the other model, and how much there is of both at one place."""
    if hasattr(theirs, "indices") and hasattr(mine, "indices"):
        if len(theirs.indices) and len(mine.indices):
            yield int(theirs.indices[0]), int(mine.indices[0]), 1.0
        return
    before, after = (np.asarray(getattr(value, "classes", ())) for value in (theirs, mine))
    if before.ndim == 2 and before.shape == after.shape:
        both, pixels = np.unique(before.astype(np.int64) * _MOST_CLASSES + after, return_counts=True)
        for code, count in zip(both.tolist(), pixels.tolist(), strict=True):
            yield code // _MOST_CLASSES, code % _MOST_CLASSES, count / before.size
    elif before.ndim == after.ndim == 1 and len(before) and len(after) and hasattr(theirs, "boxes"):
        distance = np.abs(theirs.scores[:, None] - mine.scores[None])
        distance[overlaps(theirs.boxes, mine.boxes) < _SAME_PLACE] = np.inf
        for row, column in enumerate(distance.argmin(axis=1)):
            if distance[row, column] <= _SAME_SCORE:
                yield int(before[row]), int(after[column]), float(theirs.scores[row])


def _renamed(answer: Any, exchanged: dict[int, int]) -> Any:
    """Return an answer with other classes."""
    name = "indices" if hasattr(answer, "indices") else "classes"
    classes: NDArray[Any] = getattr(answer, name)
    renamed = classes.copy()
    for before, after in exchanged.items():
        renamed[classes == before] = after
    return replace(answer, **{name: renamed})
