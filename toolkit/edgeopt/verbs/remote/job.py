"""A command that runs on a device: it goes on there when the connection is lost, and is followed again."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any

from edgeopt.errors import EdgeoptError
from edgeopt.system.disk.tars import files_of_tar
from edgeopt.system.text import format_bytes
from edgeopt.verbs.remote.device import Device
from edgeopt.verbs.remote.ssh import LOST, MARKER, LostError, RemoteProcess, unknown_answer

STOPPED = 97
"""As the device's side has it: the command ended there without an exit code."""

_LEAVE_S = 5.0
"""Seconds for the end of a command that said its last word."""

_MOST_BYTES = 1 << 20
"""Bytes of a frame, as the device's side sends at most."""
_TEXTS, _MOST_TEXT = frozenset({".json", ".md", ".html", ".csv", ".xml", ".txt"}), 64 << 20
"""Files in which places are called as on this machine, where an option names them or their folder; bytes at most."""
_SIGNAL = re.compile(r"(?:SIG[A-Z0-9]{1,12}|signal [0-9]{1,3})?")

Write = Callable[[str, bytes], None]
"""Takes what the command prints: `out` or `err`, and its bytes."""


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A command as a device is asked to run it."""

    worker: str
    """Key of the environment."""
    arguments: tuple[str, ...]
    """Arguments behind `edgeopt`."""
    folder: str
    """Name in the mirror of the folder in which it runs."""
    files: Mapping[str, str]
    """Name in the mirror to hash."""
    writes: tuple[str, ...]
    """Names in the mirror of what it may write."""
    variables: Mapping[str, str]
    """Variables of its environment; another width of the terminal makes no other command."""

    @property
    def name(self) -> str:
        """The same for the same command on the same files."""
        facts = (self.worker, self.arguments, self.folder, sorted(self.files.items()), self.writes)
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]

    @property
    def data(self) -> bytes:
        """The request as the device's side reads it."""
        return json.dumps(
            {
                "worker": self.worker,
                "arguments": self.arguments,
                "folder": self.folder,
                "files": dict(self.files),
                "writes": self.writes,
                "variables": dict(self.variables),
            }
        ).encode()


@dataclass
class Job:
    """One command on a device."""

    device: Device
    name: str
    mirror: str = ""
    """Folder on the device that mirrors the root of this machine; empty: it was not begun."""
    read: dict[str, int] = field(default_factory=lambda: {"out": 0, "err": 0})
    """Bytes that were read of each of its streams."""
    signal: str = ""
    """The signal that ended it, as the device calls it; empty: none did."""

    def begin(self, request: JobRequest) -> bool:
        """Begin the command, and return whether it was there already: a run that was cut off is taken up."""
        begun = self.device.ask_table({"mirror": str, "goes_on": bool}, "begin", self.name, sent=request.data)
        if not PurePosixPath(begun["mirror"]).is_absolute():
            raise unknown_answer(self.device.connection.address)
        self.mirror = begun["mirror"]
        return bool(begun["goes_on"])

    def follow(self, write: Write) -> int:
        """Hand on what the command prints until it ends, and return its exit code; each byte comes once.

        Raises:
            LostError: If the connection is lost; the command goes on there.
            EdgeoptError: If the device has the command no more.
        """
        places = (str(self.read["out"]), str(self.read["err"]))
        process = self.device.connection.start(self.device.command("follow", self.name, *places))
        complaints = process.hear_complaints()
        try:
            code = self._read_frames(process, write)
            if code is not None:
                process.sent.close()
                with suppress(subprocess.TimeoutExpired):  # the device counts it as a follower until then
                    process.popen.wait(_LEAVE_S)
                return code
            ended, words = process.popen.wait(), complaints()
        finally:
            process.abandon()
        # Without the device's own word for its end, something on the way cut it short.
        self.device.connection.require_success(ended if ended and MARKER in words else LOST, words)
        raise AssertionError("a code that is not 0 is an error")

    def _read_frames(self, process: RemoteProcess, write: Write) -> int | None:
        """Return the code of the last frame; None where the stream ends before."""
        while line := process.printed.readline(_MOST_BYTES):
            if not line.startswith(MARKER):
                continue  # the start file of a shell
            if not line.endswith(b"\n") and len(line) < _MOST_BYTES:
                return None  # the connection was lost within it
            stream, number, signal = _read_head(line.removeprefix(MARKER))
            if not stream:
                self.signal = signal
                return number
            body = process.printed.read(number)
            if len(body) < number:
                return None
            self.read[stream] += len(body)
            write(stream, body)
        return None

    def stop(self) -> None:
        """Ask the command to end, as Ctrl-C does."""
        self.device.ask("stop", self.name)

    def bring(self, places: Mapping[str, Path], named_here: Callable[[bytes], bytes]) -> int:
        """Write what the command made or changed to its places here, and return how many files.

        Nothing outside the places is written, whatever the device sends, and nothing through a link.

        Args:
            places: By their names in the mirror: files, or folders with all that is in them.
            named_here: Returns a text of the device in which places are called as on this machine: the figures of a
                command name what it was given. What lies deeper in a folder stays as it is: manifests have its hash.

        Raises:
            LostError: If the connection is lost.
            EdgeoptError: If a file cannot be written here.
        """
        request = json.dumps({"job": self.name, "below": list(places)}).encode()
        process = self.device.connection.start(self.device.command("bring"))
        count = 0
        try:
            process.sent.write(request)
            process.sent.close()
            while (line := process.printed.readline(_MOST_BYTES)) and not line.startswith(MARKER):
                continue
            for member, content in files_of_tar(process.printed):
                name = PurePosixPath(member.name)
                is_asked_for = member.name in places or str(name.parent) in places
                if is_asked_for and name.suffix in _TEXTS and member.size <= _MOST_TEXT:
                    content = io.BytesIO(named_here(content.read()))
                write_below(member.name, places, content, member.size)
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


