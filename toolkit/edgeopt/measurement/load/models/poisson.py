"""Requests that know nothing of each other."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from edgeopt.measurement.load.models import OpenLoad

_CHUNK: Final = 1024
"""Gaps drawn at a time, whatever the length of the run: a longer run then begins like a shorter one."""


@dataclass(frozen=True, slots=True)
class Poisson(OpenLoad):
    """Independent requests at a mean rate, on each stream; their number is not rescaled, it varies with the seed."""

    example: ClassVar[str] = "poisson:30"

    def spare(self, frames: float) -> float:
        """Return three standard deviations of their number."""
        return 3 * math.sqrt(frames)

    def instants_ns(self, seconds: float, phase: float, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return (n,) the instants of one stream, which has no phase."""
        chunks, last = [], 0.0
        while last < seconds:
            chunks.append(last + np.cumsum(rng.exponential(1 / self.rate_per_s, _CHUNK)))
            last = float(chunks[-1][-1])
        instants = np.concatenate(chunks)
        return instants[instants < seconds] * 1e9

    def __str__(self) -> str:
        return f"poisson:{self.rate_per_s:g}"


LOAD = Poisson
