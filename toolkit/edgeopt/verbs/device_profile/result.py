"""The result of `profile-device`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from edgeopt.errors import Note
from edgeopt.steps._device_times.prediction import Predictor
from edgeopt.system.declared.device_times import CheckedNetwork, DeviceTimes, PrecisionTimes


@dataclass(frozen=True, slots=True)
class TableRow:
    """One engine in one precision."""

    engine: str
    precision: str
    layers: int
    channel_step: int
    networks: int
    """Networks that were measured whole and predicted."""
    low: float
    high: float
    """Ends of the 95 % interval of a model's time, as multiples of its prediction."""


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """A device's times, and the file that holds them."""

    times: DeviceTimes
    file: Path
    notes: tuple[Note, ...]

    @property
    def rows(self) -> tuple[TableRow, ...]:
        """The engines and precisions, the target's own engine first."""
        return tuple(
            _row(engine.engine, precision, times)
            for engine in self.times.engines
            for precision, times in engine.precisions.items()
        )

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        rows = [{name: getattr(row, name) for name in TableRow.__slots__} for row in self.rows]
        return {"file": str(self.file), "device": self.times.device, "threads": self.times.threads, "tables": rows}


def _row(engine: str, precision: str, times: PrecisionTimes) -> TableRow:
    interval = Predictor(times).model_time([1.0])
    center = _center(times.checks)
    low, high = interval.low_ms / center, interval.high_ms / center
    layers = sum(map(len, times.layers.values()))
    return TableRow(engine, precision, layers, times.channel_step, len(times.checks), low, high)


def _center(checks: Sequence[CheckedNetwork]) -> float:
    return math.exp(median(math.log(each.measured_ms / each.predicted_ms) for each in checks)) if checks else 1.0