def _read_head(line: bytes) -> tuple[str, int, str]:
    """Return the stream of a frame and its bytes; of the last frame no stream, the exit code, and the signal if any.

    Raises:
        EdgeoptError: If it is none.
    """
    try:
        head = json.loads(line)
        stream, number = ("", head["code"]) if "code" in head else (head["stream"], head["bytes"])
        signal = head.get("signal", "")
        if not isinstance(signal, str) or not _SIGNAL.fullmatch(signal):
            raise ValueError
        if stream not in ("", "out", "err") or type(number) is not int or not 0 <= number <= _MOST_BYTES:
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise unknown_answer("the device") from error
    return stream, number, signal


def place_of(name: str, places: Mapping[str, Path]) -> tuple[Path, Path]:
    """Return which of the places a file of the device belongs to, and where it is written.

    Raises:
        EdgeoptError: If it belongs to none.
    """
    parts = name.split("/")
    strange = {"", ".", ".."} | ({part for part in parts if set(part) & set('\\:*?"<>|')} if os.name == "nt" else set())
    if not strange & {*parts} and "\0" not in name:
        for wanted, place in places.items():
            if name == wanted or name.startswith(f"{wanted}/"):
                return place, place.joinpath(*parts[len(wanted.split("/")) :])
    raise _distrust(name)


def write_below(name: str, places: Mapping[str, Path], content: IO[bytes], size: int = 0) -> None:
    """Write a file of another machine; a link here that leads out of its place is not followed.

    Args:
        name: As that machine calls it.
        places: Places here that it may write, by their names there.
        content: Of the file.
        size: Bytes of it, as that machine says.

    Raises:
        EdgeoptError: If it lies in none of them, or the disk has no room for it.
    """
    wanted, place = place_of(name, places)
    place.parent.mkdir(parents=True, exist_ok=True)
    inside, root = Path(os.path.realpath(place.parent)), Path(os.path.realpath(wanted))
    if place != wanted and inside != root and root not in inside.parents:
        raise _distrust(name)
    if size > (free := shutil.disk_usage(place.parent).free):
        problem = f"{name!r} of the device has {format_bytes(size)}, and {format_bytes(free)} are free here"
        raise EdgeoptError(problem, remedy=f"free disk space for {place.parent}")
    number, draft = tempfile.mkstemp(prefix=".edgeopt-", dir=place.parent)
    try:
        with open(number, "wb") as file:
            while block := content.read(1 << 20):
                file.write(block)
        os.chmod(draft, 0o666 & ~_UMASK)
        os.replace(draft, place)
    finally:
        Path(draft).unlink(missing_ok=True)


def _read_umask() -> int:
    """Return this process' mask; it can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


_UMASK = _read_umask()


def _distrust(name: str) -> EdgeoptError:
    return EdgeoptError(f"the device sent {name!r}, which nobody asked for", remedy="do not trust this device")


def is_lost(action: Callable[[], Any]) -> bool:
    """Do something that only tidies up, and return whether the connection was lost on the way."""
    try:
        action()
    except LostError:
        return True
    except EdgeoptError:
        return False
    return False
