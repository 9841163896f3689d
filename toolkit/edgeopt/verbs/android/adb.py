"""The adb server of this machine, which reaches phones: as much of its protocol as is needed.

Sources: Android's own OVERVIEW.TXT, SERVICES.TXT and SYNC.TXT, and shell_protocol.h, in packages/modules/adb. The
package adbutils is not used: where a phone refuses a file it drops the reason, which is how "no space" is told, it
starts a server of its own, and it brings 9 MB.
"""

from __future__ import annotations

import os
import select
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from edgeopt.errors import EdgeoptError, UnavailableError
from edgeopt.system.text import short
from edgeopt.verbs.android.adb_stream import AdbStream, UnpluggedError, said_in

_CHUNK = 64 << 10
"""Bytes of a file in one message, at most (SYNC.TXT)."""
_REGULAR, _ANY_KIND = 0o100000, 0o170000
_HEAD = struct.Struct("<BI")
_STDIN, _STDOUT, _STDERR, _EXIT, _CLOSE_STDIN = 0, 1, 2, 3, 4
_LONGEST_TEXT = 1 << 16
"""Bytes of why a phone refuses a file."""
_MOST_PRINTED = 1 << 22
"""Bytes that a command of the shell prints, and that are kept."""
_MOST_COMPLAINTS = 1 << 16
LONGEST_S = 600.0
"""Seconds that a command of the shell may take where nothing else is said."""
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


def connected() -> dict[str, str]:
    """Return the state of each phone that the server knows, by its serial number.

    Raises:
        UnavailableError: If there is no server.
    """
    with AdbStream("the adb server") as stream:
        stream.ask("host:devices")
        rows = (line.partition("\t") for line in stream.text().splitlines())
        return {said_in(serial): said_in(state.strip()) for serial, tab, state in rows if tab}


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


class _Output:
    """All that a command prints, part by part."""

    def __init__(self, stream: AdbStream) -> None:
        self._stream = stream
        self._complaints = bytearray()
        self._code: int | None = None

    def next_part(self) -> bytes | None:
        """Return what comes next on its standard output; None: it has ended.

        Raises:
            UnpluggedError: If the phone is gone before.
        """
        while self._code is None:
            kind, size = _HEAD.unpack(self._stream.read(_HEAD.size))
            part = self._stream.read(self._stream.allowed(size))
            if kind == _STDOUT:
                return part
            if kind == _STDERR:
                self._complaints += part[: _MOST_COMPLAINTS - len(self._complaints)]
            elif kind == _EXIT:
                self._code = part[0] if part else 0
        return None

    def end(self, printed: bytes = b"") -> ShellEnd:
        """Return how it ended."""
        return ShellEnd(self._code or 0, printed, self._complaints.decode("utf-8", "replace"))


class Conversation:
    """A command that runs on a phone, is sent bytes, and answers."""

    def __init__(self, stream: AdbStream) -> None:
        self._stream, self._output = stream, _Output(stream)
        self._rest = bytearray()

    def limit(self, seconds: float) -> None:
        """Let what comes from now on take no longer."""
        self._stream.limit(seconds)

    def send(self, data: bytes) -> None:
        """Send bytes to its standard input.

        Raises:
            UnpluggedError: If the phone is gone.
        """
        for at in range(0, len(data), _CHUNK):
            part = data[at : at + _CHUNK]
            self._stream.send(_HEAD.pack(_STDIN, len(part)) + part)

    def line(self, most: int) -> bytes | None:
        """Return the next line that it prints, without its end; None: it has ended.

        Args:
            most: Bytes of a line; what is longer is none.

        Raises:
            UnpluggedError: If the phone is gone, or sends no line.
        """
        looked = 0
        while (end := self._rest.find(b"\n", looked)) < 0:
            looked = len(self._rest)
            if looked > most:
                raise self._stream.lost("it prints a line without end")
            part = self._output.next_part()
            if part is None:
                return None
            self._rest += part
        result = bytes(self._rest[:end])
        del self._rest[: end + 1]
        return result

    def read(self, count: int) -> bytes:
        """Return so many bytes of what it prints.

        Raises:
            UnpluggedError: If it ends before.
        """
        while len(self._rest) < count:
            part = self._output.next_part()
            if part is None:
                raise self._stream.lost("it ends within an answer")
            self._rest += part
        result = bytes(self._rest[:count])
        del self._rest[:count]
        return result

    def close_input(self) -> None:
        """End its standard input: nothing more comes."""
        self._stream.send(_HEAD.pack(_CLOSE_STDIN, 0))

    def end(self) -> ShellEnd:
        """Wait until it ends, and return how; what it prints meanwhile is dropped.

        Raises:
            UnpluggedError: If the phone is gone before.
        """
        while self._output.next_part() is not None:
            pass
        return self._output.end()


