"""Commands on a device through OpenSSH as it is installed: its configuration, keys, agents and jump hosts hold."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import IO, TypeVar

from edgeopt.errors import EdgeoptError, UnavailableError
from edgeopt.verbs.remote.address import Address

MARKER = b"edgeopt-device:"
"""As the device's side has it: stands before every answer, behind whatever a shell's start file prints."""
LOST = 255
"""Exit code of ssh where it has no connection, or loses it (ssh(1))."""
_ALIVE_S, _SILENT = 5, 6
"""Seconds between two questions whether the device is there, and unanswered ones after which it counts as lost."""
_CONNECT_S = 15
_PATIENCE_S = 600.0
"""Seconds for which a lost connection is tried again: a board that restarts takes one or two minutes."""
_HELD_S = 25.0
"""An attempt that lasted longer had its connection: without one it ends after `_CONNECT_S`, and a lost one is noticed
after `_ALIVE_S * _SILENT`."""
_FIRST_WAIT_S, _MOST_WAIT_S = 1.0, 20.0
MOST_ANSWER = 64 << 20
"""Bytes that a device says at once, the hashes of a million files: what is longer is no answer."""
_MOST_COMPLAINTS = 1 << 20
"""Bytes of complaints that are kept, the first ones."""
_LONGEST_SOCKET = 80
"""Bytes of a socket's path to which ssh can still append its own: 104 on macOS in all (unix(4))."""

T = TypeVar("T")


class LostError(UnavailableError):
    """The connection to a device that was reached before is gone."""


