"""No arrivals: the next frame begins when the last one is done."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Self

from edgeopt.measurement.load.models import Load, OpenLoad
from edgeopt.measurement.load.models.fps import FixedRate


@dataclass(frozen=True, slots=True)
class Closed(Load):
    """So many workers, each taking the next frame when its last one is done: a measure of capacity."""

    workers: int = 1
    example: ClassVar[str] = "closed, closed:4 for 4 workers"

    @classmethod
    def parse(cls, value: str | None) -> Self | None:
        """Return the load with so many workers, or one."""
        if value is None:
            return cls()
        return cls(int(value)) if re.fullmatch("[0-9]+", value) and int(value) > 0 else None

    def at_rate(self, rate_per_s: float) -> OpenLoad:
        """Return one camera at this rate."""
        return FixedRate(rate_per_s)

    def __str__(self) -> str:
        return f"closed:{self.workers}"


LOAD = Closed
