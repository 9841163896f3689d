"""`bench` of a server: requests from its client's side."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from edgeopt.measurement.bench.view import BenchView
from edgeopt.measurement.endpoint.bench import bench_endpoint
from edgeopt.measurement.endpoint.connection import parse_place
from edgeopt.measurement.endpoint.frames.bench import bench_frames
from edgeopt.measurement.endpoint.frames.exchange import FrameEndpoint
from edgeopt.measurement.endpoint.frames.result import FrameServerResult
from edgeopt.measurement.endpoint.frames.summary import view_server
from edgeopt.measurement.endpoint.loading import parse_server_load
from edgeopt.measurement.endpoint.options import EndpointOptions
from edgeopt.measurement.endpoint.probing import find_frames
from edgeopt.measurement.endpoint.result import EndpointResult
from edgeopt.measurement.endpoint.summary import view_endpoint
from edgeopt.measurement.sides import Tell
from edgeopt.workloads import refuse_others
from edgeopt.workloads._serving import read_key
from edgeopt.workloads.endpoint.options import FOR_FRAMES, FOR_TEXTS, EndpointBench

__all__ = ["prepare", "view"]


@contextmanager
def prepare(source: str, options: EndpointBench) -> Iterator[ServerBlock]:
    """Find out what the server answers, and whether the options are for that."""
    wishes = replace(
        options,
        url=source,
        key=read_key(options.key_from),
        limits_ms=dict(options.budget.limits_ms) if options.budget else None,
        price_per_s=options.per_s(),
    )
    place = parse_place(source, wishes.key)
    parse_server_load(options.load)  # before anybody is asked
    server = find_frames(place, options.model, options.timeout_s)
    if server is None:
        refuse_others(options, FOR_TEXTS, "servers of language models")
    else:
        refuse_others(options, FOR_FRAMES, "servers of frames")
    yield ServerBlock(server, wishes)


@dataclass(frozen=True, slots=True)
class ServerBlock:
    """A server, and the requests to it."""

    frames: FrameEndpoint | None
    """Interface by which it answers frames; None: it writes texts."""
    options: EndpointOptions

    def run(self, tell: Tell | None) -> EndpointResult | FrameServerResult:
        """Ask it."""
        hears = tell or (lambda *_: None)
        if self.frames is None:
            return bench_endpoint(self.options, tell=hears)
        return bench_frames(self.frames, self.options, tell=hears)


def view(result: EndpointResult | FrameServerResult) -> BenchView:
    """Return what a reader sees of its figures."""
    return view_server(result) if isinstance(result, FrameServerResult) else view_endpoint(result)
