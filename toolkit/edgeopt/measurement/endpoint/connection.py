"""Where a server is, and a connection to it whose parts are timed: name, connect, TLS, first and last byte of a reply.

The standard library alone: what is measured is the server and the way to it, not a client library. A part was there
when the network handed it over: what one read brings came at one time, however long its lines then take to be parsed.
"""

from __future__ import annotations

import io
import json
import math
import os
import select
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from time import perf_counter_ns
from typing import Any
from urllib.parse import urlsplit

from edgeopt.errors import EdgeoptError, UnavailableError
from edgeopt.system.text import short

_MOST_READ = 1 << 16
"""Bytes of one read: more than a server writes at once, or a record of TLS holds."""
UNSENT = 1 << 14
"""Bytes that may wait in the kernel while a request is sent. Without a bound it takes megabytes at once, and the time
that the network needs for them would be taken for the server's. What is under way is not bounded: no link is slowed."""
MOST_REPLY, _MOST_HEAD = 1 << 29, 1 << 20
"""Bytes of a reply, and of its head with all that a server says before it: what is longer does not end."""
_MOST_TIMEOUTS = 5
"""A reply that goes on for so many timeouts does not end either, though it never pauses for a whole one."""
_MOST_JSON = 1 << 27
"""Bytes of JSON that are read: the objects made of them take twenty times as much."""
_MOST_STAGES, _LONGEST_STAGE = 32, 40
"""Stages that a reply tells of, and letters of the name of one."""
MOST_NUMBER = 1e12
"""Largest count of tokens, or of milliseconds: what a server says beyond it is no such number."""
_GRPC = ("grpc", "grpcs")
_SCHEDULED = Path("/proc/thread-self/schedstat")


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """Where a server is."""

    host: str
    port: int
    path: str
    """Path in front of `/completions`, such as `/v1`."""
    is_encrypted: bool
    key: str = ""
    """Sent as `Authorization: Bearer`; empty: none."""
    is_grpc: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        scheme = f"{'grpc' if self.is_grpc else 'http'}{'s' if self.is_encrypted else ''}"
        return f"{scheme}://{host}:{self.port}{self.path}"


def parse_place(url: str, key: str = "") -> ServerPlace:
    """Return where a server is.

    Args:
        url: Such as `http://127.0.0.1:8000`, which without a path is `/v1`, or `grpc://127.0.0.1:8001`.
        key: Of the server.

    Raises:
        EdgeoptError: If it is no such address.
    """
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
    except ValueError as error:
        raise EdgeoptError(f"{short(url)} is no address", remedy="write http://127.0.0.1:8000") from error
    is_known = parts.scheme in ("http", "https", *_GRPC)
    if not is_known or not parts.hostname or parts.query or parts.username:
        remedy = "write http://127.0.0.1:8000, or grpc://127.0.0.1:8001"
        raise EdgeoptError(f"{short(url)} is no address of a server", remedy=remedy)
    is_encrypted = parts.scheme in ("https", "grpcs")
    if parts.scheme in _GRPC:
        if port is None or parts.path.strip("/"):
            problem = f"{short(url)} names no port" if port is None else f"{short(url)}: gRPC has no path"
            raise EdgeoptError(problem, remedy=f"write {parts.scheme}://{parts.hostname}:{port or 8001}")
        return ServerPlace(parts.hostname, port, "", is_encrypted, key, is_grpc=True)
    path = parts.path.rstrip("/").removesuffix("/completions").removesuffix("/chat").removesuffix("/frames")
    return ServerPlace(parts.hostname, port or (443 if is_encrypted else 80), path or "/v1", is_encrypted, key)


@dataclass(frozen=True, slots=True)
class ConnectTimes:
    """Times of a new connection, which are paid once."""

    dns_ns: int
    """Until the host's name was an address."""
    connect_ns: int
    """Until TCP's handshake was over, addresses that nobody answers at included."""
    tls_ns: int
    """The handshake of TLS; 0 where nothing is encrypted."""
    trip_ns: int
    """TCP's handshake with the address that answered: one round trip, answered by the other machine's kernel."""

    @property
    def whole_ns(self) -> int:
        """All of it."""
        return self.dns_ns + self.connect_ns + self.tls_ns


