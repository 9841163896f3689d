"""Commands on a device through OpenSSH as it is installed: its configuration, keys, agents and jump hosts hold."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from edgeopt.errors import EdgeoptError, UnavailableError
from edgeopt.verbs.remote.address import Address

LOST = 255
"""Exit code of ssh where it has no connection, or loses it (ssh(1))."""
_ALIVE_S, _SILENT = 5, 6
"""Seconds between two questions whether the device is there, and unanswered ones after which it counts as lost."""
_CONNECT_S = 15


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
        if self.sent.closed:
            self.popen.stdin = None  # subprocess would flush it once more, which a closed file refuses
        complaints = self.popen.communicate()[1]
        return self.popen.returncode, complaints

    def abandon(self) -> None:
        """Leave it alone: the device sees its input end."""
        for stream in (self.sent, self.printed, self.complaints):
            with suppress(OSError):
                stream.close()
        self.popen.kill()
        self.popen.wait()


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
        self._folder = tempfile.TemporaryDirectory(prefix="edgeopt-ssh-")
        self._command = [*program, *self._options()]

    def _options(self) -> list[str]:
        settings = {
            "BatchMode": "yes",  # a question for a password would wait for ever behind a bar
            "ConnectTimeout": str(_CONNECT_S),
            "ServerAliveInterval": str(_ALIVE_S),
            "ServerAliveCountMax": str(_SILENT),
        }
        if sys.platform != "win32":  # Microsoft's build of OpenSSH cannot share connections
            settings |= {"ControlMaster": "auto", "ControlPath": f"{self._folder.name}/%C", "ControlPersist": "30"}
        options = [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]
        options += ["-T"]
        options += ["-p", str(self.address.port)] if self.address.port else []
        options += ["-l", self.address.user] if self.address.user else []
        return [*options, "--", self.address.host]

    def start(self, command: Sequence[str]) -> RemoteProcess:
        """Start a command on the device, with pipes to it."""
        pipe = subprocess.PIPE
        # In a group of its own: Ctrl-C is for this process, which then asks the command to end.
        return RemoteProcess(
            subprocess.Popen(
                [*self._command, shlex.join(command)], stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
            )
        )

    def call(self, command: Sequence[str], sent: bytes = b"") -> bytes:
        """Return what a command on the device prints.

        Raises:
            UnavailableError: If the device cannot be reached.
            EdgeoptError: If the command fails.
        """
        process = self.start(command)
        try:
            printed, complaints = process.popen.communicate(sent)
        except BaseException:
            process.abandon()
            raise
        self.require_success(process.popen.returncode, complaints)
        return printed

    def require_success(self, code: int, complaints: bytes) -> None:
        """Raise where a command ended with another code than 0.

        Raises:
            UnavailableError: If the device cannot be reached.
            EdgeoptError: If the command failed.
        """
        if code == 0:
            return
        last = (complaints.decode(errors="replace").strip().splitlines() or ["it says nothing"])[-1]
        if code == LOST:
            remedy = f"try: ssh {self.address.host} true (keys and agents are used, a password is never asked for)"
            raise UnavailableError(f"{self.address} cannot be reached: {last}", remedy=remedy)
        problem, _, remedy = last.partition(" -> ")
        raise EdgeoptError(f"{self.address}: {problem}", remedy=remedy or "look at the device")

    def close(self) -> None:
        """End the shared connection."""
        if any(Path(self._folder.name).iterdir()):
            leave = [*self._command[:-2], "-O", "exit", *self._command[-2:]]
            subprocess.run(leave, capture_output=True, check=False)
        self._folder.cleanup()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
