"""The result of a regression gate: one verdict a check, and an exit code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar

from edgeopt.errors import DONE, EXIT_OF, EXIT_PASS, Note
from edgeopt.measurement.accuracy.bootstrap import Drop
from edgeopt.measurement.resources.trust import TrustLevel, told_trust, undecided
from edgeopt.measurement.statistics.ratio import Ratio
from edgeopt.recipes.default_limits import Check
from edgeopt.report.result import Result, fields_as_json
from edgeopt.system.machine.environment import Environment
from edgeopt.tasks import Accuracy


class CheckVerdict(StrEnum):
    """The verdict of one check."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    SKIPPED = "SKIPPED"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check."""

    name: str
    verdict: CheckVerdict
    measured: float | None = None
    """Measured value in `unit`; None: nothing was measured."""
    allowed: float | None = None
    """Limit in `unit`: more is a failure."""
    detail: str = ""
    unit: str = "x"
    """`x` is a ratio to the baseline; else the metric's name, or `nodes`."""
    is_blocked: bool = False
    """Whether only the noise of the machine keeps it from a verdict."""
    low: float | None = None
    high: float | None = None
    """`low` to `high` is the 95 % interval of `measured`; None where it is no estimate."""

    def __str__(self) -> str:
        return f"{self.verdict} {self.name}: {self.detail}"


@dataclass(frozen=True)
class CheckReport(Result):
    """All checks of one run."""

    command: ClassVar[str] = "check"

    name: str
    baseline: str
    results: tuple[CheckResult, ...]
    thresholds: Check
    trust: str
    """TRUSTED, or NOISY or INVALID with the reasons."""
    notes: tuple[Note, ...]
    seconds: float
    """How long it all took."""
    updated: bool = False
    """Whether the baseline was written from this run; nothing was checked then."""
    kind: str = ""
    """Name of the kind of workload."""
    environment: Environment | None = None
    """The machine that checked, its software, and the workload."""

    @property
    def verdict(self) -> str:
        """`FAIL`, `NOISY`, `INCONCLUSIVE`, `PASS`, or `DONE` where the baseline was written."""
        verdicts = {result.verdict for result in self.results}
        if self.updated:
            return DONE
        if CheckVerdict.FAIL in verdicts:
            return "FAIL"
        if any(result.is_blocked for result in self.results):
            return "NOISY"
        is_proven = CheckVerdict.PASS in verdicts and CheckVerdict.INCONCLUSIVE not in verdicts
        return "PASS" if is_proven else "INCONCLUSIVE"

    @property
    def exit_code(self) -> int:
        """0 pass or updated; 2 a check failed, proven; 4 the machine is too noisy to say; 3 not decided."""
        return EXIT_PASS if self.updated else EXIT_OF[self.verdict]

    @property
    def verdict_word(self) -> str:
        """The verdict, as the head tells it."""
        return self.verdict

    def own_figures(self) -> dict[str, Any]:
        """Return plain values."""
        return {**fields_as_json(self), "trust": told_trust(self.trust)}


def judge_time(
    name: str, ratio: Ratio | None, allowed: float, blocked: str = "", why_none: str = "", option: str = "--seconds"
) -> CheckResult:
    """Judge times, or memory, by the interval of their ratio.

    Args:
        name: Of the check.
        ratio: Of the baseline's to these; its margin is what the machine makes of no difference. None: not comparable.
        allowed: The largest share of the baseline's that passes.
        blocked: Why the machine is too noisy for a verdict; empty: it is not.
        why_none: Why there is no ratio.
        option: What makes the interval narrower.
    """
    if ratio is None:
        return CheckResult(name, CheckVerdict.INCONCLUSIVE, None, allowed, why_none)
    measured, low, high = 1 / ratio.speedup, 1 / ratio.high, 1 / ratio.low
    shown = f"{measured:.3f} [{low:.3f}, {high:.3f}] of the baseline's, {allowed:.3f} allowed"
    check = CheckResult(name, CheckVerdict.INCONCLUSIVE, measured, allowed, shown, low=low, high=high)
    if blocked:
        detail = f"{undecided(TrustLevel.NOISY, shown)} ({blocked})"
        return replace(check, detail=detail, is_blocked=True)
    if high <= allowed:
        return replace(check, verdict=CheckVerdict.PASS)
    if low > max(allowed, 1 + ratio.margin):
        return replace(check, verdict=CheckVerdict.FAIL)
    null = f"; the baseline differs from itself by up to {ratio.margin:.1%}" if low > allowed else ""
    detail = f"{shown}{null}; more {option} would decide"
    return replace(check, detail=detail)


