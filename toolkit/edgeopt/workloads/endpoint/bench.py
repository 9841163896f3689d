"""`bench` of a server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from edgeopt.measurement.endpoint.bench import bench_endpoint
from edgeopt.measurement.endpoint.connection import parse_place
from edgeopt.measurement.endpoint.frames.bench import bench_frames
from edgeopt.measurement.endpoint.frames.result import FrameServerResult
from edgeopt.measurement.endpoint.frames.summary import summarize_frames
from edgeopt.measurement.endpoint.loading import Tell, parse_server_load
from edgeopt.measurement.endpoint.probing import find_frames
from edgeopt.measurement.endpoint.result import EndpointResult
from edgeopt.measurement.endpoint.summary import summarize_endpoint
from edgeopt.report.document import Document
from edgeopt.report.formats import write_pages
from edgeopt.workloads import refuse_others
from edgeopt.workloads._serving import read_key
from edgeopt.workloads.endpoint.options import FOR_FRAMES, FOR_TEXTS, EndpointBench

__all__ = ["summarize", "work"]


def work(source: str, options: EndpointBench, tell: Tell | None) -> EndpointResult | FrameServerResult:
    """Measure it from the client's side, and write what was asked for."""
    endpoint_bench = replace(
        options,
        url=source,
        key=read_key(options.key_from),
        limits_ms=dict(options.budget.limits_ms) if options.budget else None,
        price_per_s=options.per_s(),
    )
    place, hears = parse_place(source, endpoint_bench.key), tell or (lambda *_: None)
    parse_server_load(options.load)  # before anybody is asked
    server = find_frames(place, options.model, options.timeout_s)
    result: EndpointResult | FrameServerResult
    if server is None:
        refuse_others(options, FOR_TEXTS, "servers of language models")
        result = bench_endpoint(endpoint_bench, tell=hears)
    else:
        refuse_others(options, FOR_FRAMES, "servers of frames")
        result = bench_frames(server, endpoint_bench, tell=hears)
    if options.out is not None:
        write(result, options.out)
    return result


def write(result: EndpointResult | FrameServerResult, folder: Path) -> None:
    """Write the pages of a result, and the raw samples of frames."""
    write_pages(summarize(result), folder, "bench")
    if isinstance(result, FrameServerResult):
        for times in result.alone:
            times.samples.save(folder / f"samples-{times.encoding}.npz")
        if result.loaded:
            result.loaded.samples.save(folder / "samples-load.npz")


def summarize(result: EndpointResult | FrameServerResult) -> Document:
    """Return what a reader sees."""
    return summarize_frames(result) if isinstance(result, FrameServerResult) else summarize_endpoint(result)
