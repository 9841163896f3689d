"""`check` of a model that answers frames."""

from __future__ import annotations

from edgeopt.measurement.accuracy.evaluate import Progress
from edgeopt.measurement.check.result import CheckReport
from edgeopt.measurement.check.run import check
from edgeopt.measurement.check.summary import summarize
from edgeopt.workloads.frames.options import FrameCheck

__all__ = ["summarize", "work"]


def work(source: str, options: FrameCheck, tell: Progress | None) -> CheckReport:
    """Check it against its baseline, or write that."""
    return check(source, target=options.target, recipe=options.recipe, options=options, tell=tell)
