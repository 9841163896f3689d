"""How latency changes over minutes, with temperature and frequency where sensors tell them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from edgeopt.measurement.resources.readings import CounterReading
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.statistics.quantile import Quantile, quantile

_WINDOWS = 20
_SLOW_RATIO = 1.05
"""A window whose median is above this many times the first is slower by more than noise of a quiet machine."""
_LOW_FREQUENCY = 0.95


@dataclass(frozen=True, slots=True)
class RunWindow:
    """One stretch of a run."""

    begin_s: float
    end_s: float
    frames: int
    p50: Quantile
    p99: Quantile
    frames_per_s: float
    temperature_c: float | None
    """The hottest sensor, at its hottest."""
    frequency_mhz: float | None
    """The fastest core, on average."""
    heat_throttled: int | None
    """Times that heat slowed a core within the window."""


@dataclass(frozen=True, slots=True)
class Sustained:
    """The curve over time and what it says."""

    windows: tuple[RunWindow, ...]
    first: Quantile
    """Median of the first fifth of the time."""
    last: Quantile
    """Median of the last fifth of the time."""
    slow_from_s: float | None
    """Second from which every window is more than 5 % slower than the first; None: there is none."""
    throttled_from_s: float | None
    """When frequency first fell below 95 % of the first window, or heat slowed a core; None: never, or unknown."""
    missing: tuple[str, ...]
    """Sensors this machine does not have."""

    @property
    def ratio(self) -> float | None:
        """Last fifth over first fifth; above 1 the device gets slower. None without frames."""
        return _ratio(self.last.value_ns, self.first.value_ns)

    @property
    def ratio_low(self) -> float | None:
        """Lowest ratio that both intervals allow (wider than 95 %)."""
        return _ratio(self.last.low_ns, self.first.high_ns)

    @property
    def ratio_high(self) -> float | None:
        """Highest ratio that both intervals allow."""
        return _ratio(self.last.high_ns, self.first.low_ns)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self) | {"ratio": self.ratio, "ratio_low": self.ratio_low, "ratio_high": self.ratio_high}


def _ratio(above: int | None, below: int | None) -> float | None:
    return above / below if above is not None and below else None


def sustained_curve(samples: Samples, readings: Sequence[CounterReading] = (), *, windows: int = _WINDOWS) -> Sustained:
    """Return the curve of service times over a run after warm-up.

    Args:
        samples: With `done_ns`; `epoch_ns` places the readings, without it they are not used.
        readings: In order of time, over the run.
        windows: How many stretches of equal length, at least 5.

    Raises:
        ValueError: If the run has no instants.
    """
    rows = samples.steady().served()
    if rows.done_ns is None or windows < 5:
        raise ValueError("a curve over time needs the instants of frames, and five windows or more")
    begin, end = (int(rows.done_ns.min()), int(rows.done_ns.max())) if len(rows) else (0, 0)
    edges = np.linspace(begin, end, windows + 1)
    placed = readings if samples.epoch_ns else ()
    result = tuple(
        _window(rows, placed, float(low), float(high), is_last=i == windows - 1)
        for i, (low, high) in enumerate(pairwise(edges))
    )
    fifth = (end - begin) / 5
    return Sustained(
        windows=result,
        first=quantile(rows.frame_ns[rows.done_ns <= begin + fifth], 0.5),
        last=quantile(rows.frame_ns[rows.done_ns >= end - fifth], 0.5),
        slow_from_s=_slow_from(result),
        throttled_from_s=_throttled_from(result),
        missing=_missing(placed),
    )


def _window(rows: Samples, readings: Sequence[CounterReading], low: float, high: float, *, is_last: bool) -> RunWindow:
    done = rows.done_ns if rows.done_ns is not None else np.zeros(0, np.int64)
    inside = (done >= low) & ((done <= high) if is_last else (done < high))
    times = rows.frame_ns[inside]
    near = [reading for reading in readings if low <= reading.wall_ns - rows.epoch_ns <= high]
    hot = [max(reading.temperature_c) for reading in near if reading.temperature_c]
    fast = [max(reading.frequency_mhz) for reading in near if reading.frequency_mhz]
    before = [reading for reading in readings if reading.wall_ns - rows.epoch_ns < low][-1:]
    heat = [reading.heat_throttled for reading in (*before, *near) if reading.heat_throttled is not None]
    return RunWindow(
        begin_s=low / 1e9,
        end_s=high / 1e9,
        frames=len(times),
        p50=quantile(times, 0.5),
        p99=quantile(times, 0.99),
        frames_per_s=len(times) * 1e9 / (high - low) if high > low else 0.0,
        temperature_c=max(hot, default=None),
        frequency_mhz=float(np.mean(fast)) if fast else None,
        heat_throttled=heat[-1] - heat[0] if heat else None,
    )


def _slow_from(windows: Sequence[RunWindow]) -> float | None:
    """One slow window is a disturbance; slow until the end is a state."""
    known = [window for window in windows if window.p50.value_ns is not None]
    if not known:
        return None
    limit, since = (known[0].p50.value_ns or 0) * _SLOW_RATIO, None
    for other in reversed(known[1:]):
        if (other.p50.value_ns or 0) <= limit:
            break
        since = other.begin_s
    return since


def _throttled_from(windows: Sequence[RunWindow]) -> float | None:
    full = next((window.frequency_mhz for window in windows if window.frequency_mhz), None)
    for other in windows:
        fell = full is not None and other.frequency_mhz is not None and other.frequency_mhz < _LOW_FREQUENCY * full
        if fell or other.heat_throttled:
            return other.begin_s
    return None


def _missing(readings: Sequence[CounterReading]) -> tuple[str, ...]:
    wanted = ("temperature_c", "frequency_mhz", "heat_throttled")
    return tuple(name for name in wanted if all(getattr(reading, name) is None for reading in readings))