class Link:
    """A phone behind the server."""

    def __init__(self, serial: str) -> None:
        """Take a serial number, as `choose` gives it.

        Raises:
            UnavailableError: If it is gone, or its Android is older than 7.
        """
        self.serial = serial
        self.address = f"adb://{serial}"
        with AdbStream(self.address) as stream:
            stream.ask(f"host-serial:{serial}:features")
            features = stream.text().split(",")
        if "shell_v2" not in features:
            raise UnavailableError(
                f"{self.address} does not tell how its programs end: its Android is older than 7",
                remedy="take a phone with Android 7 or later",
            )

    @contextmanager
    def _service(self, name: str) -> Iterator[AdbStream]:
        try:
            stream = AdbStream(self.address)
            stream.ask(f"host:transport:{self.serial}")
        except UnpluggedError:
            raise
        except UnavailableError as error:  # it was there when this object was made
            raise UnpluggedError(error.problem, remedy=error.remedy) from error
        with stream:
            stream.ask(name)
            yield stream

    def shell(
        self, command: str, take: Callable[[bytes], None] | None = None, *, longest_s: float = LONGEST_S
    ) -> ShellEnd:
        """Run a command of the phone's shell until it ends. It ends with this connection at the latest.

        Args:
            command: A line of the shell; whoever makes it quotes what is in it.
            take: Takes what it prints, as it comes; None: it is returned.
            longest_s: Seconds that it may take.

        Raises:
            UnpluggedError: If the phone is gone before it ends, prints without end, or takes longer.
        """
        printed = bytearray()
        with self._service(f"shell,v2,raw:{command}") as stream:
            stream.limit(longest_s)
            output = _Output(stream)
            while (part := output.next_part()) is not None:
                if take is not None:
                    take(part)
                    continue
                printed += part
                if len(printed) > _MOST_PRINTED:
                    raise stream.lost("it prints without end")
            return output.end(bytes(printed))

    @contextmanager
    def talk(self, command: str) -> Iterator[Conversation]:
        """Run a command of the phone's shell, with its standard input open, as long as the `with` lasts."""
        with self._service(f"shell,v2,raw:{command}") as stream:
            yield Conversation(stream)

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
            stream.limit(LONGEST_S)
            _require_okay(stream, f"{self.address} does not take {path.rpartition('/')[2]}")
            with suppress(UnpluggedError):
                stream.send(b"QUIT" + bytes(4))


def _request(stream: AdbStream, word: bytes, path: str) -> None:
    name = path.encode()
    stream.send(word + struct.pack("<I", len(name)) + name)


def _require_okay(stream: AdbStream, problem: str) -> None:
    word, size = stream.read(4), struct.unpack("<I", stream.read(4))[0]
    if word != b"OKAY":
        said = said_in(stream.read(min(size, _LONGEST_TEXT)).decode("utf-8", "replace"))
        raise UnavailableError(f"{problem}: {said}", remedy="free space on the phone, and try again")


@contextmanager
def _opened(source: Path | bytes) -> Iterator[IO[bytes]]:
    from io import BytesIO

    with closing(BytesIO(source) if isinstance(source, bytes) else source.open("rb")) as file:
        yield file
