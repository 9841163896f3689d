"""One thing that measured figures show, and how a reader sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from edgeopt.report.document import Value

Figures = TypeVar("Figures")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that the figures show, and what to do about it: words, a command, or first the one, then the other."""

    rule: str
    what: str
    """One sentence without its full stop."""
    evidence: str
    """The figures it rests on."""
    do: str = ""
    """Advice in words; empty where the command is all."""
    command: str = ""
    """Command to type after the advice; empty where words are all."""

    def __str__(self) -> str:
        return f"{self.what} ({self.evidence})."


def apply_rules(rules: Iterable[Callable[[Figures], Finding | None]], figures: Figures) -> tuple[Finding, ...]:
    """Return what each rule finds in the figures, in the order of the rules: the most urgent first."""
    return tuple(finding for rule in rules if (finding := rule(figures)) is not None)


def show_findings(findings: Iterable[Finding]) -> tuple[Value, ...]:
    """Return what stands out, each with what to do and what to run, a line each."""
    lines: list[Value] = []
    for finding in findings:
        lines += [Value("why", finding.what), Value("do", finding.do), Value("run", finding.command, is_command=True)]
    return tuple(finding for finding in lines if finding.text)


def first_command(findings: Iterable[Finding]) -> str:
    """Return the command of the first finding that needs nothing else; empty where there is none."""
    return next((finding.command for finding in findings if finding.command and not finding.do), "")
