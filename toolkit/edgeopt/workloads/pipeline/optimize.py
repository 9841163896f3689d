"""`optimize` of a pipeline."""

from __future__ import annotations

from dataclasses import replace

from edgeopt.errors import EdgeoptError
from edgeopt.optimization.pipelines.optimize import optimize_pipeline
from edgeopt.optimization.pipelines.result import JointReport
from edgeopt.optimization.pipelines.summary import summarize
from edgeopt.steps._context import Listener
from edgeopt.workloads import began_of
from edgeopt.workloads.pipeline.options import PipelineOptimize

__all__ = ["summarize", "work"]


def work(source: str, options: PipelineOptimize, listener: Listener | None) -> JointReport:
    """Choose the forms of its models together, and prove the whole."""
    if options.fps is not None:
        if options.budget_ms is not None:
            raise EdgeoptError("--budget and --fps both say how long a frame may take", remedy="give one of them")
        options = replace(options, budget_ms=1000 / options.fps)
    return optimize_pipeline(
        source,
        target=options.target,
        code=options.code,
        out=options.out,
        options=options,
        listener=listener,
        began_s=began_of(listener),
    )
