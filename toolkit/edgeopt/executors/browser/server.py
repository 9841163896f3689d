"""The page's side of the loopback: its files, the engine's, models, and a socket to the page and to each worker.

Every address begins with a secret, so that no other page and no other user of this machine reads a model. The headers
isolate the page from others, without which browsers give neither threads nor a clock finer than 0.1 ms.
"""

from __future__ import annotations

import http
import logging
import queue
import re
import secrets
import threading
from pathlib import Path
from socket import create_server
from typing import Any

from edgeopt.system.declared.optional import require

_PAGE = Path(__file__).parent / "page"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".wasm": "application/wasm",
}
_ENGINE_FILE = re.compile(r"ort[\w.-]*\.(mjs|wasm)")
_HEADERS = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Connection": "close",  # the library answers one request a connection
}
_log = logging.getLogger(__name__)
_log.addHandler(logging.NullHandler())
_log.propagate = False  # connections end when workers do: that is no error to print
PAGE = "page"
"""The path of the page's own socket."""


class PageServer:
    """A server on the loopback for one browser."""

    def __init__(self, engine: Path) -> None:
        """Begin to serve.

        Args:
            engine: The folder of onnxruntime-web's modules.

        Raises:
            MissingDependencyError: If websockets is not installed.
        """
        self.models: dict[str, bytes] = {}
        """Models by the key of the worker that reads them."""
        self._engine, self._secret = engine, secrets.token_urlsafe(16)
        self._sockets: dict[str, queue.SimpleQueue[Any]] = {}
        self._held: dict[Any, threading.Event] = {}
        sync = require("websockets.sync.server", extra="browser", purpose="running a model in a browser")
        listening = create_server(("127.0.0.1", 0))
        self._host = f"127.0.0.1:{listening.getsockname()[1]}"
        self._server = sync.serve(
            self._hold,
            sock=listening,
            origins=[f"http://{self._host}"],  # a page of another site may open sockets to any address
            process_request=self._answer,
            compression=None,
            max_size=None,
            ping_interval=None,  # a worker that computes answers none
            logger=_log,
        )
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        """The address of the page."""
        return f"http://{self._host}/{self._secret}/index.html"

    def expect(self, path: str) -> queue.SimpleQueue[Any]:
        """Return where the socket will be put that connects to a path, such as `page` and `workers/1`."""
        self._sockets[path] = queue.SimpleQueue()
        return self._sockets[path]

    def close(self) -> None:
        """Close all sockets, whereupon page and workers leave, and serve no more."""
        for socket in tuple(self._held):
            self.release(socket)
        self._server.shutdown()

    def _hold(self, socket: Any) -> None:
        """Hand a socket to who expects it, and hold it until it is released: the library closes what returns."""
        if expected := self._sockets.pop("/".join(self._parts(socket.request.path)), None):
            released = self._held[socket] = threading.Event()
            expected.put(socket)
            released.wait()
            del self._held[socket]

    def release(self, socket: Any) -> None:
        """Close a socket that `expect` returned; a second time does nothing."""
        if released := self._held.get(socket):
            released.set()

    def _parts(self, path: str) -> list[str]:
        """Return the parts of a path behind the secret; nothing where it is another."""
        secret, *parts = path.partition("?")[0].strip("/").split("/")
        return parts if secrets.compare_digest(secret.encode(), self._secret.encode()) else []

    def _answer(self, connection: Any, request: Any) -> Any:
        """Answer a request for a file; None: it is for a socket."""
        if request.headers.get_all("Host") != [self._host]:  # a name that leads here is another site's
            return connection.respond(http.HTTPStatus.NOT_FOUND, "")
        match self._parts(request.path):
            case ["ort", name] if _ENGINE_FILE.fullmatch(name):
                return self._file(connection, self._engine / name)
            case ["models", key] if (model := self.models.get(key)) is not None:
                return _response(connection, model, "application/octet-stream")
            case ["alive"]:
                response = connection.respond(http.HTTPStatus.OK, "")
                response.headers["Cross-Origin-Resource-Policy"] = "cross-origin"  # a file asks, which is elsewhere
                return response
            case [name] if Path(name).suffix in _TYPES:
                return self._file(connection, _PAGE / name)
            case [*parts] if "/".join(parts) in self._sockets:
                return None
            case _:
                return connection.respond(http.HTTPStatus.NOT_FOUND, "")

    @staticmethod
    def _file(connection: Any, path: Path) -> Any:
        if not path.is_file():
            return connection.respond(http.HTTPStatus.NOT_FOUND, "")
        return _response(connection, path.read_bytes(), _TYPES[path.suffix])


def _response(connection: Any, data: bytes, kind: str) -> Any:
    response = connection.respond(http.HTTPStatus.OK, "")
    response.body = data
    for name, value in {**_HEADERS, "Content-Type": kind, "Content-Length": str(len(data))}.items():
        if name in response.headers:
            del response.headers[name]  # a header may stand several times: setting adds one
        response.headers[name] = value
    return response
