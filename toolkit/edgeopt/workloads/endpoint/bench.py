"""`bench` of a server."""

from __future__ import annotations

from dataclasses import replace

from edgeopt.measurement.endpoint.bench import bench_endpoint
from edgeopt.measurement.endpoint.loading import Tell
from edgeopt.measurement.endpoint.result import EndpointResult as Result
from edgeopt.measurement.endpoint.summary import summarize_endpoint as summarize
from edgeopt.report.formats import write_pages
from edgeopt.workloads._serving import read_key
from edgeopt.workloads.endpoint.options import EndpointBench

__all__ = ["summarize", "work"]


def work(source: str, options: EndpointBench, tell: Tell | None) -> Result:
    """Measure it from the client's side, and write what was asked for."""
    endpoint_bench = replace(
        options,
        url=source,
        key=read_key(options.key_from),
        limits_ms=dict(options.budget.limits_ms) if options.budget else None,
        price_per_s=options.per_s(),
    )
    result = bench_endpoint(endpoint_bench, tell=tell or (lambda *_: None))
    if options.out is not None:
        write_pages(summarize(result), options.out, "bench")
    return result