class RemoteProcess:
    """A command that runs on the device, with its pipes."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        """Take the process of ssh, which was started with three pipes."""
        assert popen.stdin
        assert popen.stdout
        assert popen.stderr
        self.popen, self.sent, self.printed, self.complaints = popen, popen.stdin, popen.stdout, popen.stderr

    def end(self) -> tuple[int, bytes]:
        """Send no more, wait for its end, and return its exit code and what it complains of."""
        with suppress(OSError):
            self.sent.close()
        complaints = self.hear_complaints()
        self._drain(self.printed)
        return self.popen.wait(), complaints()

    def hear_complaints(self) -> Callable[[], bytes]:
        """Read what it complains of, beside; return what waits for the end of that and returns it."""
        kept: list[bytes] = []

        def hear() -> None:
            kept.append(self.complaints.read(_MOST_COMPLAINTS))
            self._drain(self.complaints)

        listener = threading.Thread(target=hear, daemon=True)
        listener.start()

        def heard() -> bytes:
            listener.join()
            return b"".join(kept)

        return heard

    def answer(self, sent: bytes) -> tuple[bytes, bytes]:
        """Send all that it reads; return what it prints and what it complains of, and wait for its end.

        Raises:
            EdgeoptError: If it prints without end.
        """
        complaints = self.hear_complaints()
        threading.Thread(target=self._send, args=(sent,), daemon=True).start()
        printed = self.printed.read(MOST_ANSWER + 1)
        if len(printed) > MOST_ANSWER:
            self.abandon()
            raise unknown_answer("the device")
        self.popen.wait()
        return printed, complaints()

    def _send(self, sent: bytes) -> None:
        with suppress(OSError, ValueError):  # it reads no more: its own words say why
            self.sent.write(sent)
            self.sent.close()

    @staticmethod
    def _drain(stream: IO[bytes]) -> None:
        with suppress(OSError, ValueError):  # closed, as by `abandon`
            while stream.read(1 << 16):
                continue

    def abandon(self) -> None:
        """Leave it alone: the device sees its input end."""
        self.popen.kill()
        self.popen.wait()
        for stream in (self.sent, self.printed, self.complaints):
            with suppress(OSError):
                stream.close()


def unknown_answer(who: object) -> EdgeoptError:
    """Return the error of a device whose words have another form than its side of edgeopt gives them."""
    return EdgeoptError(f"{who} answers in no way that is known", remedy="do not trust this device")


class Connection:
    """One authenticated connection, which the commands of a run share where the system lets them."""

    def __init__(self, address: Address) -> None:
        """Take an address; nothing is connected before the first command.

        Raises:
            EdgeoptError: If there is no ssh here.
        """
        self.address = address
        program = shlex.split(os.environ.get("EDGEOPT_SSH", "")) or ["ssh"]
        if shutil.which(program[0]) is None:
            raise EdgeoptError(f"{program[0]} is not here, which --on needs", remedy="install OpenSSH's client")
        self._folder = tempfile.TemporaryDirectory(prefix="eo-", dir="/tmp" if os.path.isdir("/tmp") else None)
        port = ["-p", str(address.port)] if address.port else []
        user = ["-l", address.user] if address.user else []
        self._where = [*port, *user, "--", address.host]
        self._program = program
        self._options = [part for name, value in self._settings().items() for part in ("-o", f"{name}={value}")]

    def _settings(self) -> dict[str, str]:
        settings = {
            "BatchMode": "yes",  # a question for a password would wait for ever behind a bar
            "ConnectTimeout": str(_CONNECT_S),
            "ServerAliveInterval": str(_ALIVE_S),
            "ServerAliveCountMax": str(_SILENT),
        }
        socket = f"{self._folder.name}/s"
        # Microsoft's build of OpenSSH cannot share connections
        if sys.platform != "win32" and len(socket) < _LONGEST_SOCKET:
            settings |= {"ControlMaster": "auto", "ControlPath": socket, "ControlPersist": "30"}
        return settings

    def start(self, command: Sequence[str]) -> RemoteProcess:
        """Start a command on the device, with pipes to it."""
        pipe = subprocess.PIPE
        words = [*self._program, *self._options, "-T", *self._where, shlex.join(command)]
        # In a group of its own: Ctrl-C is for this process, which then asks the command to end.
        return RemoteProcess(subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True))

    def call(self, command: Sequence[str], sent: bytes = b"") -> bytes:
        """Return what a command on the device answers.

        Raises:
            UnavailableError: If the device cannot be reached.
            EdgeoptError: If the command fails.
        """
        process = self.start(command)
        try:
            printed, complaints = process.answer(sent)
        except BaseException:
            process.abandon()
            raise
        self.require_success(process.popen.returncode, complaints)
        return printed.rpartition(MARKER)[2]

    def require_success(self, code: int, complaints: bytes) -> None:
        """Raise where a command ended with another code than 0.

        Raises:
            LostError: If the device cannot be reached.
            EdgeoptError: If the command failed.
        """
        if code == 0:
            return
        lines = complaints.decode(errors="replace").strip().splitlines() or ["it says nothing"]
        if code == LOST:
            tried = shlex.join([*self._program, *self._where, "true"])
            remedy = f"try: {tried} (keys and agents are used, a password is never asked for)"
            raise LostError(f"{self.address} cannot be reached: {lines[-1]}", remedy=remedy)
        own = [line for line in lines if line.startswith(MARKER.decode())]
        problem, _, remedy = (own or lines)[-1].removeprefix(MARKER.decode()).partition(" -> ")
        raise EdgeoptError(f"{self.address}: {problem}", remedy=remedy or "look at the device")

    def patiently(self, action: Callable[[], T], say: Callable[[str], None]) -> T:
        """Return what an action returns; where the connection is lost on the way it is done again.

        Raises:
            LostError: If the device is gone for ten minutes.
        """
        until_s, wait_s = None, _FIRST_WAIT_S
        while True:
            began_s = monotonic()
            try:
                return action()
            except LostError as error:
                now_s = monotonic()
                if until_s is None or now_s - began_s > _HELD_S:
                    until_s, wait_s = now_s + _PATIENCE_S, _FIRST_WAIT_S
                if now_s + wait_s > until_s:
                    raise
                say(f"connection lost ({error.problem}): trying again")
            sleep(wait_s)
            wait_s = min(2 * wait_s, _MOST_WAIT_S)

    def close(self) -> None:
        """End the shared connection."""
        if any(Path(self._folder.name).iterdir()):
            leave = [*self._program, *self._options, "-O", "exit", *self._where]
            subprocess.run(leave, capture_output=True, check=False)
        self._folder.cleanup()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