def open_socket(
    place: ServerPlace, timeout_s: float, protocols: tuple[str, ...] = ()
) -> tuple[socket.socket, ConnectTimes]:
    """Return a connection, and what each part of making it took.

    Args:
        place: Where the server is.
        timeout_s: For each part.
        protocols: Offered in the handshake of TLS, such as `h2`.

    Raises:
        OSError: If nobody answers there, or its certificate is not trusted.
    """
    context = _context(protocols, os.environ.get("SSL_CERT_FILE", "")) if place.is_encrypted else None
    begun_ns = perf_counter_ns()
    addresses = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
    resolved_ns = perf_counter_ns()
    opened, trip_ns, connected_ns = _connect(addresses, timeout_s)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _bound_unsent(opened, UNSENT)
    tls_ns = 0
    if context is not None:
        opened = _encrypted(opened, place.host, context)
        tls_ns = perf_counter_ns() - connected_ns
    return opened, ConnectTimes(resolved_ns - begun_ns, connected_ns - resolved_ns, tls_ns, trip_ns)


def _bound_unsent(opened: socket.socket, size: int) -> None:
    with suppress(OSError, AttributeError):  # Windows has no such bound, nor has every kernel
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, size)


def _connect(addresses: list[Any], timeout_s: float) -> tuple[socket.socket, int, int]:
    """Return a socket at the first address where somebody answers, how long that one took, and when it stood."""
    failure: OSError = OSError("the name has no address")
    for family, kind, protocol, _, address in addresses:
        delayed_ns, before_ns = run_delay_ns(), perf_counter_ns()
        opened = socket.socket(family, kind, protocol)
        try:
            opened.settimeout(timeout_s)
            opened.connect(address)
        except OSError as error:
            opened.close()
            failure = error
        else:
            now_ns = perf_counter_ns()
            connected_ns = now_ns - min(run_delay_ns() - delayed_ns, now_ns - before_ns)
            return opened, connected_ns - before_ns, connected_ns
    raise failure


@cache
def _context(protocols: tuple[str, ...], trusted: str) -> ssl.SSLContext:
    """Return what certificates are judged by; reading those that are trusted takes longer than a handshake."""
    del trusted  # the file that OpenSSL reads; another one gives another context
    context = ssl.create_default_context()
    if protocols:
        context.set_alpn_protocols(list(protocols))
    return context


def _encrypted(opened: socket.socket, host: str, context: ssl.SSLContext) -> socket.socket:
    try:
        return context.wrap_socket(opened, server_hostname=host)
    except BaseException:
        opened.close()
        raise


class EndlessError(OSError):
    """A reply is longer than any answer."""


class _Reads(io.RawIOBase):
    """Bytes from the network, with the times at which the first and the last of them came."""

    def __init__(self, raw: io.RawIOBase, timeout_s: float | None) -> None:
        """Take a connection, and how long it waits for each read."""
        self._raw, self.at_ns, self.first_ns, self.count = raw, perf_counter_ns(), 0, 0
        self._ends_ns = self.at_ns + _MOST_TIMEOUTS * (timeout_s or math.inf) * 1e9
        self.most_bytes = _MOST_HEAD

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        count: int | None = self._raw.readinto(buffer)
        self.at_ns = perf_counter_ns()
        self.first_ns = self.first_ns or self.at_ns
        self.count += count or 0
        if self.count > self.most_bytes:
            raise EndlessError
        if self.at_ns > self._ends_ns:
            raise TimeoutError
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class TimedReply(HTTPResponse):
    """A reply that knows when its bytes came."""

    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        """Begin to read."""
        super().__init__(sock, *args, **options)
        self.reads = _Reads(self.fp.detach(), sock.gettimeout())
        self.fp = io.BufferedReader(self.reads, _MOST_READ)

    def begin(self) -> None:
        """Read the head.

        Raises:
            OSError: If it is none, or does not come in time, or does not end.
        """
        super().begin()
        self.reads.most_bytes = MOST_REPLY

    def body(self) -> bytes:
        """Return all of it.

        Raises:
            OSError: If it breaks off, does not come in time, or does not end.
            HTTPException: If it has another form than its head says.
        """
        if self.length is not None and self.length > MOST_REPLY:
            raise EndlessError
        try:
            return self.read()
        except (ValueError, ArithmeticError, MemoryError) as error:  # parts whose lengths are none
            raise HTTPException from error


