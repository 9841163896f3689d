"""One frame sent to a server and its answer, in stages; what each interface of such servers offers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Final, Protocol

from edgeopt.graph.tensors import Frame, Tensors, TensorSpec
from edgeopt.measurement.endpoint.connection import ConnectTimes, ServerPlace

Sample = Frame | Tensors
"""One request's content: a picture, or tensors by name."""
CONNECTED_NS: Final = ConnectTimes(0, 0, 0, 0)
"""The times of a connection that was there already."""


@dataclass(frozen=True, slots=True)
class FrameExchange:
    """One answer, or why there is none; each stage in nanoseconds."""

    begun_ns: int
    """When it should have been sent, by `perf_counter_ns`."""
    started_ns: int
    """When its sender had time for it."""
    end_ns: int
    """Since it should have been sent, until its answer was read."""
    serialize_ns: int = 0
    """Until the sample was bytes."""
    connect: ConnectTimes = CONNECTED_NS
    """Times of a connection that had to be made for it."""
    send_ns: int = 0
    """Until the kernel had sent the request; where it does not tell, until it had taken it."""
    wait_ns: int = 0
    """Nanoseconds from there to the first byte of the reply: the way there and back, and the server."""
    download_ns: int = 0
    """Nanoseconds from the first byte to the last."""
    parse_ns: int = 0
    """Until the bytes were an answer."""
    request_bytes: int = 0
    """Body of the request."""
    reply_bytes: int = 0
    """Body of the reply."""
    server_ms: Mapping[str, float] = field(default_factory=dict)
    """Stages as the server says them (`Server-Timing`), by name."""
    outputs: Tensors | None = None
    """The answer, where it is tensors."""
    problem: str = ""
    """Why there is no whole answer, in a few words that are alike for alike reasons; empty: there is."""

    @property
    def is_whole(self) -> bool:
        """Whether it was answered to its end."""
        return not self.problem


@dataclass(slots=True)
class StageClock:
    """The instants of one exchange while it lasts."""

    begun_ns: int
    started_ns: int = field(default_factory=perf_counter_ns)
    serialized_ns: int = 0
    ready_ns: int = 0
    """When a connection stood."""
    sent_ns: int = 0
    first_ns: int = 0
    """When the first byte of the reply was there."""
    last_ns: int = 0
    connect: ConnectTimes = CONNECTED_NS
    request_bytes: int = 0
    reply_bytes: int = 0
    server_ms: Mapping[str, float] = field(default_factory=dict)

    def end(self, outputs: Tensors | None = None, problem: str = "") -> FrameExchange:
        """Return the exchange, which is over now."""
        now_ns = perf_counter_ns()
        begun_ns = self.begun_ns or self.started_ns
        if problem:
            return FrameExchange(begun_ns, self.started_ns, now_ns - begun_ns, problem=problem)
        return FrameExchange(
            begun_ns,
            self.started_ns,
            now_ns - begun_ns,
            serialize_ns=self.serialized_ns - self.started_ns,
            connect=self.connect,
            send_ns=self.sent_ns - self.ready_ns,
            wait_ns=max(self.first_ns - self.sent_ns, 0),
            download_ns=max(self.last_ns - max(self.first_ns, self.sent_ns), 0),
            parse_ns=now_ns - self.last_ns,
            request_bytes=self.request_bytes,
            reply_bytes=self.reply_bytes,
            server_ms=self.server_ms,
            outputs=outputs,
        )


class FrameClient(Protocol):
    """One connection, which stays open from request to request; one thread uses it."""

    def ask(self, sample: Sample, encoding: str, begun_ns: int = 0) -> FrameExchange:
        """Return one answer; nothing that goes wrong is raised.

        Args:
            sample: What is sent.
            encoding: One of the server's.
            begun_ns: When it should have been sent, by `perf_counter_ns`; 0: now.
        """
        ...

    def round_trip_ns(self) -> int:
        """Return what the smallest request takes on an open connection.

        Raises:
            OSError: If nobody answers.
        """
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class FrameEndpoint(Protocol):
    """A server as one interface shows it."""

    @property
    def place(self) -> ServerPlace:
        """Where it is."""
        ...

    @property
    def interface(self) -> str:
        """Return its name for a reader: `KServe v2 over HTTP`."""
        ...

    @property
    def model(self) -> str:
        """The model that is asked."""
        ...

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Return the inputs of the model, free dimensions as None; empty: a file, or it does not tell."""
        ...

    @property
    def takes_files(self) -> bool:
        """Whether a picture goes as a file."""
        ...

    @property
    def encodings(self) -> tuple[str, ...]:
        """How samples may be sent, the most usual one first."""
        ...

    @property
    def smallest(self) -> str:
        """The smallest request, for a reader: `GET /healthz`."""
        ...

    @property
    def tells_sending(self) -> bool:
        """Whether a client sees when its request was sent."""
        ...

    def client(self) -> FrameClient:
        """Return a connection of its own; nothing is connected yet."""
        ...
