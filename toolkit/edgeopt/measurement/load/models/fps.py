"""Cameras: frames at a fixed rate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from edgeopt.measurement.load.models import OpenLoad


@dataclass(frozen=True, slots=True)
class FixedRate(OpenLoad):
    """A camera: one frame every 1 / fps seconds, on each stream."""

    example: ClassVar[str] = "fps:30"
    takes_phases: ClassVar[bool] = True
    takes_jitter: ClassVar[bool] = True

    def instants_ns(self, seconds: float, phase: float, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return (n,) the instants of one camera."""
        count = max(0, math.ceil(seconds * self.rate_per_s - phase - 1e-9))
        return (phase + np.arange(count, dtype=np.float64)) * self.period_ns

    def __str__(self) -> str:
        return f"fps:{self.rate_per_s:g}"


LOAD = FixedRate
