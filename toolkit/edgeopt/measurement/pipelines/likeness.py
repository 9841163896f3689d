"""How far two answers of a pipeline are alike, whatever its last stage gives: 1 where they are the same."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.columns import statistics_of
from edgeopt.runtime.pipelines.crop import Crops
from edgeopt.tasks import Task
from edgeopt.tasks.detection.boxes import overlaps

_CLOSE = 1e-3
"""Relative difference of numbers that count as equal: float models differ by less, and no app looks closer."""
_FEWEST_ROWS, _MOST_COLUMNS = 4, 32
"""Of an array that is a table: of fewer rows no variation is known, and of more columns it may be a map."""
_OVERLAP = 0.5
"""From here two crops show the same object."""


def alike(found: Any, reference: Any) -> float:
    """Return how far an answer is like another, 0 to 1.

    Texts, truth values and whole numbers are equal or not; so are real numbers, within a thousandth. Mappings and
    dataclasses are compared key by key; of lists, each element has at most one partner, in any order.

    Args:
        found: Anything that a function of an app returns.
        reference: The same of the original.
    """
    if dataclasses.is_dataclass(found) and type(found) is type(reference):
        fields = [one.name for one in dataclasses.fields(found)]
        return alike(*({name: getattr(one, name) for name in fields} for one in (found, reference)))
    if isinstance(found, np.ndarray) or isinstance(reference, np.ndarray):
        return _alike_arrays(np.asarray(found), np.asarray(reference))
    if isinstance(found, Mapping) and isinstance(reference, Mapping):
        keys = found.keys() | reference.keys()
        shared = [alike(found[key], reference[key]) for key in found.keys() & reference.keys()]
        return math.fsum(shared) / len(keys) if keys else 1.0
    if _is_list(found) and _is_list(reference):
        return _alike_lists(found, reference)
    if isinstance(found, Real) and isinstance(reference, Real) and not isinstance(found, bool | int):
        return float(math.isclose(float(found), float(reference), rel_tol=_CLOSE, abs_tol=1e-6))
    try:
        return float(bool(found == reference))
    except Exception:  # what an app returns may refuse to be compared
        return 0.0


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence | set | frozenset) and not isinstance(value, str | bytes)


def _alike_arrays(found: NDArray[Any], reference: NDArray[Any]) -> float:
    if found.shape != reference.shape:
        return 0.0
    if not found.size:
        return 1.0
    if found.dtype.kind == "f" and reference.dtype.kind == "f" and _is_table(reference):
        return _alike_tables(found.astype(np.float64), reference.astype(np.float64))
    if found.dtype.kind == "f" or reference.dtype.kind == "f":
        return float(np.isclose(found, reference, rtol=_CLOSE, atol=1e-6, equal_nan=True).mean())
    return float(np.mean(found == reference))


def _is_table(values: NDArray[Any]) -> bool:
    """Return whether an array is rows of a few columns, as boxes with scores, and enough of them to tell variation."""
    return values.ndim == 2 and len(values) >= _FEWEST_ROWS and 2 <= values.shape[1] <= _MOST_COLUMNS


def _alike_tables(found: NDArray[np.float64], reference: NDArray[np.float64]) -> float:
    """Return the likeness of the worst column: its share of equal numbers, or, where that is more, 1 less its noise.

    Equal boxes must not outvote scores that became a constant, and rounding of an integer model is no other answer.
    """
    equal = np.isclose(found, reference, rtol=_CLOSE, atol=1e-6, equal_nan=True).mean(axis=0)
    if not np.isfinite(found).all() or not np.isfinite(reference).all():
        return float(equal.min())
    largest = float(np.abs(reference).max()) or 1.0
    scales = statistics_of([reference / largest]).scales(is_table=True)
    noise = np.square(found / largest - reference / largest).mean(axis=0)
    near = 1 - np.divide(noise, scales, out=np.ones_like(noise), where=scales > 0)
    return float(np.maximum(equal, near).min())


def _alike_lists(found: Any, reference: Any) -> float:
    """Return twice the likeness of partners over all elements; the most alike become partners first."""
    mine, theirs = list(found), list(reference)
    if not mine and not theirs:
        return 1.0
    table = np.array([[alike(a, b) for b in theirs] for a in mine]).reshape(len(mine), len(theirs))
    return 2 * _matched(table) / (len(mine) + len(theirs))


def _matched(table: NDArray[np.float64]) -> float:
    """Return the sum over pairs, the largest first, of each row and column one."""
    matched = 0.0
    table = table.copy()
    while table.size and (most := float(table.max())) > 0:
        row, column = np.unravel_index(int(table.argmax()), table.shape)
        matched += most
        table[row, :] = table[:, column] = 0.0
    return matched


def alike_on_crops(task: Task, found: Sequence[Any], reference: Sequence[Any], cut: Crops, cut_before: Crops) -> float:
    """Return how far a model's answers on crops are like the original's, 0 to 1: crops of one object are compared.

    Args:
        task: Of the model.
        found: Its answers, one a crop.
        reference: The same of the original.
        cut: What it ran on.
        cut_before: What the original ran on.
    """
    if not found and not reference:
        return 1.0
    if not found or not reference:
        return 0.0
    fits = overlaps(cut.boxes.astype(np.float32), cut_before.boxes.astype(np.float32))
    table = np.zeros(fits.shape)
    for row, column in zip(*np.nonzero(fits >= _OVERLAP), strict=True):
        table[row, column] = task.agreement([found[row]], [reference[column]])
    return 2 * _matched(table) / (len(found) + len(reference))
