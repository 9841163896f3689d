"""The result of `bench`, whatever the kind of workload: one JSON of it, and one exit code."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from edgeopt.errors import EXIT_PASS, Note
from edgeopt.measurement.bench.finding import Finding
from edgeopt.measurement.resources.trust import Trust, TrustLevel
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.statistics.budget import Verdict, worst_of
from edgeopt.report.result import Result
from edgeopt.system.machine.environment import Environment

RAW = "samples.npz"
"""File of raw samples where a result has one such file."""


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
class BenchResult(Result):
    """The measurement of a workload; a kind of workload adds its own figures in a dataclass below this one."""

    command: ClassVar[str] = "bench"
    kind: ClassVar[str]
    """Name of the kind of workload."""
    over_network: ClassVar[bool] = False
    """Whether times hold the way to another machine, which is no part of the workload."""
    environment: Environment
    """The machine that measured, its software, and the workload."""
    notes: tuple[Note, ...] = ()
    """Notes for the user."""
    trust: Trust | None = None
    """Whether the run can be trusted; None: nothing was recorded about that."""
    seconds: float = 0.0
    """How long the whole measurement took; 0: not recorded."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the workload."""

    @property
    @abstractmethod
    def findings(self) -> tuple[Finding, ...]:
        """Findings about the workload, the most urgent first."""

    @property
    @abstractmethod
    def judged(self) -> tuple[JudgedLimit, ...]:
        """The limits on which the verdict rests; empty without a budget."""

    @abstractmethod
    def own_figures(self) -> dict[str, Any]:
        """Return the figures of this kind of workload as plain values."""

    @property
    def is_gate(self) -> bool:
        """Whether the user set the limits; only then a missed limit changes the exit code."""
        return bool(self.judged)

    @property
    def why(self) -> str:
        """The findings as a paragraph."""
        return " ".join(map(str, self.findings))

    @property
    def verdict(self) -> Verdict | None:
        """FAIL if a limit is missed, PASS if all are met; None without a budget."""
        return worst_of([limit.verdict for limit in self.judged]) if self.judged else None

    @property
    def exit_code(self) -> int:
        """0: limits met, or none set; 2: missed, proven; 3: not decided; 4: the machine was too noisy to decide."""
        return self.gate(self.verdict) if self.is_gate and self.verdict else EXIT_PASS

    def gate(self, verdict: Verdict) -> int:
        """Return the exit code of a verdict on this machine."""
        return self.trust.gate(verdict.exit_code) if self.trust else verdict.exit_code

    def raw_files(self) -> Mapping[str, Samples | str]:
        """Return the files that are written beside the figures, by name: raw samples, or a text.

        The first one of samples stands for the run: `compare` and `report` read it again.
        """
        return {}

    @property
    def raw(self) -> str:
        """The file of raw samples that stands for the run when it is read again; empty: none does."""
        return next((name for name, raw in self.raw_files().items() if isinstance(raw, Samples)), "")

    @property
    def verdict_word(self) -> str:
        """The verdict on limits that the user set; of a budget that nobody asked for PASS alone."""
        return self.budget_word if self.is_gate or self.budget_word == "PASS" else ""

    @property
    def budget_word(self) -> str:
        """The verdict, also on a budget that nobody asked for; NOISY or INVALID where the machine allows none."""
        if self.verdict is None:
            return ""
        level = self.trust.level if self.trust else TrustLevel.TRUSTED
        return str(self.verdict if level is TrustLevel.TRUSTED else level).upper()

    def shared_figures(self) -> dict[str, Any]:
        """Return what every kind tells; the raw samples are in files beside the figures."""
        return {
            "name": self.name,
            "over_network": self.over_network,
            "judged": [asdict(limit) for limit in self.judged],
            "budget_asked": self.is_gate,
            "trust": asdict(self.trust) if self.trust else None,
            "raw": self.raw,
            "findings": [asdict(finding) for finding in self.findings],
            "diagnosis": self.why,
            "notes": [asdict(note) for note in self.notes],
            "seconds": self.seconds,
        }
