"""Facts of a workload, which `inspect` returns whatever its kind, with one JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from edgeopt.errors import Note
from edgeopt.report.result import Result, fields_as_json
from edgeopt.system.machine.environment import Environment


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadFacts(Result):
    """Facts of a workload; a kind of workload adds its own in a dataclass below this one."""

    command: ClassVar[str] = "inspect"
    kind: str = ""
    """Name of the kind of workload; the verb says it."""
    environment: Environment | None = field(default=None, compare=False)
    """The machine that looked, and its software; the verb says it. Facts of two machines may be equal."""
    notes: tuple[Note, ...] = ()
    """Reasons why it may not run here, and parts that were not looked at."""

    def own_figures(self) -> dict[str, Any]:
        """Return plain values."""
        return fields_as_json(self)