def judge_accuracy(drop: Drop | None, now: Accuracy, allowed: float, why_none: str = "") -> CheckResult:
    """Judge an accuracy by the interval of its drop over pictures.

    Args:
        drop: Against the baseline on the same pictures; None: not comparable.
        now: The accuracy itself.
        allowed: The largest drop that passes, in the metric's unit.
        why_none: Why there is no drop.
    """
    if drop is None:
        return CheckResult("accuracy", CheckVerdict.INCONCLUSIVE, None, allowed, why_none, now.metric)
    shown = f"{now} on {now.n} pictures; drop {drop}, {allowed:g} allowed"
    if drop.high <= allowed + 1e-9:
        verdict = CheckVerdict.PASS
    elif drop.low > allowed + 1e-9:
        verdict = CheckVerdict.FAIL
    else:
        verdict, shown = CheckVerdict.INCONCLUSIVE, f"{shown}; more labelled pictures would decide"
    return CheckResult("accuracy", verdict, drop.value, allowed, shown, now.metric)


def judge_agreement(agreement: float, least: float, pictures: int, *, proves: bool) -> CheckResult:
    """Judge how far answers are the baseline's, where no labels are given.

    Args:
        agreement: 0 to 1.
        least: That passes.
        pictures: On which it was judged.
        proves: Whether too little is a failure; else labels could still find the other answers right.
    """
    shown = f"no labels; answers agree in {agreement:.3f} with the baseline's on {pictures} samples, {least:g} asked"
    if agreement >= least:
        verdict = CheckVerdict.PASS
    else:
        verdict, shown = (CheckVerdict.FAIL, shown) if proves else (CheckVerdict.INCONCLUSIVE, f"{shown}: pass --eval")
    return CheckResult("accuracy", verdict, 1 - agreement, 1 - least, shown, "agreement")


def skipped(name: str) -> CheckResult:
    """Return that a check was left out by wish."""
    return CheckResult(name, CheckVerdict.SKIPPED, None, None, "left out with --skip", "")


def judge_size(now_bytes: int, then_bytes: int | None, allowed: float) -> CheckResult:
    """Judge the size of the model, which is no estimate; None: the baseline holds none."""
    if not then_bytes:
        return CheckResult("size", CheckVerdict.INCONCLUSIVE, None, allowed, "the baseline holds no size")
    ratio = now_bytes / then_bytes
    verdict = CheckVerdict.PASS if ratio <= allowed else CheckVerdict.FAIL
    detail = f"{now_bytes} bytes, the baseline's {then_bytes}: {ratio:.3f}, {allowed:.3f} allowed"
    return CheckResult("size", verdict, ratio, allowed, detail)


def judge_placement(
    now: Mapping[str, int], now_off: int, then: Mapping[str, int], then_off: int, allowed: int
) -> CheckResult:
    """Judge how many nodes moved off the device.

    Args:
        now: Nodes by provider; empty where the engine does not say.
        now_off: Nodes elsewhere than on the first provider.
        then: The baseline's.
        then_off: The baseline's.
        allowed: How many more may be elsewhere.
    """
    if not now:
        held = "; the baseline's did" if then else ""
        verdict = CheckVerdict.INCONCLUSIVE if then else CheckVerdict.SKIPPED
        return CheckResult("placement", verdict, None, allowed, f"the engine does not say{held}", "nodes")
    moved = now_off - then_off
    verdict = CheckVerdict.PASS if moved <= allowed else CheckVerdict.FAIL
    shown = ", ".join(f"{count} on {provider}" for provider, count in now.items())
    detail = f"{shown}; {now_off} off the device, the baseline's {then_off}, {allowed} more allowed"
    return CheckResult("placement", verdict, moved, allowed, detail, "nodes")
