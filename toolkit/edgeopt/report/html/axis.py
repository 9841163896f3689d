"""Numbers to places on paper, and the marks of an axis."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from edgeopt.report.figures import Axis, AxisScale, Limit

_FAR = 2.5
"""A limit this many times beyond all marks would press them into a corner: it is told, not drawn."""
_TAIL_TICKS = (0.0, 50.0, 90.0, 99.0, 99.9, 99.99)
_ROOM = 0.06


@dataclass(frozen=True, slots=True)
class Range:
    """The range that an axis shows."""

    axis: Axis
    low: float
    high: float
    """In steps of the scale: of logarithms where it is one."""

    def at(self, value: float) -> float:
        """Return the place of a value: 0 at the beginning of the axis, 1 at its end."""
        return (_step(self.axis.scale, value) - self.low) / (self.high - self.low)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """The places of round numbers, and the numbers."""
        values = _round_numbers(self)
        if self.axis.scale is AxisScale.TAIL:
            return [(self.at(value), f"{value:g}") for value in values]
        digits = _digits(values)
        return [(self.at(value), _shown(value, digits)) for value in values]


def make_range(axis: Axis, values: Iterable[float], limit: Limit | None = None) -> Range:
    """Return an axis that shows all values, and the limit unless that is far away.

    Args:
        axis: What it measures.
        values: At least one.
        limit: See `is_far`.
    """
    known = [*values]
    if axis.from_zero or axis.scale is AxisScale.TAIL:
        known.append(0.0)
    if limit is not None and not is_far(limit, known):
        known.append(limit.value)
    steps = [_step(axis.scale, value) for value in known]
    low, high = min(steps), max(steps)
    room = (high - low) * _ROOM or abs(high) * 0.1 or 1.0
    ends_at_mark = axis.scale is AxisScale.TAIL or (axis.from_zero and axis.scale is AxisScale.LINEAR)
    return Range(
        axis, low if ends_at_mark and low >= 0 else low - room, high if axis.scale is AxisScale.TAIL else high + room
    )


def is_far(limit: Limit, values: Iterable[float]) -> bool:
    """Whether a limit is so far beyond all values that it is not drawn."""
    return limit.value > _FAR * max(values)


def axis_title(axis: Axis) -> str:
    """Return what an axis measures, with its unit."""
    return f"{axis.label} ({axis.unit})" if axis.unit else axis.label


def _step(scale: AxisScale, value: float) -> float:
    if scale is AxisScale.LOG:
        return math.log10(max(value, 1e-12))
    if scale is AxisScale.TAIL:
        return -math.log10(max(1 - value / 100, 1e-9))
    return value


def _round_numbers(shown: Range) -> list[float]:
    if shown.axis.scale is AxisScale.TAIL:
        return [tail_tick for tail_tick in _TAIL_TICKS if shown.at(tail_tick) <= 1.001]
    if shown.axis.scale is AxisScale.LOG:
        return _log_numbers(shown.low, shown.high)
    step = _round_step((shown.high - shown.low) / 5)
    first = math.ceil(shown.low / step - 1e-9)
    return [number * step for number in range(first, math.floor(shown.high / step + 1e-9) + 1)]


def _log_numbers(low: float, high: float) -> list[float]:
    powers = range(math.floor(low), math.ceil(high) + 1)
    for parts in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
        found = [part * 10.0**power for power in powers for part in parts]
        inside = [number for number in found if low <= math.log10(number) <= high]
        if len(inside) >= 3:
            return inside
    return inside


def _round_step(least: float) -> float:
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * part for part in (1, 2, 5, 10) if power * part >= least * 0.999)


def _digits(values: list[float]) -> int:
    """Return how many digits behind the point tell all values apart."""
    for digits in range(7):
        if all(abs(round(value, digits) - value) <= 1e-9 * max(1.0, abs(value)) for value in values):
            return digits
    return 7


def _shown(value: float, digits: int) -> str:
    text = f"{value + 0.0:.{digits}f}"
    return text.rstrip("0").rstrip(".") if digits and value >= 90 and "." in text else text
