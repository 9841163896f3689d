"""How far two answers of a pipeline are alike, whatever its last stage gives: 1 where they are the same."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from types import MappingProxyType
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.columns import statistics_of
from edgeopt.runtime.pipelines.crop import Crops
from edgeopt.tasks import Task
from edgeopt.tasks.detection.boxes import overlaps

_CLOSE = 1e-3
"""Relative difference of numbers that count as equal: float models differ by less, and no app looks closer."""
_FEWEST_ROWS, _MOST_COLUMNS = 4, 32
"""Limits of an array that is a table: fewer rows show no variation, and more columns may be a map."""
_ELEMENT = "*"
"""Stands in a place for all elements of a list."""
_OVERLAP = 0.5
"""Overlap from which two crops show the same object."""


Place = tuple[str, ...]
"""Where a number lies in an answer: the keys that lead to it; all elements of a list are one place."""
Scales = Mapping[Place, float]
"""Power with which the squared error of the numbers at a place is compared: how they vary from answer to answer."""


def scales_of(references: Sequence[Any]) -> Scales:
    """Return how the real numbers at each place vary over all answers; a place of few numbers is left out.

    Args:
        references: Answers of the original.
    """
    numbers = dict[Place, list[float]]()
    for reference in references:
        for place, number in _numbers_of(reference, ()):
            numbers.setdefault(place, []).append(number)
    return {place: _scale_of(values) for place, values in numbers.items() if len(values) >= _FEWEST_ROWS}


def _numbers_of(answer: Any, place: Place) -> Iterator[tuple[Place, float]]:
    """Yield each finite real number of an answer, and where it lies."""
    if (record := _record_of(answer)) is not None:
        for key, value in record.items():
            yield from _numbers_of(value, (*place, str(key)))
    elif _is_list(answer):
        for value in answer:
            yield from _numbers_of(value, (*place, _ELEMENT))
    elif _is_real(answer) and math.isfinite(answer):
        yield place, float(answer)


def _scale_of(numbers: Sequence[float]) -> float:
    column = np.array(numbers, np.float64).reshape(-1, 1)
    largest = float(np.abs(column).max()) or 1.0  # squares of large numbers would overflow
    return float(statistics_of([column / largest]).scales(is_table=False)[0]) * largest**2


def alike(found: Any, reference: Any, scales: Scales = MappingProxyType({}), place: Place = ()) -> float:
    """Return how far an answer is like another, 0 to 1.

    Texts, truth values and whole numbers are equal or not; so are real numbers, within a thousandth. Of a record (a
    mapping, a dataclass, a tuple of unlike elements) the key counts that agrees least: what is equal in each answer
    must not outvote it. Of lists, each element has at most one partner, in any order.

    Args:
        found: Anything that a function of an app returns.
        reference: The same of the original.
        scales: From `scales_of`: a real number counts as alike but for its squared error over its scale, since those
            of an integer model are off by more than a thousandth. Without one it is equal or not.
        place: Of both in the whole answer.
    """
    mine, theirs = _record_of(found), _record_of(reference)
    if mine is not None and theirs is not None:
        if mine.keys() != theirs.keys():
            return 0.0
        return min((alike(mine[key], theirs[key], scales, (*place, str(key))) for key in mine), default=1.0)
    if isinstance(found, np.ndarray) or isinstance(reference, np.ndarray):
        return _alike_arrays(np.asarray(found), np.asarray(reference))
    if _is_list(found) and _is_list(reference):
        return _alike_lists(found, reference, scales, (*place, _ELEMENT))
    if _is_real(found) and isinstance(reference, Real):
        return _alike_numbers(float(found), float(reference), scales.get(place, 0.0))
    try:
        return float(bool(found == reference))
    except Exception:  # what an app returns may refuse to be compared
        return 0.0


def _record_of(value: Any) -> Mapping[Any, Any] | None:
    """Return what an answer holds by key; None where it is no record."""
    if isinstance(value, Mapping):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, tuple) and len({type(entry) for entry in value}) > 1:
        return dict(enumerate(value))
    return None


def _is_real(value: Any) -> TypeGuard[Real]:
    return isinstance(value, Real) and not isinstance(value, bool | int | np.integer)


def _alike_numbers(found: float, reference: float, scale: float) -> float:
    if math.isclose(found, reference, rel_tol=_CLOSE, abs_tol=1e-6):
        return 1.0
    return max(1 - (found - reference) ** 2 / scale, 0.0) if scale > 0 and math.isfinite(found - reference) else 0.0


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence | set | frozenset) and not isinstance(value, str | bytes)


def _alike_arrays(array: NDArray[Any], reference: NDArray[Any]) -> float:
    if array.shape != reference.shape:
        return 0.0
    if not array.size:
        return 1.0
    if array.dtype.kind == "f" and reference.dtype.kind == "f" and _is_table(reference):
        return _alike_tables(array.astype(np.float64), reference.astype(np.float64))
    if array.dtype.kind == "f" or reference.dtype.kind == "f":
        return float(np.isclose(array, reference, rtol=_CLOSE, atol=1e-6, equal_nan=True).mean())
    return float(np.mean(array == reference))


def _is_table(values: NDArray[Any]) -> bool:
    """Return whether an array is rows of a few columns, as boxes with scores, and enough of them to tell variation."""
    return values.ndim == 2 and len(values) >= _FEWEST_ROWS and 2 <= values.shape[1] <= _MOST_COLUMNS


def _alike_tables(array: NDArray[np.float64], reference: NDArray[np.float64]) -> float:
    """Return the likeness of the worst column: its share of equal numbers, or, where that is more, 1 less its noise.

    Equal boxes must not outvote scores that became a constant, and rounding of an integer model is no other answer.
    """
    equal = np.isclose(array, reference, rtol=_CLOSE, atol=1e-6, equal_nan=True).mean(axis=0)
    if not np.isfinite(array).all() or not np.isfinite(reference).all():
        return float(equal.min())
    largest = float(np.abs(reference).max()) or 1.0
    scales = statistics_of([reference / largest]).scales(is_table=True)
    noise = np.square(array / largest - reference / largest).mean(axis=0)
    near = 1 - np.divide(noise, scales, out=np.ones_like(noise), where=scales > 0)
    return float(np.maximum(equal, near).min())


def _alike_lists(found: Any, reference: Any, scales: Scales, place: Place) -> float:
    """Return twice the likeness of partners over all elements; the most alike become partners first."""
    mine, theirs = list(found), list(reference)
    if not mine and not theirs:
        return 1.0
    table = np.array([[alike(a, b, scales, place) for b in theirs] for a in mine]).reshape(len(mine), len(theirs))
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
