"""How a runtime or a stream has been doing: counts of frames, and the times of the last ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from edgeopt.runtime.drift.state import DriftState


@dataclass(frozen=True, slots=True)
class Times:
    """Times of a stage: percentiles of the last frames, totals since the start; None if no frame had the stage."""

    p50_ms: float | None
    """The median."""
    p90_ms: float | None
    """The longest time of the fastest 90 % of the frames."""
    p99_ms: float | None
    """The longest time of the fastest 99 % of the frames."""
    frames: int
    """Number of frames behind the percentiles. With fewer than 100, the p99 is the longest time."""
    total_ms: float
    """Sum of the times of all frames since the start."""
    total_frames: int
    """Frames that had the stage since the start."""


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts since the start, and times of the last 1024 frames. `fed` is served + dropped + failed + waiting."""

    fed: int
    """Frames that came in."""
    served: int
    """Frames that got an answer."""
    dropped: int
    """Frames that were dropped for newer ones, and never run."""
    failed: int
    """Frames whose run ended in an error."""
    missed: int
    """Served frames that were answered after their budget."""
    frame: Times
    """Times from the beginning of the first stage to the answer."""
    stages: Mapping[str, Times]
    """Times of each stage by its name, in the order in which they run."""
    age: Times
    """Times from a frame's capture to its answer, waiting included."""
    last_age_ms: float | None
    """Age of the newest answer."""
    drift: DriftState | None
    """Whether frames are still like those of calibration; None: drift is not watched."""

    @property
    def waiting(self) -> int:
        """Frames that came in and are not yet answered, dropped or failed."""
        return self.fed - self.served - self.dropped - self.failed

    @property
    def missed_ratio(self) -> float | None:
        """Share of the served frames that missed their budget; None before the first."""
        return self.missed / self.served if self.served else None

    def to_json(self) -> dict[str, Any]:
        """Return plain values; no number is NaN."""
        return asdict(self) | {"waiting": self.waiting, "missed_ratio": self.missed_ratio}
