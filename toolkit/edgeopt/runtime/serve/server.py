"""The server itself: a port, an event loop, an end that waits for answers, and clients that stall cut off."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any
from weakref import WeakKeyDictionary

import uvicorn

from edgeopt.errors import EdgeoptError, UnavailableError
from edgeopt.runtime.serve.limits import Limits

_LOOK_S = 0.5
_KEEP_ALIVE_S = 15
_LOCAL_NAMES = ("127.0.0.1", "localhost", "[::1]")


def open_port(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Args:
        host: A name or an address of this machine.
        port: 0: any that is free.

    Raises:
        EdgeoptError: If the host is none.
        UnavailableError: If the port is taken.
    """
    try:
        kind, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError) as error:
        raise EdgeoptError(
            f"{host!r} is no address of this machine", remedy="write --host 127.0.0.1, or 0.0.0.0 for all"
        ) from error
    opened = socket.socket(kind, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # named: else asyncio sets no TCP_NODELAY
    try:
        if sys.platform != "win32":  # there it would share a port that is taken
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen(128)
    except OSError as error:
        opened.close()
        raise UnavailableError(
            f"port {port} of {host} cannot be used: {error.strerror or error}",
            remedy="end what uses it, or write --port 0 for one that is free",
        ) from error
    opened.setblocking(False)
    return opened


def address_of(listening: socket.socket, *, is_encrypted: bool = False) -> str:
    """Return how a client calls the server: `http://127.0.0.1:8000`."""
    host, port = listening.getsockname()[:2]
    return f"{'https' if is_encrypted else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


@dataclass(frozen=True, slots=True)
class Certificate:
    """The certificate and key that a server proves itself with, in PEM."""

    file: Path
    """File of the certificate, with the chain behind it."""
    key: Path | None = None
    """None: it lies in the same file."""

    def require(self) -> None:
        """Raise unless both can be used.

        Raises:
            EdgeoptError: If one of them is missing, damaged or encrypted, or they do not belong together.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.file, self.key, password=lambda: "")  # nobody is there to be asked
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            named = f"{self.file}{f' with {self.key}' if self.key else ''}"
            why = error.reason if isinstance(error, ssl.SSLError) else getattr(error, "strerror", "")
            raise EdgeoptError(
                f"{named} is no certificate with its key: {(why or 'it cannot be read').lower().replace('_', ' ')}",
                remedy="name --cert and --cert-key in PEM, the key not encrypted; or put a proxy before the server",
            ) from error


def names_of(listening: socket.socket, host: str) -> Collection[str] | None:
    """Return the names under which a server that only this machine reaches is called; None: others reach it."""
    address = ipaddress.ip_address(listening.getsockname()[0].partition("%")[0])
    return {*_LOCAL_NAMES, host.lower()} if address.is_loopback else None


class Server:
    """Runs an app until it is told to stop."""

    def __init__(self, limits: Limits, beat: Callable[[], object], certificate: Certificate | None = None) -> None:
        """Prepare.

        Args:
            limits: On connections and on the end.
            beat: Called twice a second, in a thread.
            certificate: Connections are encrypted with it; None: they are not.
        """
        self._limits, self._beat, self._certificate = limits, beat, certificate
        self._server: Any = None
        self._is_stopped = False
        self._stalls = _Stalls(limits.stalled_s)

    @asynccontextmanager
    async def lifespan(self, _: Any) -> AsyncIterator[None]:
        """Look after connections and the model while the app runs."""
        looking = asyncio.ensure_future(self._look())
        try:
            yield
        finally:
            looking.cancel()
            with suppress(asyncio.CancelledError):
                await looking

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            self._stalls.cut(self._server.server_state.connections, monotonic())
            await asyncio.to_thread(self._beat)

    def run(self, app: Any, listening: socket.socket) -> None:
        """Serve until SIGTERM, Ctrl-C or `stop`; answers on their way are finished, a second Ctrl-C ends them."""
        certificate = self._certificate
        config = uvicorn.Config(
            app,
            ssl_certfile=certificate.file if certificate else None,
            ssl_keyfile=certificate.key if certificate else None,
            http="h11",
            ws="none",
            loop="asyncio",
            lifespan="on",
            log_config=None,
            log_level="critical",  # a client's nonsense is the client's, and fills no log here
            access_log=False,
            server_header=False,
            limit_concurrency=self._limits.connections,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=max(1, round(self._limits.grace_s)),
        )
        self._server = server = uvicorn.Server(config)

        server.handle_exit = lambda *_: self.stop()  # uvicorn's own raises the signal again when all is over
        server.should_exit = self._is_stopped
        server.run(sockets=[listening])

    def stop(self) -> None:
        """End it, from any thread; a second call ends answers that are on their way."""
        is_second, self._is_stopped = self._is_stopped, True
        if self._server is not None:
            self._server.force_exit = is_second
            self._server.should_exit = True


class _Stalls:
    """Connections that neither bring the rest of a request nor take what is there for them."""

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self._seen = WeakKeyDictionary[Any, tuple[Any, float]]()

    def cut(self, connections: Collection[Any], now_s: float) -> None:
        for connection in list(connections):
            mark = self._mark(connection)
            before = self._seen.get(connection)
            if mark is None or before is None or before[0] != mark:
                self._seen[connection] = (mark, now_s)
            elif now_s - before[1] > self._after_s:
                connection.transport.abort()

    def _mark(self, connection: Any) -> Any:
        """Return what stays the same while a connection stalls; None while it does not."""
        if waiting := connection.transport.get_write_buffer_size():
            return ("takes nothing", waiting)
        cycle = connection.cycle
        is_asked = cycle is not None and not cycle.response_complete
        is_kept = connection.timeout_keep_alive_task is not None
        return None if is_asked or is_kept else ("asks nothing",)
