"""A command that runs on a device: it goes on there when the connection is lost, and is followed again."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tarfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import IO, Any

from edgeopt.errors import EdgeoptError, UnavailableError
from edgeopt.verbs.remote.device import Device
from edgeopt.verbs.remote.ssh import LOST

STOPPED = 97
"""As the device's side has it: the command ended there without an exit code."""
_PATIENCE_S = 600.0
"""Seconds for which a lost connection is tried again: a board that restarts takes one or two minutes."""
_FIRST_WAIT_S, _MOST_WAIT_S = 1.0, 20.0

Write = Callable[[str, bytes], None]
"""Takes what the command prints: `out` or `err`, and whole lines."""


@dataclass
class Job:
    """One command on a device."""

    device: Device
    name: str
    printed: dict[str, int] = field(default_factory=lambda: {"out": 0, "err": 0})
    """Bytes that were read of each of its streams."""

    @classmethod
    def begin(
        cls,
        device: Device,
        worker: str,
        arguments: Sequence[str],
        folder: str,
        files: Mapping[str, str],
        variables: Mapping[str, str],
    ) -> tuple[Job, bool]:
        """Begin a command, and return it with whether it was running already: a run that was cut off is taken up.

        Args:
            device: Where it runs.
            worker: Key of the environment.
            arguments: Behind `edgeopt`.
            folder: Name in the mirror of the folder in which it runs.
            files: Name in the mirror to hash.
            variables: Of its environment.
        """
        asked: dict[str, Any] = {
            "worker": worker,
            "arguments": list(arguments),
            "folder": folder,
            "files": dict(files),
            "variables": dict(variables),
        }
        text = json.dumps(asked, sort_keys=True).encode()
        name = hashlib.sha256(text).hexdigest()[:24]
        goes_on = device.ask("begin", name, sent=text)["goes_on"]
        return cls(device, name), bool(goes_on)

    def follow(self, write: Write, say: Callable[[str], None]) -> int:
        """Hand on what the command prints until it ends, and return its exit code.

        Raises:
            UnavailableError: If the device is gone for ten minutes; the command goes on there.
        """
        until_s, wait_s = monotonic() + _PATIENCE_S, _FIRST_WAIT_S
        while True:
            before = dict(self.printed)
            code, complaint = self._follow_once(write)
            if code != LOST:
                return code
            if self.printed != before:
                until_s, wait_s = monotonic() + _PATIENCE_S, _FIRST_WAIT_S
            if monotonic() + wait_s > until_s:
                raise UnavailableError(
                    f"{self.device.connection.address} is gone: {complaint}",
                    remedy="the command goes on there; the same command takes it up",
                )
            say(f"connection lost ({complaint}): the command goes on, trying again")
            sleep(wait_s)
            wait_s = min(2 * wait_s, _MOST_WAIT_S)

    def _follow_once(self, write: Write) -> tuple[int, str]:
        places = (str(self.printed["out"]), str(self.printed["err"]))
        process = self.device.connection.start(self.device.command("follow", self.name, *places))
        last: dict[str, bytes] = {}
        readers = [
            threading.Thread(target=self._read, args=(name, stream, write, last), daemon=True)
            for name, stream in (("out", process.printed), ("err", process.complaints))
        ]
        for reader in readers:
            reader.start()
        try:
            for reader in readers:
                reader.join()
            code = process.popen.wait()
            if code != LOST and "out" in last:
                write("out", last["out"])
            return code, last.get("err", b"").decode(errors="replace").strip()
        finally:
            process.abandon()

    def _read(self, name: str, stream: IO[bytes], write: Write, last: dict[str, bytes]) -> None:
        """Hand lines on as they come; what is no whole line, or ssh's own, is kept as the last of its stream."""
        for line in stream:
            if line.endswith(b"\n") and not (name == "err" and line.startswith(_SSH_SAYS)):
                self.printed[name] += len(line)
                write(name, line)
            else:
                last[name] = line

    def stop(self) -> None:
        """Ask the command to end, as Ctrl-C does."""
        self.device.ask("stop", self.name)

    def bring(self, places: Mapping[str, Path]) -> int:
        """Write what the command made or changed to its places here, and return how many files.

        Nothing outside the places is written, whatever the device sends.

        Args:
            places: By their names in the mirror: files, or folders with all that is in them.

        Raises:
            EdgeoptError: If a file cannot be written here, or the connection is lost.
        """
        asked = json.dumps({"job": self.name, "below": list(places)}).encode()
        process = self.device.connection.start(self.device.command("bring"))
        count = 0
        try:
            process.sent.write(asked)
            process.sent.close()
            with tarfile.open(fileobj=process.printed, mode="r|") as archive:
                for member in archive:
                    content = archive.extractfile(member) if member.isreg() else None
                    if content is not None:
                        _write(place_of(member.name, places), content)
                        count += 1
        except (tarfile.ReadError, BrokenPipeError) as error:
            code, complaints = process.end()
            self.device.connection.require_success(code or LOST, complaints or str(error).encode())
        except BaseException:
            process.abandon()
            raise
        self.device.connection.require_success(*process.end())
        return count

    def forget(self) -> None:
        """Remove what is left of it on the device."""
        self.device.ask("forget", self.name)


_SSH_SAYS = (b"Connection to ", b"Timeout, server ", b"client_loop: ", b"Shared connection to ", b"mux_client")
"""Beginnings of what ssh itself says when a connection is lost, among the lines of the command."""


def place_of(name: str, places: Mapping[str, Path]) -> Path:
    parts = name.split("/")
    if ".." not in parts:
        for wanted, place in places.items():
            if name == wanted or name.startswith(f"{wanted}/"):
                return place.joinpath(*parts[len(wanted.split("/")) :])
    raise EdgeoptError(f"the device sent {name!r}, which nobody asked for", remedy="do not trust this device")


def _write(place: Path, content: IO[bytes]) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = place.with_name(f".{place.name}.draft")
    try:
        with draft.open("wb") as file:
            while block := content.read(1 << 20):
                file.write(block)
        os.replace(draft, place)
    finally:
        draft.unlink(missing_ok=True)


def run_quietly(action: Callable[[], object]) -> None:
    """Do something that only tidies up; whether it works changes nothing."""
    try:
        action()
    except (EdgeoptError, subprocess.SubprocessError):
        return
