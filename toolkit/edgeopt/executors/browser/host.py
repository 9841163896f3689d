"""The browsers of this process: one for each provider, started when it is first needed, a worker for each session."""

from __future__ import annotations

import atexit
import contextlib
import io
import itertools
import json
import math
import os
import queue
import threading
import time
from collections.abc import Mapping
from typing import Any

from edgeopt.errors import Missing, StepError, UnavailableError
from edgeopt.executors.browser.chromium import REMEDY, WEBGPU, WEBGPU_SOFTWARE, Chromium
from edgeopt.executors.browser.server import PAGE, PageServer
from edgeopt.executors.browser.web_package import NAME, find_package
from edgeopt.system.declared.optional import require
from edgeopt.system.processes.messages import Message, read_message, write_message

_START_SECONDS = 30.0
"""Seconds until a browser's page has spoken; a model is tried in another process first, which waits as long."""
_NOT_AGAIN_SECONDS = 300.0
"""So long after a browser that hung none is started by this process."""
_LOOK_SECONDS = 0.5
"""How often who waits for a socket looks whether the browser still runs."""


class HangingError(UnavailableError):
    """A browser was started and does nothing."""


class PageWorker:
    """One worker of a page: a session of onnxruntime-web in a thread and a WebAssembly memory of its own."""

    def __init__(self, host: Host, key: str, socket: Any) -> None:
        self._host, self._key, self._socket = host, key, socket
        self._is_lost = False

    def ask(self, message: Message, *, timeout_s: float) -> Message:
        """Send a message and return the answer.

        Raises:
            StepError: If the browser ends or does not answer in time; this worker answers no more then.
        """
        if self._is_lost:
            raise StepError("the browser's worker has ended", remedy="open the model again")
        made = io.BytesIO()
        write_message(made, message)
        self._is_lost = True  # an interrupt too: its answer would be taken for that of the next message
        try:
            self._socket.send(made.getbuffer())
            data = self._socket.recv(timeout=timeout_s)
        except TimeoutError:
            problem = f"the browser did not answer within {timeout_s:g} s"
            raise StepError(problem, remedy="try a smaller model") from None
        except (EOFError, OSError, self._host.closed_error) as error:
            raise StepError(
                f"the browser's worker has ended{self._host.last_words()}",
                remedy="the model may need more memory than a page has (4 GB): try a smaller one",
            ) from error
        self._is_lost = False
        return read_message(io.BytesIO(data))

    @property
    def program(self) -> str:
        """The browser and the engine, with their versions."""
        return self._host.program

    def add_model(self, model: bytes) -> str:
        """Serve a model to this worker; return its key."""
        self._host.server.models[self._key] = model
        return self._key

    def drop_model(self) -> None:
        """Serve it no more: the worker has it."""
        self._host.server.models.pop(self._key, None)

    def close(self) -> None:
        """End the worker and free its memory."""
        self._is_lost = True
        self.drop_model()
        self._host.end(self._key, self._socket)


