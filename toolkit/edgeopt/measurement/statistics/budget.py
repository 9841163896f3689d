"""Whether frames keep their budget: proven, disproven, or how many more would decide."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import EXIT_OF, EdgeoptError
from edgeopt.measurement.common_options import MAX_MISS_RATIO
from edgeopt.measurement.statistics.dependence import effective_count, longest_run
from edgeopt.measurement.statistics.distributions import binomial_cdf, lower_bound, upper_bound
from edgeopt.system.text import format_budget

_MOST_FRAMES = 10_000_000  # 4 days at 30 fps: a run that long is no advice


class Verdict(StrEnum):
    """The verdict of the frames about a budget."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"

    @property
    def exit_code(self) -> int:
        """The exit code of a command that ends with this verdict."""
        return EXIT_OF[self.upper()]


def worst_of(verdicts: Collection[Verdict]) -> Verdict:
    """Return FAIL where one verdict is, PASS where all are, and else that it is not decided."""
    if Verdict.FAIL in verdicts:
        return Verdict.FAIL
    return Verdict.PASS if {*verdicts} == {Verdict.PASS} else Verdict.INCONCLUSIVE


@dataclass(frozen=True, slots=True)
class BudgetResult:
    """How often the budget was missed, and what that proves about the true share of misses."""

    verdict: Verdict
    budget_ms: float
    max_miss_ratio: float
    n: int
    n_effective: float
    misses: int
    miss_low_ratio: float
    """One-sided bound: the true share is above it."""
    miss_high_ratio: float
    """One-sided bound: the true share is below it."""
    longest_miss_run: int
    confidence: float
    frames_needed: int | None
    """More frames that would decide if misses stay as rare as now; 0 when decided, None when no run would."""

    @property
    def miss_ratio(self) -> float:
        """Share of frames that missed; 0 without frames."""
        return self.misses / self.n if self.n else 0.0

    def __str__(self) -> str:
        return f"{self.verdict.upper()}: {self.detail}"

    @property
    def detail(self) -> str:
        """The counts, and what they prove at `confidence`, without the verdict."""
        return self.told()

    def told(self, missed: str = "", noun: str = "frames") -> str:
        """Return `detail`.

        Args:
            missed: What else is a miss, behind the budget: ` or lost`; empty: only frames over it are.
            noun: What was counted.
        """
        counts = f"{self.misses} of {self.n} {noun} over {format_budget(self.budget_ms)} ms{missed}"
        failed = self.verdict is Verdict.FAIL
        bound = f"at least {self.miss_low_ratio:.2%}" if failed else f"at most {self.miss_high_ratio:.2%}"
        proof = f"{bound} miss, {100 * self.max_miss_ratio:.4g}% allowed; confidence {100 * self.confidence:.3g}%"
        more = f"; {self.frames_needed} more would decide" if self.frames_needed else ""
        return f"{counts}; {proof}{more}"


def unprovable(max_miss_ratio: float, what: str) -> tuple[bool, str, str]:
    """Return whether no run can prove that such a share misses, that it cannot, and what to write."""
    text = f"no run can prove that {max_miss_ratio:.0%} of the {what} miss a budget"
    return not 0 < max_miss_ratio < 1, text, "write --max-miss 1% or another share between 0 and 100%"


def require_provable(max_miss_ratio: float, what: str) -> None:
    """Raise where no run can prove that such a share misses.

    Raises:
        EdgeoptError: If so.
    """
    is_wrong, text, remedy = unprovable(max_miss_ratio, what)
    if is_wrong:
        raise EdgeoptError(text, remedy=remedy)


def judge_budget(
    frame_ns: NDArray[np.int64],
    budget_ms: float,
    max_miss_ratio: float = MAX_MISS_RATIO,
    *,
    lost: NDArray[np.bool_] | None = None,
    confidence: float = 0.95,
) -> BudgetResult:
    """Judge a series of frames against the time that each may take.

    PASS when the upper Clopper-Pearson bound of the share of misses is at most `max_miss_ratio` (for 1 % this
    is the same as: the upper bound of p99 keeps the budget), FAIL when the lower bound is above it. Misses
    come in bursts, so the counts are scaled to the effective number of frames.

    Args:
        frame_ns: (n,) response times in order of occurrence, without warm-up; may be empty.
        budget_ms: Time per frame, above zero.
        max_miss_ratio: Share of frames that may miss, 0 < ratio < 1.
        lost: (n,) frames that were dropped or failed; each is a miss whatever its time.
        confidence: Of each one-sided bound.
    """
    missed = frame_ns > budget_ms * 1e6
    return _judge(missed if lost is None else missed | lost, budget_ms, max_miss_ratio, confidence)


def _judge(missed: NDArray[np.bool_], budget_ms: float, allowed: float, confidence: float) -> BudgetResult:
    n, misses, worth = len(missed), int(missed.sum()), effective_count(missed)
    scale = worth / n if n else 1.0
    low, high = lower_bound(misses * scale, worth, confidence), upper_bound(misses * scale, worth, confidence)
    verdict = Verdict.PASS if high <= allowed else Verdict.FAIL if low > allowed else Verdict.INCONCLUSIVE
    undecided = verdict is Verdict.INCONCLUSIVE
    return BudgetResult(
        verdict=verdict,
        budget_ms=budget_ms,
        max_miss_ratio=allowed,
        n=n,
        n_effective=worth,
        misses=misses,
        miss_low_ratio=low,
        miss_high_ratio=high,
        longest_miss_run=longest_run(missed),
        confidence=confidence,
        frames_needed=_frames_needed(misses, n, scale, allowed, confidence) if undecided else 0,
    )


def _frames_needed(misses: int, n: int, scale: float, allowed: float, confidence: float) -> int | None:
    """Search the length of a run with this share of misses, in whole frames, that would decide."""
    ratio = misses / n if n else 0.0

    def decides(total: int) -> bool:
        worth = total * scale
        if ratio < allowed:
            return binomial_cdf(math.ceil(ratio * total - 1e-6) * scale, worth, allowed) <= 1 - confidence
        return 1 - binomial_cdf(math.floor(ratio * total + 1e-6) * scale - 1, worth, allowed) <= 1 - confidence

    low, high = n, max(2 * n, 64)
    while not decides(high):
        low, high = high, 2 * high
        if high > _MOST_FRAMES:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if decides(middle) else (middle, high)
    return high - n
