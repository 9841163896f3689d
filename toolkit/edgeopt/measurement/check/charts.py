"""The result of `check` as a chart."""

from __future__ import annotations

from edgeopt.measurement.check.result import CheckReport, CheckVerdict
from edgeopt.report.figures import Axis, Emphasis, Estimate, Figure, Intervals, Row

_EMPHASES = {CheckVerdict.FAIL: Emphasis.CHOSEN, CheckVerdict.PASS: Emphasis.PLAIN}


def ratio_charts(report: CheckReport) -> tuple[Figure, ...]:
    """Return the checks that are ratios to the baseline, and how much is allowed of each."""
    rows = tuple(
        Row(
            result.name,
            Estimate(result.measured, result.low, result.high),
            ((result.verdict, f"{result.measured:.3f} of the baseline's"), ("allowed", f"{result.allowed:.3f}")),
            result.allowed,
            _EMPHASES.get(result.verdict, Emphasis.FAINT),
        )
        for result in report.results
        if result.unit == "x" and result.measured is not None and result.allowed is not None
    )
    if not rows:
        return ()
    return (
        Intervals(
            title="Against the baseline",
            text="With 95 % intervals; the red mark is what is allowed, left of it passes.",
            axis=Axis("ratio", "times the baseline's"),
            rows=rows,
        ),
    )
