"""`bench` of a model that answers frames."""

from __future__ import annotations

from edgeopt.measurement.bench.result import BenchResult
from edgeopt.measurement.bench.run import bench
from edgeopt.measurement.bench.summary import summarize
from edgeopt.measurement.load.run import Tell
from edgeopt.workloads.frames.options import FrameBench

__all__ = ["summarize", "work"]


def work(source: str, options: FrameBench, tell: Tell | None) -> BenchResult:
    """Measure it, and write what was asked for."""
    return bench(source, target=options.target, recipe=options.recipe, options=options, out=options.out, tell=tell)
