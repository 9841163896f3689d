"""Facts of a workload, which `inspect` returns whatever its kind, with one JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from edgeopt.errors import Note


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadFacts:
    """Facts of a workload; a kind of workload adds its own in a dataclass below this one."""

    notes: tuple[Note, ...] = ()
    """Reasons why it may not run here, and parts that were not looked at."""

    def as_json(self) -> dict[str, Any]:
        """Return plain values, those of `edgeopt inspect --format json`."""
        return asdict(self)
