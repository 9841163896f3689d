"""Guards that `check` has for every kind of workload; those of one kind are in `guards.py` of its folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from edgeopt.errors import Note
from edgeopt.measurement.check.result import CheckResult, CheckVerdict, judge_size
from edgeopt.measurement.sides import Baselined, CheckedSides, CheckGuard, Tell
from edgeopt.recipes.default_limits import Check


@dataclass(frozen=True, slots=True)
class SizeGuard:
    """Guards the size."""

    size_bytes: int | None
    """Bytes of the model with its external data; None: its kind tells none."""

    def hold(self, tell: Tell | None) -> int | None:
        """Return the size in bytes; None: there is none to hold."""
        del tell
        return self.size_bytes

    def read(self, held: Any) -> int:
        """Return the size in bytes."""
        return int(held)

    def judge(self, then: Baselined, limits: Check, tell: Tell | None) -> list[CheckResult]:
        """Judge the size, which is no estimate."""
        del tell
        if self.size_bytes is None:
            return [CheckResult("size", CheckVerdict.SKIPPED, None, None, "no size is known", "")]
        return [judge_size(self.size_bytes, then.held, limits.size_ratio)]

    def note_unheld(self) -> tuple[Note, ...]:
        """Return nothing: who leaves the size out knows it."""
        return ()


def guards_of(sides: CheckedSides) -> dict[str, CheckGuard]:
    """Return the guards of every kind, then those of this one, by the name that `--skip` takes."""
    return {**{name: make(sides) for name, make in _MAKERS.items()}, **sides.guards}


def _guard_size(sides: CheckedSides) -> SizeGuard:
    return SizeGuard(sides.facts[-1].size_bytes)


_MAKERS: Mapping[str, Callable[[CheckedSides], CheckGuard]] = {"size": _guard_size}
"""Makes each guard of the workload that is checked; the names stand in `CHECKS_OF_ALL` too, behind the times."""
