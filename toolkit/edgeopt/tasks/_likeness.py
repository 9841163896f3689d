"""How far outputs of two models agree, each output by its kind, and each column or channel of numbers for itself.

Each sample gives two numbers: how much agrees, and how much there is. Both are summed over samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.columns import as_rows, chance_of_worst, column_axis, is_table, statistics_of

Arrays = Sequence[NDArray[Any] | None]
"""One output, sample by sample; None where a sample lacks it."""
Shares = NDArray[np.float64]
"""(samples, 2) how much agrees, and how much there is."""

_FLOOR = 0.25
"""Share of the mean power of all samples with which the error of a weaker sample is compared."""
_ALONE, _BESIDE = 1.0, 0.5
"""Weights of noise where it judges alone (0.99 is an SQNR of 20 dB), and where it judges beside decisions or as a
cosine (17 dB). A column is judged beside the whole: on layers of SqueezeNet in INT8 the worst channel has four times
their noise."""
FEWEST_VALUES = 4
"""Fewest values of a column over all samples: of fewer no variation is known."""
_INDEPENDENT = 16
"""Values of a column in one sample that count as independent: neighbours in a map are alike."""
_UNITS = 1000.0
"""Ratio of the variances of columns from which they are no scores of classes: those are computed in one sum each."""
_ROWS_SUM = 0.01
"""How far the sum of a row of probabilities may lie from 1."""
_HALF = 0.5
_TIE = 0.1
"""Probabilities that differ by less are a tie: either decision is right."""
_FEWEST_CLASSES, _FEWEST_ROWS, _STANDS_OUT = 10, 16, 2.0
"""Logits have at least so many classes and rows, and their largest lies so many deviations above the next (median).

