"""`compare` of models that answer frames."""

from __future__ import annotations

from edgeopt.measurement.accuracy.evaluate import Progress
from edgeopt.measurement.compare.result import Comparison
from edgeopt.measurement.compare.run import compare
from edgeopt.measurement.compare.summary import summarize
from edgeopt.workloads.frames.options import FrameCompare

__all__ = ["summarize", "work"]


def work(sources: tuple[str, ...], options: FrameCompare, tell: Progress | None) -> Comparison:
    """Run them in turns, the first as the standard."""
    return compare(*sources, target=options.target, recipe=options.recipe, options=options, out=options.out, tell=tell)
