"""How far the outputs of two models lie apart, in NumPy."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.columns import as_rows, column_axis
from edgeopt.graph.tensors import Tensors

LIMIT_DB = 200.0
"""Stands for equality: float32 reaches about 140 dB, and a report cannot hold infinity."""
_WORSE_DB = 12.0
"""Decibels by which the worst column may be noisier than the whole."""
_FEWEST_ROWS = 16
"""Below, no variation of a column is known."""
_LEAST_VARIANCE = 1e-4
"""Share of the whole output's power with which a column is compared at least: where columns are computed together, an
exact rewrite in float32 moves each by up to 1e-5 of the whole."""
_LARGEST = float(np.finfo(np.float64).max)


@dataclass(frozen=True, slots=True)
class Drift:
    """Distance of an output from the expected one; every figure is finite."""

    max_abs: float
    """Largest difference of one element, in the output's own unit."""
    cosine: float
    """Cosine of the angle between both, -1..1; 1 for two silent outputs, 0 if only one is silent."""
    sqnr_db: float
    """Signal to noise, -200..200; 200 for equal outputs, -200 for noise where silence is expected."""

    column_db: float = LIMIT_DB
    """Variation to noise of the worst column or channel; 200 where columns cannot be told apart."""

    def is_within(self, tolerance: float) -> bool:
        """Whether the error's root mean square stays below `tolerance` times the signal's.

        That of a column stays below four times as much of what varies in it.
        """
        least_db = -20 * math.log10(tolerance)
        return self.sqnr_db >= least_db and self.column_db >= least_db - _WORSE_DB

    @property
    def worst_db(self) -> float:
        """The lower of both."""
        return min(self.sqnr_db, self.column_db)


_NONE = Drift(0.0, 1.0, LIMIT_DB)
TOTAL = Drift(_LARGEST, -1.0, -LIMIT_DB, -LIMIT_DB)
"""Nothing to compare: an output is missing, has another shape, or the model does not run."""


def measure_drift(expected: Tensors, actual: Tensors) -> Drift:
    """Return the worst drift over all expected outputs.

    A missing output, another shape, or a NaN or infinity on one side only is total drift.
    """
    return worst_drift(
        _drift(np.asarray(value), np.asarray(actual[name])) if name in actual else TOTAL
        for name, value in expected.items()
    )


def worst_drift(drifts: Iterable[Drift]) -> Drift:
    """Return the worst of each figure; no drift at all for none."""
    result = [_NONE, *drifts]
    return Drift(
        max(drift.max_abs for drift in result),
        min(drift.cosine for drift in result),
        min(drift.sqnr_db for drift in result),
        min(drift.column_db for drift in result),
    )


def _drift(expected: NDArray[Any], actual: NDArray[Any]) -> Drift:
    if expected.shape != actual.shape:
        return TOTAL
    if expected.dtype.kind not in "fiub" or actual.dtype.kind not in "fiub":
        return _NONE if np.array_equal(expected, actual) else TOTAL
    x, y = expected.astype(np.float64).ravel(), actual.astype(np.float64).ravel()
    finite = np.isfinite(x)
    if not np.array_equal(finite, np.isfinite(y)) or not np.array_equal(x[~finite], y[~finite], equal_nan=True):
        return TOTAL
    drift = _finite_drift(x[finite], y[finite])
    if not finite.all() or drift.sqnr_db in (LIMIT_DB, -LIMIT_DB):
        return drift
    return replace(drift, column_db=_column_db(expected, actual))


def _column_db(expected: NDArray[Any], actual: NDArray[Any]) -> float:
    """Return variation to noise of the worst column; 200 where there are too few rows to tell."""
    axis = column_axis(expected.shape, [expected])
    if expected.dtype.kind != "f" or axis is None or expected.size // expected.shape[axis] < _FEWEST_ROWS:
        return LIMIT_DB
    peak = max(float(np.abs(expected).max()), float(np.abs(actual).max()))
    x, y = (np.asarray(as_rows(array, axis), np.float64) / peak for array in (expected, actual))
    noise = np.square(x - y).mean(axis=0)
    least = max(_LEAST_VARIANCE * float(np.square(x).mean()), 1e-300)
    share = float((noise / np.maximum(x.var(axis=0), least)).max())
    return float(np.clip(-10 * math.log10(share), -LIMIT_DB, LIMIT_DB)) if share > 0 else LIMIT_DB


def _finite_drift(x: NDArray[np.float64], y: NDArray[np.float64]) -> Drift:
    peak = max(np.abs(x).max(initial=0.0), np.abs(y).max(initial=0.0))
    if np.array_equal(x, y):
        return _NONE
    x, y = x / peak, y / peak  # squares of large numbers would overflow
    signal, noise = float(np.linalg.norm(x)), float(np.linalg.norm(x - y))
    both = signal * float(np.linalg.norm(y))
    cosine = float(np.clip(x @ y / both, -1.0, 1.0)) if both > 0 else 0.0
    # Between subnormal numbers the quotient itself can leave the range, between the largest the difference
    with np.errstate(all="ignore"):
        sqnr_db = 20 * np.log10(signal / noise) if signal > 0 and noise > 0 else LIMIT_DB if noise == 0 else -LIMIT_DB
        max_abs = min(float(np.abs(x - y).max()) * peak, _LARGEST)
    return Drift(float(max_abs), cosine, float(np.clip(sqnr_db, -LIMIT_DB, LIMIT_DB)))
