"""The size of a workload's models, which `check` guards for every kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edgeopt.errors import Note
from edgeopt.measurement.check.result import CheckResult, judge_size
from edgeopt.measurement.sides import Baselined, Tell
from edgeopt.recipes.default_limits import Check


@dataclass(frozen=True, slots=True)
class SizeGuard:
    """Guards the size."""

    size_bytes: int
    """Bytes of the model with its external data."""

    def hold(self, tell: Tell | None) -> int:
        """Return the size in bytes."""
        del tell
        return self.size_bytes

    def read(self, held: Any) -> int:
        """Return the size in bytes."""
        return int(held)

    def judge(self, then: Baselined, limits: Check, tell: Tell | None) -> list[CheckResult]:
        """Judge the size, which is no estimate."""
        del tell
        return [judge_size(self.size_bytes, then.held, limits.size_ratio)]

    def note_unheld(self) -> tuple[Note, ...]:
        """Return nothing: who leaves the size out knows it."""
        return ()
