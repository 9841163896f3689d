"""Which numbers of an output are of one kind: the columns of a table, the channels of a map, and how far each varies.

Boxes in pixels lie beside scores from 0 to 1. Compared over the whole output, an error of the scores vanishes beside
the boxes, so comparisons of raw outputs ask this module for columns, and compare each by its own variation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_MUCH_MORE_ALIKE = 1.5
"""A map is taken for channels last where height and width are so much more alike than width and channels are."""
_ROUNDING = 1e-12
"""Share of the largest column's power: what varies less is rounding of float32, whose power is 1e-14 of it."""
_CONSTANT = 1e-8
"""Share of a column's own power: what varies less is a constant with rounding, also one of half precision's grid."""
_MANY = 32
"""So many columns of alike size are features or classes in one unit, and the weak ones among them do as little harm."""
_WEAK = 0.25
"""Share of the median variance of such columns with which a weaker one is compared."""
_GAP = 64.0
"""Ratio of variances from which columns of a table are of different units: 8 in the standard deviation."""


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """Mean, variance and mean square of each column of an output, over the rows of all samples."""

    mean: NDArray[np.float64]
    variance: NDArray[np.float64]
    power: NDArray[np.float64]

    @property
    def is_varying(self) -> NDArray[np.bool_]:
        """(columns,) whether a column tells anything by its variation, which is more than rounding."""
        largest = self.power.max(initial=0.0)
        varying: NDArray[np.bool_] = (self.variance > _ROUNDING * largest) & (self.variance > _CONSTANT * self.power)
        return varying

    @property
    def is_constant(self) -> NDArray[np.bool_]:
        """(columns,) whether a column tells something by its value alone."""
        constant: NDArray[np.bool_] = ~self.is_varying & (self.power > _ROUNDING * self.power.max(initial=0.0))
        return constant

    def scales(self, *, is_table: bool) -> NDArray[np.float64]:
        """Return (columns,) the power with which the squared error of each column is compared.

        A column is compared with its own variance: over all samples, since a column that hardly varies within one
        sample may still tell the samples apart, and since the variance of a few rows is a matter of chance.
        A constant column has no variance, and is compared with its value; one that is zero but for rounding, with the
        whole output. Of many columns of one unit the weak ones are compared with a share of the median instead, as
        a channel behind a Relu that is almost never active is lost without harm.

        Args:
            is_table: Whether columns may be of different units; channels of a map and vectors are not.
        """
        varying = self.is_varying
        scales = np.where(varying, self.variance, np.where(self.is_constant, self.power, self.power.mean()))
        order = np.flatnonzero(varying)[np.argsort(self.variance[varying], kind="stable")]
        sorted_variance = self.variance[order]
        is_gap = (sorted_variance[1:] > _GAP * sorted_variance[:-1]) & is_table
        for family in np.split(order, np.flatnonzero(is_gap) + 1):
            if len(family) >= _MANY:
                scales[family] = np.maximum(scales[family], _WEAK * np.median(self.variance[family]))
        return np.asarray(scales, np.float64)


def column_axis(shape: Sequence[int], samples: Sequence[NDArray[np.generic]] = ()) -> int | None:
    """Return the axis along which the columns or channels of an output lie; None where there are none.

    The first axis is the batch. A vector's numbers are its columns; of a table (rows x columns) they lie in the last
    axis, or in the first where that is the shorter one and the samples vary more along it, as in 1 x 84 x 8400; of a
    map they are the channels, which lie before height and width, or behind them where the shape says so.

    Args:
        shape: Of the output.
        samples: Outputs of this shape, which tell rows from columns where the shape does not; none: the shorter axis.
    """
    if len(shape) < 2 or 0 in shape:
        return None
    axes = [axis for axis in range(1, len(shape)) if shape[axis] > 1]
    if len(axes) < 2:
        return axes[0] if axes else len(shape) - 1
    if len(axes) == 2:
        return _axis_of_table(axes[0], axes[1], shape, samples)
    channels_first, height, width = axes[-3:]
    first, second, third = (shape[axis] for axis in (channels_first, height, width))
    is_square = first == second != third
    is_last = is_square or _unlikeness(first, second) * _MUCH_MORE_ALIKE < _unlikeness(second, third)
    return width if is_last else channels_first


def _unlikeness(number: int, other: int) -> float:
    return max(number, other) / min(number, other)


def _axis_of_table(first: int, last: int, shape: Sequence[int], samples: Sequence[NDArray[np.generic]]) -> int:
    if shape[first] >= shape[last]:
        return last
    fitting = [sample for sample in samples if sample.shape == tuple(shape) and sample.dtype.kind in "fiub"]
    if not fitting:
        return first
    return first if _contrast(fitting, first) >= _contrast(fitting, last) else last


def _contrast(samples: Sequence[NDArray[np.generic]], axis: int) -> float:
    """Return how much the strength of numbers differs along an axis: deviation of the logarithm of its power."""
    others = tuple(other for other in range(samples[0].ndim) if other != axis)
    power = np.zeros(samples[0].shape[axis])
    for sample in samples:
        numbers = np.nan_to_num(sample.astype(np.float64), posinf=0.0, neginf=0.0)
        largest = float(np.abs(numbers).max(initial=0.0))
        power += np.square(numbers / (largest or 1.0)).mean(axis=others)
    return float(np.log(np.maximum(power, _ROUNDING * max(power.max(), 1e-300))).std())


def as_rows(values: NDArray[np.generic], axis: int | None) -> NDArray[np.generic]:
    """Return (rows, columns) of an output; without an axis all its numbers are one column.

    Args:
        values: An output.
        axis: From `column_axis`.
    """
    if axis is None:
        return values.reshape(-1, 1)
    return np.moveaxis(values, axis, -1).reshape(-1, values.shape[axis])


def is_table(shape: Sequence[int]) -> bool:
    """Return whether an output has rows whose columns may be of different units: no vector, and no map of channels."""
    return len([size for size in shape[1:] if size > 1]) == 2 or (len(shape) == 2 and min(shape) > 1)


def statistics_of(samples: Sequence[NDArray[np.float64]]) -> ColumnStatistics:
    """Return the statistics of columns, each (rows, columns); numbers that are not finite do not count.

    Args:
        samples: Rows of each sample, scaled so that their squares are finite.
    """
    columns = samples[0].shape[1]
    counts, sums = np.zeros(columns), np.zeros(columns)
    for rows in samples:
        counts += np.isfinite(rows).sum(axis=0)
        sums += np.where(np.isfinite(rows), rows, 0.0).sum(axis=0)
    counts = np.maximum(counts, 1.0)
    mean = sums / counts
    squares, power = np.zeros(columns), np.zeros(columns)
    for rows in samples:
        finite = np.isfinite(rows)
        squares += np.square(np.where(finite, rows - mean, 0.0)).sum(axis=0)
        power += np.square(np.where(finite, rows, 0.0)).sum(axis=0)
    return ColumnStatistics(mean, squares / counts, power / counts)


def chance_of_worst(columns: int, values: int) -> float:
    """Return by how much the noise of the worst of several columns exceeds their mean by chance alone.

    The noise of a column is known from so many values to a share of 2 / sqrt(values), and of so many columns the
    largest lies sqrt(2 ln columns) deviations above the mean.

    Args:
        columns: How many are compared.
        values: Independent values of each.
    """
    return math.exp(math.sqrt(2 * math.log(max(columns, 1))) * 2 / math.sqrt(max(values, 1)))
