"""The result of `profile-device`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from edgeopt.errors import Note
from edgeopt.report.result import Result
from edgeopt.steps._device_times.prediction import Predictor
from edgeopt.system.declared.device_times import DeviceTimes, PrecisionTimes
from edgeopt.system.machine.environment import Environment


@dataclass(frozen=True, slots=True)
class TableRow:
    """One engine in one precision."""

    engine: str
    precision: str
    layers: int
    channel_step: int
    networks: int
    """Networks that were measured whole and predicted."""
    most_off: float
    """Times that a prediction is off at most, in 95 % of cases: the interval is its quotient and its product."""


@dataclass(frozen=True, slots=True)
class DeviceProfile(Result):
    """A device's times, and the file that holds them."""

    command: ClassVar[str] = "profile-device"

    times: DeviceTimes
    file: Path
    notes: tuple[Note, ...]
    environment: Environment | None = None
    """The device, and its software."""

    @property
    def rows(self) -> tuple[TableRow, ...]:
        """The engines and precisions, the target's own engine first."""
        return tuple(
            _row(engine.engine, precision, times)
            for engine in self.times.engines
            for precision, times in engine.precisions.items()
        )

    def own_figures(self) -> dict[str, Any]:
        """Return plain values."""
        rows = [{name: getattr(row, name) for name in TableRow.__slots__} for row in self.rows]
        return {
            "file": str(self.file),
            "device": self.times.device,
            "threads": self.times.threads,
            "tables": rows,
            "notes": [asdict(note) for note in self.notes],
        }


def _row(engine: str, precision: str, times: PrecisionTimes) -> TableRow:
    layers = sum(map(len, times.layers.values()))
    return TableRow(engine, precision, layers, times.channel_step, len(times.checks), Predictor(times).most_off)