Of 96 normal numbers the largest lies 0.3 deviations above the next; recognisers of text reach 4 and more."""


class OutputKind(StrEnum):
    """How an output is compared."""

    MAP = "map"
    """Floats: by their error."""
    PROBABILITY = "probability"
    """Independent probabilities: by the decisions at one half, and by their error."""
    DISTRIBUTION = "distribution"
    """Rows that sum to 1: by the largest of each row, and by their error."""
    LOGITS = "logits"
    """Rows before a Softmax, where one value stands out: by the largest of each row, and by the error."""
    WHOLE = "whole"
    """Whole numbers, truth values, text: by equality."""


def kind_of(expected: Sequence[NDArray[Any]], text: str = "") -> OutputKind:
    """Return what kind of output this is.

    Args:
        expected: The reference's, sample by sample.
        text: Kind by the recipe or the graph, where the values allow it; empty: unknown.
    """
    if any(array.dtype.kind != "f" for array in expected):
        return OutputKind.WHOLE
    if text == OutputKind.MAP:
        return OutputKind.MAP
    if any(array.size and not (array.min() >= 0 and array.max() <= 1 + _ROWS_SUM) for array in expected):
        return OutputKind.LOGITS if _one_stands_out(expected) and not _has_units(expected) else OutputKind.MAP
    if all(class_axis(array) is not None for array in expected):
        return OutputKind.DISTRIBUTION
    return OutputKind.PROBABILITY if text == OutputKind.PROBABILITY else OutputKind.MAP


def _one_stands_out(expected: Sequence[NDArray[Any]]) -> bool:
    """Return whether one value stands out in most rows along the last axis."""
    rows = [
        _long_rows(array) for array in expected if array.ndim > 1 and array.shape[-1] >= _FEWEST_CLASSES and array.size
    ]
    if (
        len(rows) < len(expected)
        or sum(map(len, rows)) < _FEWEST_ROWS
        or not all(np.isfinite(row).all() for row in rows)
    ):
        return False
    above = []
    for other in rows:
        second, first = np.partition(other, -2, axis=1)[:, -2:].T
        above.append((first - second) / np.maximum(other.std(axis=1), 1e-30))
    return float(np.median(np.concatenate(above))) >= _STANDS_OUT


def _has_units(expected: Sequence[NDArray[Any]]) -> bool:
    """Return whether columns along the last axis are of different units: one always the largest, or far from others.

    Boxes in pixels stand out beside scores in every row, and decide nothing.
    """
    rows = [_long_rows(array) for array in expected]
    if len({row.shape[1] for row in rows}) > 1:
        return False
    largest = {int(column) for row in rows for column in row.argmax(axis=1)}
    statistics = statistics_of(rows)
    variance = np.sort(statistics.variance[statistics.is_varying])
    return len(largest) == 1 or bool((variance[1:] > _UNITS * variance[:-1]).any())


def _long_rows(values: NDArray[Any]) -> NDArray[np.float64]:
    return values.reshape(-1, values.shape[-1]).astype(np.float64)


def class_axis(values: NDArray[Any]) -> int | None:
    """Return the axis along which values sum to 1; None if there is none."""
    for axis in dict.fromkeys((values.ndim - 1, 1)):
        is_axis = 0 <= axis < values.ndim and values.shape[axis] > 1 and values.size
        if is_axis and np.abs(values.sum(axis=axis, dtype=np.float64) - 1).max() <= _ROWS_SUM:
            return axis
    return None


def compare_output(expected: Sequence[NDArray[Any]], arrays: Arrays, kind: OutputKind) -> list[Shares]:
    """Return the shares of each comparison of an output; the lowest counts.

    A sample that is missing, has another shape, or is NaN or infinite where the other is not agrees in nothing.

    Args:
        expected: The reference's, sample by sample.
        arrays: Of the same samples.
        kind: Of the output.
    """
    if kind is OutputKind.WHOLE:
        return [_equality(expected, arrays)]
    if kind is OutputKind.MAP:
        return [_nearness(expected, arrays, _FLOOR, _ALONE), *_worst_column(expected, arrays)]
    if kind is OutputKind.LOGITS:
        chances = [
            None if y is None or y.shape != x.shape else _softmax(y) for x, y in zip(expected, arrays, strict=True)
        ]
        return [
            _decisions([_softmax(array) for array in expected], chances),
            _nearness(expected, arrays, _FLOOR, _BESIDE),
        ]
    rows = [_rows(array, kind, class_axis(array)) for array in expected]
    likewise = [
        None if y is None or y.shape != x.shape else _rows(y, kind, class_axis(x))
        for x, y in zip(expected, arrays, strict=True)
    ]
    shares = [_decisions(rows, likewise), _nearness(rows, likewise, _FLOOR, _BESIDE)]
    return [*shares, *_worst_column_of_decisions(expected, arrays)] if kind is OutputKind.PROBABILITY else shares


def share_of_each(shares: Shares) -> NDArray[np.float64]:
    """Return (samples,) what of each sample agrees; 1 where there was nothing to agree on."""
    agreeing, whole = shares[:, 0], shares[:, 1]
    return np.clip(np.divide(agreeing, whole, out=np.ones_like(whole), where=whole > 0), 0.0, 1.0)


def cosines(expected: Sequence[NDArray[Any]], arrays: Arrays) -> Shares:
    """Return the cosine of each sample, less where one output is longer than the other; equality of whole numbers."""
    if kind_of(expected) is OutputKind.WHOLE:
        return _equality(expected, arrays)
    return _nearness(expected, arrays, 0.0, _BESIDE)


def _equality(expected: Sequence[NDArray[Any]], arrays: Arrays) -> Shares:
    pairs = zip(expected, arrays, strict=True)
    shares = [
        (0, max(x.size, 1)) if y is None or x.shape != y.shape else (np.sum(x == y) + (not x.size), max(x.size, 1))
        for x, y in pairs
    ]
    return np.array(shares, np.float64)


def _nearness(expected: Sequence[NDArray[Any]], arrays: Arrays, least: float, weight: float) -> Shares:
    """Return 1 - w |x - y|^2 / (|x| |y|) of each sample: for w = 1/2 the cosine where both are equally long.

    An error is compared with this sample's own power, and at least with a part of what all samples have in the mean, so
    that noise in an almost empty one does not weigh more than it can do harm.

    Args:
        expected: x, sample by sample.
        arrays: y.
        least: That part of the mean power over all samples.
        weight: w.
    """
    pairs = [_finite(x, y) for x, y in zip(expected, arrays, strict=True)]
    peak = max((np.abs(array).max(initial=0.0) for pair in pairs if pair for array in pair), default=0.0)
    power, count = _power(expected, peak)
    floor = least * power / count if count else 0.0
    shares = [(0.0 if pair is None else _nearness_of(*pair, peak, floor, weight), 1.0) for pair in pairs]
    return np.array(shares, np.float64)


def _worst_column(expected: Sequence[NDArray[Any]], arrays: Arrays) -> list[Shares]:
    """Return the shares of the column or channel that agrees least; none where columns cannot be told apart.

    A column x becomes 1 - w |x - y|^2 / (|x| |y|), where x and y are what varies about their means over all samples: of
    a column that became a constant nothing is left, however large its mean. A constant column is taken as it is.
    """
    axis = common_axis(expected)
    if axis is None:
        return []
    rows = [_comparable_rows(x, y, axis) for x, y in zip(expected, arrays, strict=True)]
    there = [pair for pair in rows if pair is not None]
    values = sum(len(x) for x, _ in there)
    peak = max((float(np.abs(np.nan_to_num(x)).max(initial=0.0)) for x, _ in there), default=0.0)
    if values < FEWEST_VALUES or peak == 0:
        return []
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = [(x / peak, y / peak) for x, y in there]
        mine, theirs = (statistics_of([pair[side] for pair in scaled]) for side in (0, 1))
        errors = [np.nan_to_num(np.square(x - y), posinf=np.inf).sum(axis=0) for x, y in scaled]
    scales = mine.scales(is_table=is_table(expected[0].shape))
    spread = np.where(mine.is_varying, theirs.variance, np.where(mine.is_constant, theirs.power, 0.0))
    scales = np.maximum(np.sqrt(scales * spread), np.where(mine.is_varying, _FLOOR, 1.0) * scales)
    weight = weight_of_worst(len(scales), values, len(there))
    total = np.sum(errors, axis=0)
    worst = int(np.argmax(np.divide(total, scales, out=np.zeros_like(scales), where=scales > 0)))
    if not scales[worst] > 0:
        return []
    lost = iter(weight * error[worst] / scales[worst] for error in errors)
    mean_rows = values / len(there)
    shares = [
        (0.0, mean_rows) if pair is None else (len(pair[0]) - min(next(lost), 1e12), float(len(pair[0])))
        for pair in rows
    ]
    return [np.array(shares, np.float64)]


def weight_of_worst(columns: int, values: int, samples: int) -> float:
    """Return what the noise of the worst column weighs where that of the whole weighs 1.

    Args:
        columns: How many are compared.
        values: Of each, over all samples.
        samples: From which they are.
    """
    return _BESIDE / chance_of_worst(columns, min(values, _INDEPENDENT * samples))


def common_axis(expected: Sequence[NDArray[Any]]) -> int | None:
    """Return the axis of columns, where every sample has as many; None where columns cannot be told apart."""
    axis = column_axis(expected[0].shape, expected) if expected else None
    if axis is None or any(array.ndim != expected[0].ndim for array in expected):
        return None
    return axis if len({array.shape[axis] for array in expected}) == 1 else None


def _comparable_rows(
    x: NDArray[Any], y: NDArray[Any] | None, axis: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Return (rows, columns) of both, NaN where they are not finite; None where they cannot be compared."""
    if _finite(x, y) is None or y is None:
        return None
    both = [np.asarray(as_rows(array, axis), np.float64) for array in (x, y)]
    finite = np.isfinite(both[0])
    return np.where(finite, both[0], np.nan), np.where(finite, both[1], np.nan)


