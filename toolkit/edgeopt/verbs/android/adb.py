"""The adb server of this machine, which reaches phones: as much of its protocol as is needed.

Sources: Android's own OVERVIEW.TXT, SERVICES.TXT and SYNC.TXT, and shell_protocol.h, in packages/modules/adb. The
package adbutils is not used: where a phone refuses a file it drops the reason, which is how "no space" is told, it
starts a server of its own, and it brings 9 MB.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

from edgeopt.errors import EdgeoptError, UnavailableError
from edgeopt.system.text import short, shorten

_HOST, _PORT = "127.0.0.1", "5037"
_CONNECT_S = 5.0
_SILENT_S = 300.0
"""Seconds without a byte after which a phone counts as gone: opening a large model is as silent as that."""
_CHUNK = 64 << 10
"""Bytes of a file in one message, at most (SYNC.TXT)."""
_REGULAR, _ANY_KIND = 0o100000, 0o170000
_HEAD = struct.Struct("<BI")
_STDOUT, _STDERR, _EXIT = 1, 2, 3
_LONGEST_TEXT = 1 << 16
"""Bytes of what a server says at once."""
_LONGEST_MESSAGE = 1 << 22
"""Bytes of a message, four times what adb sends at most."""
_TOLD = 200
"""Columns of it in a message."""
READY = "device"
"""State of a phone that takes commands."""
_STATES: Mapping[str, tuple[str, str]] = {
    "unauthorized": ("does not trust this machine", "allow USB debugging on its screen"),
    "authorizing": ("does not trust this machine yet", "allow USB debugging on its screen"),
    "offline": ("is offline", "unplug it and plug it in again, or run: adb reconnect"),
    "connecting": ("is still connecting", "try again"),
    "recovery": ("is in recovery mode", "start Android on it"),
    "sideload": ("is in sideload mode", "start Android on it"),
    "bootloader": ("is in its boot loader", "start Android on it"),
}
"""Meaning of the states other than ready, and what ends them."""


class UnpluggedError(UnavailableError):
    """A phone that was reached before is gone."""


class _Stream:
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

    def __enter__(self) -> _Stream:
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
            try:
                part = self.socket.recv(min(count, 1 << 20))
            except TimeoutError as error:
                raise self.lost(f"nothing came for {_SILENT_S:.0f} s") from error
            except OSError as error:
                raise self.lost(str(error)) from error
            if not part:
                raise self.lost("the connection ended")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

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
        raise UnavailableError(f"{self.whose}: {shorten(lines[0], _TOLD)}", remedy="look at `adb devices`")

    def text(self) -> str:
        """Return a text with its length before it."""
        size = self.read(4)
        try:
            count = int(size, 16)
        except ValueError as error:
            raise self.lost(f"it answers {size!r}, which is no adb") from error
        return self.read(min(count, _LONGEST_TEXT)).decode("utf-8", "replace")


def connected() -> dict[str, str]:
    """Return the state of each phone that the server knows, by its serial number.

    Raises:
        UnavailableError: If there is no server.
    """
    with _Stream("the adb server") as stream:
        stream.ask("host:devices")
        rows = (line.partition("\t") for line in stream.text().splitlines())
        return {serial: state.strip() for serial, tab, state in rows if tab}


def choose(serial: str) -> str:
    """Return the serial number of a phone that is ready; of none that is named the only one.

    Raises:
        EdgeoptError: If there is none, several, or it is not ready; the line says which there are.
    """
    states = connected()
    listed = ", ".join(f"{name} ({state})" if state != READY else name for name, state in states.items())
    if not serial:
        serial = os.environ.get("ANDROID_SERIAL", "") or (next(iter(states)) if len(states) == 1 else "")
    if not serial and states:
        raise EdgeoptError(f"several phones are connected: {listed}", remedy="name one: --on adb://SERIAL")
    if serial not in states:
        named = f"no phone {serial} is connected" if serial else "no phone is connected"
        others = f"name one of: {listed}" if states else "connect one, and allow USB debugging on it"
        raise UnavailableError(named, remedy=others)
    state = states[serial]
    if state != READY:
        problem, remedy = _STATES.get(state.split()[0] if state else "", (f"is {short(state)}", "see `adb devices`"))
        raise UnavailableError(f"adb://{serial} {problem}", remedy=remedy)
    return serial


@dataclass(frozen=True, slots=True)
class ShellEnd:
    """The end of a command on a phone."""

    code: int
    printed: bytes
    """Output that nobody took while it ran."""
    complaints: str


class Link:
    """A phone behind the server."""

    def __init__(self, serial: str) -> None:
        """Take a serial number, as `choose` gives it.

        Raises:
            UnavailableError: If it is gone, or its Android is older than 7.
        """
        self.serial = serial
        self.address = f"adb://{serial}"
        with _Stream(self.address) as stream:
            stream.ask(f"host-serial:{serial}:features")
            features = stream.text().split(",")
        if "shell_v2" not in features:
            raise UnavailableError(
                f"{self.address} does not tell how its programs end: its Android is older than 7",
                remedy="take a phone with Android 7 or later",
            )

    @contextmanager
    def _service(self, name: str) -> Iterator[_Stream]:
        try:
            stream = _Stream(self.address)
            stream.ask(f"host:transport:{self.serial}")
        except UnpluggedError:
            raise
        except UnavailableError as error:  # it was there when this object was made
            raise UnpluggedError(error.problem, remedy=error.remedy) from error
        with stream:
            stream.ask(name)
            yield stream

    def shell(self, command: str, take: Callable[[bytes], None] | None = None) -> ShellEnd:
        """Run a command of the phone's shell until it ends. It ends with this connection at the latest.

        Args:
            command: A line of the shell; whoever makes it quotes what is in it.
            take: Takes what it prints, as it comes; None: it is returned.

        Raises:
            UnpluggedError: If the phone is gone before it ends.
        """
        printed, complaints = bytearray(), bytearray()
        with self._service(f"shell,v2,raw:{command}") as stream:
            while True:
                kind, size = _HEAD.unpack(stream.read(_HEAD.size))
                part = stream.read(_allowed(stream, size))
                if kind == _EXIT:
                    return ShellEnd(part[0] if part else 0, bytes(printed), complaints.decode("utf-8", "replace"))
                if kind == _STDERR:
                    complaints += part
                elif kind == _STDOUT and take is not None:
                    take(part)
                elif kind == _STDOUT:
                    printed += part

    def exists(self, path: str) -> bool:
        """Return whether there is a file or folder of this name."""
        with self._service("sync:") as stream:
            _request(stream, b"STAT", path)
            stream.read(4)
            mode, _, _ = struct.unpack("<III", stream.read(12))
            return bool(mode & _ANY_KIND)

    def push(self, source: Path | bytes, path: str, *, mode: int = 0o644, tell: Callable[[int], None]) -> None:
        """Write a file there.

        Args:
            source: A file here, or its bytes.
            path: Its name there.
            mode: Its rights.
            tell: Hears how many bytes were sent now.

        Raises:
            EdgeoptError: If the phone refuses it; the line says why.
            OSError: If it cannot be read here.
        """
        with self._service("sync:") as stream, _opened(source) as file:
            _request(stream, b"SEND", f"{path},{_REGULAR | mode}")
            with suppress(UnpluggedError):  # a phone that refuses the rest says why before it ends the connection
                while (chunk := file.read(_CHUNK)) and not select.select([stream.socket], [], [], 0)[0]:
                    stream.send(b"DATA" + struct.pack("<I", len(chunk)) + chunk)
                    tell(len(chunk))
                stream.send(b"DONE" + struct.pack("<I", int(time.time())))
            _require_okay(stream, f"{self.address} does not take {path.rpartition('/')[2]}")
            with suppress(UnpluggedError):
                stream.send(b"QUIT" + bytes(4))

    def pull(self, path: str) -> bytes:
        """Return a file of the phone.

        Raises:
            EdgeoptError: If there is none.
        """
        parts = list[bytes]()
        with self._service("sync:") as stream:
            _request(stream, b"RECV", path)
            while True:
                word, size = stream.read(4), struct.unpack("<I", stream.read(4))[0]
                if word == b"DONE":
                    return b"".join(parts)
                body = stream.read(_allowed(stream, size))
                if word != b"DATA":
                    said = shorten(body.decode("utf-8", "replace"), _TOLD)
                    raise UnavailableError(f"{self.address} does not give {path}: {said}", remedy="try again")
                parts.append(body)


def _request(stream: _Stream, word: bytes, path: str) -> None:
    name = path.encode()
    stream.send(word + struct.pack("<I", len(name)) + name)


def _allowed(stream: _Stream, size: int) -> int:
    """Return the size of a message; a longer one than adb sends is none.

    Raises:
        UnpluggedError: If it is longer.
    """
    if size > _LONGEST_MESSAGE:
        raise stream.lost("it sends what is no adb")
    return size


def _require_okay(stream: _Stream, problem: str) -> None:
    word, size = stream.read(4), struct.unpack("<I", stream.read(4))[0]
    if word != b"OKAY":
        said = stream.read(min(size, _LONGEST_TEXT)).decode("utf-8", "replace")
        raise UnavailableError(f"{problem}: {shorten(said, _TOLD)}", remedy="free space on the phone, and try again")


@contextmanager
def _opened(source: Path | bytes) -> Iterator[IO[bytes]]:
    from io import BytesIO

    with closing(BytesIO(source) if isinstance(source, bytes) else source.open("rb")) as file:
        yield file
