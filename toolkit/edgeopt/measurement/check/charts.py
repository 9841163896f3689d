"""The result of `check` as a chart."""

from __future__ import annotations

from edgeopt.measurement.check.result import CheckReport, CheckVerdict
from edgeopt.report.figures import Axis, Emphasis, Estimate, Figure, Intervals, Row

_EMPHASES = {CheckVerdict.FAIL: Emphasis.CHOSEN, CheckVerdict.PASS: Emphasis.PLAIN}


def ratio_charts(report: CheckReport) -> tuple[Figure, ...]:
    """Return the checks that are ratios to the baseline, and how much is allowed of each."""
    rows = tuple(
        Row(
            one.name,
            Estimate(one.measured, one.low, one.high),
            ((one.verdict, f"{one.measured:.3f} of the baseline's"), ("allowed", f"{one.allowed:.3f}")),
            one.allowed,
            _EMPHASES.get(one.verdict, Emphasis.FAINT),
        )
        for one in report.results
        if one.unit == "x" and one.measured is not None and one.allowed is not None
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
