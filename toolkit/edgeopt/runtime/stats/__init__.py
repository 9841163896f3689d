"""How a runtime or a stream has been doing: counts of frames, and the times of the last ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from edgeopt.runtime.drift.state import DriftState


@dataclass(frozen=True, slots=True)
class Times:
    """One series of times: percentiles of the last frames, totals since the start; None where no frame had it."""

    p50_ms: float | None
    """The median."""
    p90_ms: float | None
    """What 9 of 10 frames take at most."""
    p99_ms: float | None
    """What 99 of 100 frames take at most."""
    frames: int
    """How many frames the percentiles tell of. A p99 of fewer than 100 is their longest time."""
    total_ms: float
    """Total of all frames since the start."""
    total_frames: int
    """Frames that had the stage since the start."""


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts since the start, and times of the last frames. `fed` is served + dropped + failed + waiting."""

    fed: int
    """Frames that came in."""
    served: int
    """Frames that got an answer."""
    dropped: int
    """Frames that gave way to others and were never run."""
    failed: int
    """Frames whose run ended in an error."""
    missed: int
    """Served frames that were answered after their budget."""
    frame: Times
    """From the first stage's begin to the answer."""
    stages: Mapping[str, Times]
    """By name, in the order in which they run."""
    age: Times
    """From a frame's capture to its answer, waiting included."""
    last_age_ms: float | None
    """Age of the newest answer."""
    drift: DriftState | None
    """Whether frames are still like those of calibration; None: nothing watches them."""

    @property
    def waiting(self) -> int:
        """Frames that came in and are neither answered nor given up."""
        return self.fed - self.served - self.dropped - self.failed

    @property
    def missed_ratio(self) -> float | None:
        """Share of the served frames that missed their budget; None before the first."""
        return self.missed / self.served if self.served else None

    def to_json(self) -> dict[str, Any]:
        """Return plain values; no number is NaN."""
        return asdict(self) | {"waiting": self.waiting, "missed_ratio": self.missed_ratio}
