"""The highest rate that still meets the budget, by bisection over runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from edgeopt.measurement.load.result import LoadResult, LoadStatus
from edgeopt.measurement.statistics.budget import Verdict

_LEAST_PROBE_S = 30.0


@dataclass(frozen=True, slots=True)
class Probe:
    """One run at one rate."""

    rate_per_s: float
    result: LoadResult

    @property
    def passes(self) -> bool:
        """Whether the budget is proven at this rate; an undecided or invalid run proves nothing."""
        return self.result.status is LoadStatus.VALID and self.result.budget.verdict is Verdict.PASS


@dataclass(frozen=True, slots=True)
class Capacity:
    """The highest rate that passed, and every run on the way: the curve of latency over load."""

    rate_per_s: float | None
    """None: not even the lowest rate passed."""
    probes: tuple[Probe, ...]
    """Probes in rising order of the rate."""
    note: str = ""
    """Why the answer may be less than the truth."""


def probe_seconds(rate_per_s: float, max_miss_ratio: float, *, least_s: float = _LEAST_PROBE_S) -> float:
    """Return how long a run must last to prove the budget with one miss in it, at least `least_s`.

    Args:
        rate_per_s: Of all streams together, above zero.
        max_miss_ratio: Share of frames that may miss, 0 < ratio < 1.
        least_s: Least length, seconds.

    Source: 4.744 is where a Poisson count of at most 1 has probability 5 %.
    """
    return max(least_s, math.ceil(4.744 / max_miss_ratio) / rate_per_s)


def find_capacity(
    run_at_rate: Callable[[float], LoadResult],
    *,
    low: float,
    high: float,
    tolerance_ratio: float = 0.02,
    most_probes: int = 12,
) -> Capacity:
    """Bisect to the highest rate that passes.

    Where `low` fails it is halved and where `high` passes it is doubled, up to five times each.

    Args:
        run_at_rate: Runs at a rate and returns its figures; what the rate counts is its own affair.
        low: A rate that should pass, above zero.
        high: A rate that should fail, for example the throughput of the closed loop.
        tolerance_ratio: Ends when the rates that pass and fail are this close, over the one that passes.
        most_probes: Ends after so many runs.

    Raises:
        ValueError: Unless 0 < low < high.
    """
    if not 0 < low < high < math.inf:
        raise ValueError(f"need 0 < low < high, got {low} and {high}")
    search = _Search(run_at_rate, most_probes)
    passed, failed = search.bracket(low, high)
    while passed and failed and failed - passed > tolerance_ratio * passed and search.may_go_on:
        middle = (passed + failed) / 2
        passed, failed = (middle, failed) if search.passes(middle) else (passed, middle)
    probes = tuple(sorted(search.probes, key=lambda probe: probe.rate_per_s))
    return Capacity(passed, probes, _note(probes, passed, failed, tolerance_ratio))


class _Search:
    """Runs, counted."""

    def __init__(self, run_at_rate: Callable[[float], LoadResult], most: int) -> None:
        self._run_at_rate, self._most = run_at_rate, most
        self.probes: list[Probe] = []

    @property
    def may_go_on(self) -> bool:
        return len(self.probes) < self._most

    def passes(self, rate_per_s: float) -> bool:
        self.probes.append(Probe(rate_per_s, self._run_at_rate(rate_per_s)))
        return self.probes[-1].passes

    def bracket(self, low: float, high: float) -> tuple[float | None, float | None]:
        """Return the highest rate that passed and the lowest above it that failed."""
        passed = failed = None
        rates = [low / 2**k for k in range(6)]
        while passed is None and rates and self.may_go_on:
            rate = rates.pop(0)
            passed, failed = (rate, failed) if self.passes(rate) else (None, rate)
        rates = [high * 2**k for k in range(6)]
        while passed is not None and failed is None and rates and self.may_go_on:
            rate = rates.pop(0)
            passed, failed = (rate, None) if self.passes(rate) else (passed, rate)
        return passed, failed


def _note(probes: tuple[Probe, ...], passed: float | None, failed: float | None, tolerance_ratio: float) -> str:
    if failed is None:
        return f"every rate up to {passed:.4g} per second passed"
    doubt = _doubt(next(probe.result for probe in probes if probe.rate_per_s == failed))
    if passed is None:
        return f"no rate down to {failed:.4g} per second passed{doubt and ': '}{doubt}"
    if doubt:
        return f"{failed:.4g} per second is not disproven: {doubt}"
    if failed - passed > tolerance_ratio * passed:
        return f"the truth lies between {passed:.4g} and {failed:.4g} per second: more runs would narrow it"
    return ""


def _doubt(result: LoadResult) -> str:
    """Return why a run that did not pass has not failed either; empty if it has."""
    if result.status is LoadStatus.INVALID:
        return result.reasons[0]
    undecided = result.status is LoadStatus.VALID and result.budget.verdict is Verdict.INCONCLUSIVE
    return f"{result.budget.n} frames are too few to decide" if undecided else ""
