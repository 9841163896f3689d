"""`bench` of a pipeline."""

from __future__ import annotations

from edgeopt.measurement.load.run import Tell
from edgeopt.measurement.pipelines.bench import bench_pipeline
from edgeopt.measurement.pipelines.result import PipelineResult as Result
from edgeopt.measurement.pipelines.summary import summarize
from edgeopt.workloads.pipeline.options import PipelineBench

__all__ = ["summarize", "work"]


def work(source: str, options: PipelineBench, tell: Tell | None) -> Result:
    """Measure it, and write what was asked for."""
    return bench_pipeline(source, target=options.target, code=options.code, options=options, out=options.out, tell=tell)