class Host:
    """One browser with its server."""

    def __init__(self, provider: str) -> None:
        """Start both.

        Raises:
            UnavailableError: If the browser or onnxruntime-web is not installed, or the page does not come up.
            MissingDependencyError: If websockets is not installed.
        """
        require("websockets", extra="browser", purpose="running a model in a browser")
        package = find_package()
        if isinstance(package, Missing):
            raise UnavailableError(package.reason, remedy=package.remedy)
        from websockets.exceptions import ConnectionClosed

        self.closed_error = ConnectionClosed
        self.server = PageServer(package.files)
        self._keys = itertools.count(1)
        self._browser: Chromium | None = None
        self._page: Any = None
        try:
            hello = self._start(provider)
            self.program = f"{hello['browser']}, {NAME} {package.version}"
            self.has_gpu = bool(hello["has_gpu"])
            """Whether the page finds one; without it WebGPU is computed by software."""
            if provider == WEBGPU and not hello["has_adapter"]:
                self.end_browser()
                self._start(WEBGPU_SOFTWARE)
        except BaseException:
            self.close()
            raise

    def _start(self, kind: str) -> Mapping[str, bool | str]:
        """Start the browser; return what its page finds of WebGPU."""
        page, ends = self.server.expect(PAGE), time.monotonic() + _START_SECONDS
        self._browser = Chromium(self.server.address, kind)
        self._page = None
        self._page = self._wait_for(page, ends)
        try:
            hello = json.loads(self._page.recv(timeout=max(ends - time.monotonic(), 0.1)))
            return {
                "browser": str(hello["browser"]),
                "has_gpu": hello["has_gpu"] is True,
                "has_adapter": hello["has_adapter"] is True,
            }
        except TimeoutError as error:
            raise HangingError(f"the browser's page does not answer{self.last_words()}", remedy=REMEDY) from error
        except (self.closed_error, ValueError, KeyError, TypeError, RecursionError) as error:
            raise UnavailableError(f"the browser's page does not answer{self.last_words()}", remedy=REMEDY) from error

    def _wait_for(self, expected: queue.SimpleQueue[Any], ends: float) -> Any:
        """Return the socket that page or worker opens until an instant of the monotonic clock."""
        while True:
            try:
                return expected.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                if not self.is_alive:
                    raise UnavailableError(f"the browser has ended{self.last_words()}", remedy=REMEDY) from None
                if time.monotonic() > ends:
                    raise HangingError(
                        f"the browser opened no page within {_START_SECONDS:g} s", remedy=REMEDY
                    ) from None

    @property
    def is_alive(self) -> bool:
        """Whether the browser runs, and its page with it: one that ran out of memory leaves an empty window."""
        has_page = self._page is None or self._page.protocol.close_code is None  # the worker's socket may close before
        return has_page and self._browser is not None and not self._browser.has_ended()

    def last_words(self) -> str:
        """Return what the browser wrote last, to end a sentence with; nothing where it runs."""
        said = "" if self._browser is None or self.is_alive else self._browser.last_line()
        return f": {said}" if said else ""

    def start_worker(self) -> PageWorker:
        """Return a new worker of the page.

        Raises:
            UnavailableError: If the browser has ended.
        """
        key = str(next(self._keys))
        expected = self.server.expect(f"workers/{key}")
        self._tell("start", key)
        return PageWorker(self, key, self._wait_for(expected, time.monotonic() + _START_SECONDS))

    def end(self, key: str, socket: Any) -> None:
        """End a worker, and close its socket."""
        self.server.release(socket)
        self._tell("end", key)

    def _tell(self, word: str, key: str) -> None:
        with contextlib.suppress(self.closed_error):  # who waits for a worker sees it
            self._page.send(json.dumps({"word": word, "key": key}))

    def close(self) -> None:
        """End browser and server."""
        self.end_browser()
        self.server.close()

    def end_browser(self) -> None:
        """End the browser alone: as Python ends, its threads do, the server's too."""
        if self._browser is not None:
            self._browser.close()


_hosts: dict[str, Host] = {}
_hung: dict[str, tuple[float, HangingError]] = {}
"""Provider -> when its browser hung, by the monotonic clock, and how."""
_turn = threading.Lock()


def host_of(provider: str) -> Host:
    """Return this process's browser for a provider, started anew where it has ended. Raises as `Host`."""
    with _turn:
        host = _hosts.get(provider)
        if host is not None and not host.is_alive:
            host.close()
            host = None
        if host is None:
            _hosts.pop(provider, None)
            began_s, error = _hung.get(provider, (-math.inf, None))
            if error is not None and time.monotonic() - began_s < _NOT_AGAIN_SECONDS:
                raise HangingError(error.problem, remedy=error.remedy)
            try:
                host = _hosts[provider] = Host(provider)
            except HangingError as hanging:
                _hung[provider] = time.monotonic(), hanging
                raise
        return host


def open_worker(provider: str) -> PageWorker:
    """Return a new worker of this process's browser for a provider. Raises as `Host`."""
    host = host_of(provider)
    try:
        return host.start_worker()
    except UnavailableError:
        if host.is_alive:
            raise
        return host_of(provider).start_worker()  # it was about to end when it was looked at


def _forget_in_child() -> None:
    """Leave the browsers to the process that started them: a fork has none of the threads that serve them."""
    global _turn
    _hosts.clear()
    _turn = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


@atexit.register
def close_hosts() -> None:
    """End all browsers of this process."""
    with _turn:
        while _hosts:
            _hosts.popitem()[1].end_browser()
