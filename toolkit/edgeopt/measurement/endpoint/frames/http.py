"""Frames over HTTP: one request, its stages, and what the interfaces over HTTP have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.client import BadStatusLine, HTTPException
from time import perf_counter_ns
from typing import Protocol

from edgeopt.graph.tensors import Tensors
from edgeopt.measurement.endpoint.connection import (
    UNSENT,
    NoHttpError,
    ServerPlace,
    TimedConnection,
    TimedReply,
    read_json,
    run_delay_ns,
    server_timing,
    why,
)
from edgeopt.measurement.endpoint.frames.exchange import FrameExchange, Sample, StageClock

OK = 200
_PART = 1 << 16
"""Bytes that are handed to the kernel at a time: what waits there may be bounded between two sends, not within one."""
_MOST_TEXT = 200
WRONG = (ValueError, KeyError, TypeError, AttributeError, IndexError, ArithmeticError, RecursionError, MemoryError)
"""Raised by what reads a reply that is no answer."""


@dataclass(frozen=True, slots=True)
class HttpMessage:
    """A request with a body."""

    path: str
    headers: Mapping[str, str]
    body: bytes


class HttpDialect(Protocol):
    """How an interface over HTTP writes a sample and reads an answer."""

    @property
    def smallest_path(self) -> str:
        """The path of the smallest request."""
        ...

    def encode(self, sample: Sample, encoding: str) -> HttpMessage:
        """Return a sample as a request."""
        ...

    def decode(self, headers: Mapping[str, str], body: bytes) -> Tensors | None:
        """Return the tensors of a reply, whose headers are in lower case; None: its answer is none.

        Raises:
            ValueError: If it is no whole answer.
        """
        ...


class _Upload:
    """A body in parts, each of which is handed over when the socket takes more; it knows when its last one was."""

    def __init__(self, body: bytes) -> None:
        self._body, self.last_ns, self.delayed_ns = memoryview(body), perf_counter_ns(), run_delay_ns()

    def __iter__(self) -> Iterator[memoryview]:
        size = len(self._body)
        last = max(size - UNSENT, 0)
        for begin in range(0, last, _PART):
            yield self._body[begin : min(begin + _PART, last)]
        self.last_ns, self.delayed_ns = perf_counter_ns(), run_delay_ns()
        yield self._body[last:]


class HttpFrames:
    """One connection over HTTP."""

    def __init__(self, place: ServerPlace, timeout_s: float, dialect: HttpDialect | None = None) -> None:
        """Prepare; nothing is connected yet. Without a dialect only `get` and `post` are for use."""
        self._place, self._timeout_s, self._dialect = place, timeout_s, dialect
        self._connection: TimedConnection | None = None

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def ask(self, sample: Sample, encoding: str, begun_ns: int = 0) -> FrameExchange:
        """Return one answer, as `FrameClient` has it."""
        clock, dialect = StageClock(begun_ns), self._dialect
        assert dialect is not None
        try:
            message = dialect.encode(sample, encoding)
            clock.serialized_ns, clock.request_bytes = perf_counter_ns(), len(message.body)
            reply = self._send("POST", message, clock)
            body = reply.body()
            clock.first_ns, clock.last_ns, clock.reply_bytes = reply.reads.first_ns, reply.reads.at_ns, len(body)
            headers = {name.lower(): value for name, value in reply.getheaders()}
            if reply.will_close:
                self.close()
            if reply.status != OK:
                return clock.end(problem=_status(reply.status, body))
            clock.server_ms = server_timing(headers.get("server-timing", ""))
            return clock.end(dialect.decode(headers, body))
        except (OSError, HTTPException) as error:
            self.close()
            return clock.end(problem=why(error))
        except WRONG as error:
            self.close()
            return clock.end(problem=f"the reply is no answer: {wrong(error)}")

    def round_trip_ns(self) -> int:
        """Return what the smallest request takes on an open connection.

        Raises:
            OSError: If nobody answers.
        """
        assert self._dialect is not None
        path = self._dialect.smallest_path
        if self._connection is None:
            self.get(path)
        begun_ns = perf_counter_ns()
        self.get(path)
        return perf_counter_ns() - begun_ns

    def get(self, path: str) -> tuple[int, bytes]:
        """Return status and body of a path.

        Raises:
            OSError: If nobody answers, or with something else than HTTP.
        """
        return self.request("GET", HttpMessage(path, {}, b""))

    def request(self, method: str, message: HttpMessage) -> tuple[int, bytes]:
        """Return status and body of a request.

        Raises:
            OSError: If nobody answers, or with something else than HTTP.
        """
        try:
            reply = self._send(method, message, StageClock(0))
            body = reply.body()
        except HTTPException as error:
            self.close()
            raise error if isinstance(error, OSError) else NoHttpError from error
        except OSError:
            self.close()
            raise
        if reply.will_close:
            self.close()
        return reply.status, body

    def _send(self, method: str, message: HttpMessage, clock: StageClock) -> TimedReply:
        """Send a request, over a new connection where the old one is gone; return the reply when its head is there."""
        headers = {**message.headers, **({"Authorization": f"Bearer {self._place.key}"} if self._place.key else {})}
        if self._connection is not None:
            try:
                return self._sent(self._connection, method, message, headers, clock)
            except (ConnectionError, BadStatusLine):  # the server closed it while nobody asked, as it may
                self.close()
        self._connection = TimedConnection(self._place, self._timeout_s)
        self._connection.connect()
        clock.connect = self._connection.times
        return self._sent(self._connection, method, message, headers, clock)

    @staticmethod
    def _sent(
        connection: TimedConnection, method: str, message: HttpMessage, headers: Mapping[str, str], clock: StageClock
    ) -> TimedReply:
        upload = _Upload(message.body)
        length = {"Content-Length": str(len(message.body))} if message.body else {}
        clock.ready_ns = perf_counter_ns()
        connection.request(method, message.path, iter(upload) if message.body else None, {**headers, **length})
        connection.wait_until_sent()
        clock.sent_ns = perf_counter_ns()
        clock.sent_ns -= min(run_delay_ns() - upload.delayed_ns, clock.sent_ns - upload.last_ns)
        reply = connection.getresponse()
        assert isinstance(reply, TimedReply)
        return reply


def wrong(error: BaseException) -> str:
    """Return what is wrong with a reply, in one short line."""
    text = f"it has no {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
    return " ".join(text.split())[:_MOST_TEXT]


def _status(status: int, body: bytes) -> str:
    """Return why a server refused: its status, and its own words where it has some."""
    try:
        value = read_json(body)
        words = value.get("error", value.get("detail", "")) if isinstance(value, dict) else ""
        text = str(words.get("message", words) if isinstance(words, dict) else words)
    except ValueError:
        text = ""
    text = " ".join(text.split())[:_MOST_TEXT]
    return f"status {status}{f': {text}' if text else ''}"