def _power(expected: Sequence[NDArray[Any]], peak: float) -> tuple[float, int]:
    finite = [array[np.isfinite(array)].astype(np.float64) for array in expected]
    scaled = [value / peak if peak else value for value in finite]
    return sum(float(one @ one) for one in scaled), sum(one.size for one in scaled)


def _finite(x: NDArray[Any], y: NDArray[Any] | None) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Return the finite elements of both; None where they cannot be compared."""
    if y is None or x.shape != y.shape or y.dtype.kind != "f":
        return None
    finite = np.isfinite(x)
    if not np.array_equal(finite, np.isfinite(y)) or not np.array_equal(x[~finite], y[~finite], equal_nan=True):
        return None
    return x[finite].astype(np.float64), y[finite].astype(np.float64)


def _nearness_of(x: NDArray[np.float64], y: NDArray[np.float64], peak: float, floor: float, weight: float) -> float:
    if peak == 0 or not x.size:
        return 1.0
    x, y = x / peak, y / peak  # squares of large numbers would overflow
    error = x - y
    wrong, whole = float(error @ error), max(float(np.linalg.norm(x) * np.linalg.norm(y)), floor * x.size)
    if whole > 0:
        return max(1 - weight * wrong / whole, 0.0)
    return 1.0 if wrong == 0 else 0.0


def _rows(values: NDArray[Any], kind: OutputKind, axis: int | None) -> NDArray[Any]:
    """Return (decisions, choices); an independent probability p becomes the row (1 - p, p)."""
    if kind is OutputKind.DISTRIBUTION and axis is not None:
        return np.moveaxis(values, axis, -1).reshape(-1, values.shape[axis])
    return np.stack([1 - values.reshape(-1), values.reshape(-1)], axis=1)


def _softmax(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return probabilities along the last axis, (rows, classes)."""
    rows = _long_rows(values)
    powers = np.exp(rows - rows.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def _decisions(expected: Sequence[NDArray[Any]], arrays: Arrays) -> Shares:
    """Return the share of equal decisions (F1), without the most common decision.

    The most common one is the background of most maps, which a blind model decides too. Near a tie either is right.
    """
    chosen = [array.argmax(axis=1) for array in expected]
    commonest = int(np.bincount(np.concatenate(chosen)).argmax()) if sum(map(len, chosen)) else 0
    shares = []
    for x, mine, y in zip(expected, chosen, arrays, strict=True):
        if y is None or not np.isfinite(y).all():
            shares.append((0, max(2 * len(mine), 1)))
            continue
        theirs, row = y.argmax(axis=1), np.arange(len(mine))
        moved = np.maximum(x[row, mine] - x[row, theirs], y[row, theirs] - y[row, mine])
        differs = (mine != theirs) & (moved > _TIE)
        tells = (mine != commonest).astype(np.int64) + (theirs != commonest)
        shares.append((int(tells[~differs].sum()), int(tells.sum())))
    return np.array(shares, np.float64)


def _worst_column_of_decisions(expected: Sequence[NDArray[Any]], arrays: Arrays) -> list[Shares]:
    """Return the share of equal decisions of the column that loses most; none where columns cannot be told apart.

    A class that is rare would be lost unseen among the others. One decision in a column is chance.
    """
    axis = common_axis(expected)
    if axis is None or expected[0].shape[axis] < 2:
        return []
    pairs = [_comparable_rows(x, y, axis) for x, y in zip(expected, arrays, strict=True)]
    chances = [pair for pair in pairs if pair is not None]
    if len(chances) < len(pairs):
        return []  # the whole output tells that
    is_mostly_yes = np.mean(np.concatenate([x for x, _ in chances]) > _HALF, axis=0) > _HALF
    tells, lost = [], []
    for x, y in chances:
        mine, theirs = ((array > _HALF) != is_mostly_yes for array in (x, y))
        is_sure = np.maximum(np.abs(2 * x - 1), np.abs(2 * y - 1)) > _TIE
        tells.append(mine.sum(axis=0) + theirs.sum(axis=0))
        lost.append(((mine != theirs) & is_sure).sum(axis=0))
    all_tells, all_lost = np.sum(tells, axis=0), np.sum(lost, axis=0)
    beyond = np.maximum(all_lost - 1, 0) / np.maximum(all_tells, 1)
    worst = int(beyond.argmax())
    if not beyond[worst]:
        return []
    weight = (all_lost[worst] - 1) / all_lost[worst] / chance_of_worst(len(beyond), int(all_tells[worst]))
    shares = [(whole[worst] - weight * wrong[worst], whole[worst]) for whole, wrong in zip(tells, lost, strict=True)]
    return [np.array(shares, np.float64)]
