"""How much of a model's outputs another one loses, without labels: smooth where answers do not change yet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.columns import as_rows, is_table, statistics_of
from edgeopt.graph.tensors import Tensors
from edgeopt.tasks._likeness import FEWEST_VALUES, common_axis, weight_of_worst

_LEAST_SHARE = 1e-8
_MOST_ROWS = 4096
"""Most rows of one output of one sample whose columns are compared."""


def worst_error(outputs: Sequence[Tensors], reference: Sequence[Tensors]) -> float:
    """Return `relative_error`, or the error of the worst column of an output where that is more.

    Beside boxes in pixels a score that became a constant is no error. A column is compared with what it varies by, as
    for the agreement of answers, and weighs as much as it does there.

    Args:
        outputs: By name, picture by picture.
        reference: The same of the model that is compared with.
    """
    whole = relative_error(outputs, reference)
    if not reference or not math.isfinite(whole):
        return whole
    errors = []
    for name in reference[0]:
        both = zip(reference, outputs, strict=True)
        pairs = [(np.asarray(expected[name]), np.asarray(arrays[name])) for expected, arrays in both]
        errors.append(_worst_column([pair for pair in pairs if _is_compared(pair[0])]))
    return max((whole, *errors))


def _is_compared(expected: NDArray[Any]) -> bool:
    return expected.dtype.kind == "f" and bool(np.isfinite(expected).all())


def _worst_column(pairs: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> float:
    """Return the error of the worst column; 0 where columns cannot be told apart."""
    wanted = [expected for expected, _ in pairs]
    axis = common_axis(wanted)
    if axis is None:
        return 0.0
    rows = [[_some_rows(as_rows(array, axis)) for array in pair] for pair in pairs]
    largest, count = max(float(np.abs(expected).max(initial=0.0)) for expected, _ in rows), sum(len(x) for x, _ in rows)
    if count < FEWEST_VALUES or largest == 0:
        return 0.0
    scaled = [(expected / largest, array / largest) for expected, array in rows]
    scales = statistics_of([expected for expected, _ in scaled]).scales(is_table=is_table(wanted[0].shape))
    errors = np.sum([np.square(array - expected).sum(axis=0) for expected, array in scaled], axis=0) / count
    shares = np.divide(errors, scales, out=np.zeros_like(errors), where=scales > 0)
    return weight_of_worst(len(scales), count, len(rows)) * float(shares.max())


def _some_rows(rows: NDArray[Any]) -> NDArray[np.float64]:
    """Return rows from all over an output, as many as tell how its columns vary."""
    return rows[:: max(len(rows) // _MOST_ROWS, 1)].astype(np.float64)


def relative_error(outputs: Sequence[Tensors], reference: Sequence[Tensors]) -> float:
    """Return the mean over float outputs of squared error over squared signal; infinite where one is not finite.

    Args:
        outputs: By name, picture by picture.
        reference: The same of the model that is compared with.
    """
    errors = []
    for name in sorted(reference[0]) if reference else ():
        wrong = whole = 0.0
        for output, expected in zip(outputs, reference, strict=True):
            wanted = np.asarray(expected[name])
            if not _is_compared(wanted):
                continue
            array = np.asarray(output[name])
            if array.shape != wanted.shape or not np.isfinite(array).all():
                return math.inf
            wrong += float(np.square(array.astype(np.float64) - wanted).sum())
            whole += float(np.square(wanted.astype(np.float64)).sum())
        if whole > 0:
            errors.append(wrong / whole)
    return float(np.mean(errors)) if errors else 0.0


def divergence(array: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
    """Return the mean Kullback-Leibler divergence of rows of probabilities, in nats; infinite where one is NaN.

    Args:
        array: (pictures, classes).
        expected: The same of the model that is compared with.
    """
    if not np.isfinite(array).all():
        return math.inf
    p, q = np.clip(expected, _LEAST_SHARE, 1.0), np.clip(array, _LEAST_SHARE, 1.0)
    p, q = p / p.sum(axis=1, keepdims=True), q / q.sum(axis=1, keepdims=True)
    return float((p * np.log(p / q)).sum(axis=1).mean())
