"""Drawn answers as a page in a browser on this machine: no window is needed, and nobody else can open it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import cv2

from edgeopt.errors import UnavailableError
from edgeopt.runtime.outputs import Shown
from edgeopt.system.text import plural

_QUALITY: Final = 80
"""Quality of a JPEG, of 100."""
_WAIT_S: Final = 0.5
_PAGE: Final = Path(__file__).with_name("page.html")
"""Whole: it loads nothing but its own frames and figures."""
_BOUNDARY: Final = "edgeopt-frame"


class View:
    """Serves the newest drawn frame. It is encoded once, and only while somebody looks."""

    def __init__(self, figures: Callable[[], dict[str, Any]], port: int = 0) -> None:
        """Open a port of the loopback.

        Args:
            figures: Returns what the page shows beside the picture, as JSON.
            port: 0: any that is free.

        Raises:
            UnavailableError: If the port is taken.
        """
        self.figures = figures
        self._changed = threading.Condition()
        self._jpeg, self._number, self._viewers, self._seen = b"", 0, 0, 0
        self._newest: Shown | None = None
        self._is_closed = False
        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        except OSError as error:
            raise UnavailableError(
                f"port {port} of 127.0.0.1 cannot be used: {error.strerror}", remedy="choose another port"
            ) from error
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_port}/"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="edgeopt-view", daemon=True
        )
        self._thread.start()

    def put(self, shown: Shown) -> None:
        """Show a result to whoever looks."""
        with self._changed:
            self._newest = shown
            if self._viewers:
                self._encode()

    def _encode(self) -> None:
        shown, self._newest = self._newest, None
        if shown is not None:
            done, data = cv2.imencode(".jpg", shown.drawn, [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])
            if done:
                self._jpeg, self._number = data.tobytes(), self._number + 1
                self._changed.notify_all()

    def close(self) -> str:
        """Close the port."""
        with self._changed:
            was_closed, self._is_closed = self._is_closed, True
            self._changed.notify_all()
        if not was_closed:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
        return f"{self.address} was opened {plural(self._seen, 'time')}"

    def frames(self) -> Any:
        """Yield each new JPEG, the newest one first, until the view closes; a slow viewer loses frames."""
        with self._changed:
            self._viewers, self._seen, number = self._viewers + 1, self._seen + 1, 0
            self._encode()
        try:
            while True:
                with self._changed:
                    while self._number == number and not self._is_closed:
                        self._changed.wait(_WAIT_S)
                    if self._number == number:
                        return
                    number, jpeg = self._number, self._jpeg
                yield jpeg
        finally:
            with self._changed:
                self._viewers -= 1


def _handler(view: View) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Three paths: the page, its frames, its figures."""

        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            """Answer a request of this machine; a page of elsewhere that was led here by its name gets nothing."""
            if self.headers.get("Host", "").rpartition(":")[0] not in ("127.0.0.1", "localhost"):
                self._send(403, "text/plain", b"this page is opened as 127.0.0.1 only\n")
            elif self.path == "/":
                self._send(200, "text/html; charset=utf-8", _PAGE.read_bytes())
            elif self.path == "/figures.json":
                self._send(200, "application/json", json.dumps(view.figures(), allow_nan=False).encode())
            elif self.path == "/frames":
                self._stream()
            else:
                self._send(404, "text/plain", b"there is no such page\n")

        def _send(self, code: int, kind: str, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def _stream(self) -> None:
            self.close_connection = True
            self.send_response(200)
            self.send_header("Content-Type", f"multipart/x-mixed-replace; boundary={_BOUNDARY}")
            self.send_header("Cache-Control", "no-store")
            self.send_header("Connection", "close")
            self.end_headers()
            frames = view.frames()
            try:
                for jpeg in frames:
                    head = f"--{_BOUNDARY}\r\nContent-Type: image/jpeg\r\nContent-Length: {len(jpeg)}\r\n\r\n"
                    self.wfile.write(head.encode() + jpeg + b"\r\n")
            except OSError:
                pass  # whoever looked has gone
            finally:
                frames.close()

        def log_message(self, *args: Any) -> None:
            """Print nothing: the terminal shows the stream."""

    return Handler
