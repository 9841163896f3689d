"""The result of `bench`, whatever the kind of workload: one JSON of it, and one exit code."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from edgeopt.errors import EXIT_PASS, Note
from edgeopt.measurement.bench.finding import Finding
from edgeopt.measurement.resources.trust import Trust
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.statistics.budget import Verdict, worst_of
from edgeopt.system.machine.environment import Environment

SCHEMA = 3


@dataclass(frozen=True, slots=True)
class JudgedLimit:
    """One limit, and what the measured times prove about it."""

    name: str
    """As a reader knows it: `budget`, `prompts of 128 tokens`."""
    verdict: Verdict
    detail: str
    """The counts, without the verdict."""

    def __str__(self) -> str:
        return f"{self.verdict.upper()}: {self.detail}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult(ABC):
    """The measurement of a workload; a kind of workload adds its own figures in a dataclass below this one."""

    kind: ClassVar[str]
    """Name of the kind of workload."""
    environment: Environment
    """The machine that measured, its software, and the workload."""
    notes: tuple[Note, ...] = ()
    """Notes for the user."""
    trust: Trust | None = None
    """Whether the run can be believed; None: nothing was recorded that tells."""
    seconds: float = 0.0
    """How long it all took; 0: nobody counted."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the workload."""

    @property
    @abstractmethod
    def findings(self) -> tuple[Finding, ...]:
        """Findings, the most urgent first."""

    @property
    @abstractmethod
    def judged(self) -> tuple[JudgedLimit, ...]:
        """The limits on which the verdict rests; none: there was no budget."""

    @abstractmethod
    def own_figures(self) -> dict[str, Any]:
        """Return the figures of the kind as plain values."""

    @property
    def is_gate(self) -> bool:
        """Whether somebody asked for the limits: those that nobody asked for fail nothing."""
        return bool(self.judged)

    @property
    def why(self) -> str:
        """The findings as a paragraph."""
        return " ".join(map(str, self.findings))

    @property
    def verdict(self) -> Verdict | None:
        """FAIL where one limit is missed, PASS where all are met; None: there was no budget."""
        return worst_of([limit.verdict for limit in self.judged]) if self.judged else None

    @property
    def exit_code(self) -> int:
        """0 met, or no gate; 2 missed, proven; 3 not decided; 4 where a noisy machine blocks the gate."""
        return self.gate(self.verdict) if self.is_gate and self.verdict else EXIT_PASS

    def gate(self, verdict: Verdict) -> int:
        """Return the exit code of a verdict on this machine."""
        return self.trust.gate(verdict.exit_code) if self.trust else verdict.exit_code

    def raw_files(self) -> Mapping[str, Samples | str]:
        """Return what is written beside the figures, by file name: raw samples, or a text."""
        return {}

    def _fields_as_json(self) -> dict[str, Any]:
        """Return the fields of the kind as plain values, for a kind whose fields are all its figures."""
        all_kinds = {each.name for each in fields(BenchResult)}
        return {name: value for name, value in asdict(self).items() if name not in all_kinds}

    def as_json(self) -> dict[str, Any]:
        """Return plain values; the raw samples are in files beside them."""
        return {
            "schema": SCHEMA,
            "kind": self.kind,
            "name": self.name,
            **self.own_figures(),
            "judged": [asdict(limit) for limit in self.judged],
            "budget_asked": self.is_gate,
            "exit_code": self.exit_code,
            "trust": asdict(self.trust) if self.trust else None,
            "findings": [asdict(finding) for finding in self.findings],
            "diagnosis": self.why,
            "notes": [asdict(note) for note in self.notes],
            "seconds": self.seconds,
            "environment": self.environment.to_json(),
        }