class TimedConnection(HTTPConnection):
    """A connection over HTTP that knows what each part of making it took."""

    response_class = TimedReply

    def __init__(self, place: ServerPlace, timeout_s: float) -> None:
        """Prepare; nothing is connected yet."""
        super().__init__(place.host, place.port, timeout=timeout_s)
        self._place, self._timeout_s = place, timeout_s
        self.default_port = 443 if place.is_encrypted else 80  # what `Host` leaves out
        self.times = ConnectTimes(0, 0, 0, 0)

    def connect(self) -> None:
        """Connect.

        Raises:
            OSError: If nobody answers there.
        """
        self.sock, self.times = open_socket(self._place, self._timeout_s)

    def wait_until_sent(self) -> None:
        """Return when the kernel has sent everything, where it can tell."""
        _bound_unsent(self.sock, 1)  # a socket is then ready when nothing waits
        with suppress(OSError, ValueError):
            select.select([], [self.sock], [], self._timeout_s)
        _bound_unsent(self.sock, UNSENT)


class NoHttpError(OSError):
    """Somebody answers, and not with HTTP."""


def why(error: BaseException) -> str:
    """Return why a request failed, alike for alike reasons."""
    if isinstance(error, TimeoutError):
        return "no reply in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ConnectionError) and isinstance(error, HTTPException):
        return "the connection closed without a reply"
    if isinstance(error, NoHttpError):
        return "what answers is no HTTP"
    if isinstance(error, EndlessError):
        return "the reply does not end"
    if isinstance(error, OSError):
        return str(error.strerror or type(error).__name__).lower()
    return "the reply broke off" if isinstance(error, HTTPException) else f"the reply is no stream of events: {error}"


def unreachable(place: ServerPlace, error: BaseException) -> UnavailableError:
    """Return the error of a server that cannot be reached at all."""
    remedy = "start it, or correct the address"
    if isinstance(error, ssl.SSLCertVerificationError):
        remedy = "trust it with SSL_CERT_FILE=ca.pem in front of the command, or use the name that it was made for"
    elif isinstance(error, ssl.SSLError):
        remedy = f"it speaks no TLS there: write {'grpc' if place.is_grpc else 'http'}:// in front"
    elif isinstance(error, NoHttpError):
        remedy = "correct the address; in front of a port of gRPC write grpc://"
    elif isinstance(error, socket.gaierror):
        remedy = "correct the host's name"
    return UnavailableError(f"no server answers at {place}: {why(error)}", remedy=remedy)


def read_json(body: bytes) -> Any:
    """Return what a body of JSON holds.

    Raises:
        ValueError: If it is none.
    """
    if len(body) > _MOST_JSON:
        raise ValueError(f"it is JSON of more than {_MOST_JSON >> 20} MiB")
    try:
        return json.loads(body)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def server_timing(header: str) -> dict[str, float]:
    """Return the durations that `Server-Timing` gives, in milliseconds by name; what is no duration is left out."""
    stages = dict[str, float]()
    for text in header.split(",")[:_MOST_STAGES]:
        name, *parts = (part.strip() for part in text.split(";"))
        duration = next((part[4:] for part in parts if part.startswith("dur=")), "")
        with suppress(ValueError):
            if name and len(name) <= _LONGEST_STAGE and 0 <= float(duration) < MOST_NUMBER:
                stages[name] = float(duration)
    return stages


def run_delay_ns() -> int:
    """Return how long this thread was ready to run and did not, in nanoseconds, as Linux counts it; elsewhere 0.

    What wakes a server on the same machine, a send or a new connection, may lose the processor to it, and then returns
    when the server is done, milliseconds after the bytes were gone.
    """
    with suppress(OSError, ValueError, IndexError):
        return int(_SCHEDULED.read_bytes().split()[1])
    return 0
