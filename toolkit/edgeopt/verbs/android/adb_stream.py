"""One connection to the adb server of this machine, and what is believed of what comes over it: a bounded part of it.

A server may be no adb, and a phone no phone: whatever they send ends in bounded time and memory.
"""

from __future__ import annotations

import math
import os
import socket
import time
from types import TracebackType

from edgeopt.errors import EdgeoptError, UnavailableError
from edgeopt.system.machine.place import PlaceLostError
from edgeopt.system.text import printable, short, shorten

_HOST, _PORT = "127.0.0.1", "5037"
_CONNECT_S = 5.0
_SILENT_S = 300.0
"""Seconds without a byte after which a phone counts as gone: opening a large model is as silent as that."""
_HEX_DIGITS = frozenset(b"0123456789abcdefABCDEF")
_LONGEST_MESSAGE = 1 << 22
"""Bytes of a message, four times what adb sends at most."""
_TOLD = 200
"""Columns of what a server says, in a message."""


class UnpluggedError(PlaceLostError):
    """A phone that was reached before is gone."""


class AdbStream:
    """One connection to the server."""

    def __init__(self, whose: str) -> None:
        """Connect.

        Args:
            whose: What is at the other end, in words.

        Raises:
            UnavailableError: If there is no server.
        """
        host = os.environ.get("ANDROID_ADB_SERVER_ADDRESS") or _HOST
        port = os.environ.get("ANDROID_ADB_SERVER_PORT") or _PORT
        if not port.isdecimal():
            raise EdgeoptError(
                f"ANDROID_ADB_SERVER_PORT is {short(port)}", remedy=f"write a number, or leave it out for {_PORT}"
            )
        self.whose = whose
        try:
            self.socket = socket.create_connection((host, int(port)), _CONNECT_S)
        except (OSError, OverflowError) as error:
            raise UnavailableError(
                f"no adb server answers at {host}:{port}: {error}",
                remedy="start it: adb start-server (adb is in Android's platform tools; Debian: apt install adb)",
            ) from error
        self.socket.settimeout(_SILENT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a sample is several messages
        self._longest_s = math.inf
        self._until_s = math.inf

    def limit(self, seconds: float) -> None:
        """Let whatever comes from now on take no longer: a server that sends a byte now and then holds nobody."""
        self._longest_s = seconds
        self._until_s = time.monotonic() + seconds

    def __enter__(self) -> AdbStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes. Raises as `read`."""
        try:
            self.socket.sendall(data)
        except OSError as error:
            raise self.lost(str(error)) from error

    def read(self, count: int) -> bytes:
        """Return so many bytes.

        Raises:
            UnpluggedError: If the connection ends before.
        """
        parts = list[bytes]()
        while count:
            if (left_s := self._until_s - time.monotonic()) <= 0:
                raise self._late()
            self.socket.settimeout(min(_SILENT_S, left_s))
            try:
                part = self.socket.recv(min(count, 1 << 20))
            except TimeoutError as error:
                # How long it was silent says nothing where the limit came first: a busy phone was cut off in a pause.
                raise (
                    self._late() if left_s < _SILENT_S else self.lost(f"nothing came for {_SILENT_S:.0f} s")
                ) from error
            except OSError as error:
                raise self.lost(str(error)) from error
            if not part:
                raise self.lost("the connection ended")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def _late(self) -> UnpluggedError:
        return self.lost(f"it has not ended after {self._longest_s:g} s")

    def lost(self, why: str) -> UnpluggedError:
        """Return the error of a connection that ended."""
        return UnpluggedError(f"{self.whose} is gone: {why}", remedy="look at its cable, and at `adb devices`")

    def ask(self, service: str) -> None:
        """Ask for a service.

        Raises:
            EdgeoptError: If it is refused, in the words of who refuses.
        """
        request = service.encode()
        self.send(b"%04x" % len(request) + request)
        answer = self.read(4)
        if answer == b"OKAY":
            return
        said = self.text() if answer == b"FAIL" else f"it answers {answer!r}"
        lines = said.splitlines() or ["it says nothing"]
        raise UnavailableError(f"{self.whose}: {said_in(lines[0])}", remedy="look at `adb devices`")

    def text(self) -> str:
        """Return a text with its length before it."""
        size = self.read(4)
        if set(size) - _HEX_DIGITS:
            raise self.lost(f"it answers {size!r}, which is no adb")
        return self.read(int(size, 16)).decode("utf-8", "replace")

    def allowed(self, size: int) -> int:
        """Return the size of a message; a longer one than adb sends is none.

        Raises:
            UnpluggedError: If it is longer.
        """
        if size > _LONGEST_MESSAGE:
            raise self.lost("it sends what is no adb")
        return size


def said_in(text: str) -> str:
    """Return what a server or a phone says as a terminal may show it."""
    return shorten(printable(text), _TOLD)
