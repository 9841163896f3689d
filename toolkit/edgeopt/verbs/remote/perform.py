"""A command of edgeopt on another device, from its arguments to its files and its exit code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgeopt.errors import EXIT_ERROR, EXIT_INTERRUPTED, EdgeoptError
from edgeopt.verbs.remote.address import read_address
from edgeopt.verbs.remote.device import Device, Tell
from edgeopt.verbs.remote.job import STOPPED, Job, Write, run_quietly
from edgeopt.verbs.remote.mirror import files_behind, mirrored
from edgeopt.verbs.remote.ssh import Connection
from edgeopt.verbs.remote.wheel import make_wheel
from edgeopt.system.text import plural

FILES = "@FILES@"
"""As the device's side has it: stands in an argument for the folder that mirrors this machine."""
_DEFAULT_OUT = Path("out")
"""Folder below this one in which commands write where no place was named."""


@dataclass(frozen=True, slots=True)
class RemoteCommand:
    """A command as it was typed here."""

    arguments: tuple[str, ...]
    """Behind `edgeopt`, without the option that names the device."""
    inputs: tuple[Path, ...]
    """Files and folders here that its arguments name."""
    outputs: tuple[Path, ...]
    """Places here into which it writes."""
    extras: frozenset[str]
    """Extras of edgeopt that it needs."""
    variables: Mapping[str, str]
    """Variables of its environment, such as the width of the terminal."""


@dataclass(frozen=True, slots=True)
class Hearer:
    """Listener to a remote command."""

    tell: Tell
    say: Callable[[str], None]
    write: Write


def run_remotely(address: str, command: RemoteCommand, hearer: Hearer) -> int:
    """Run a command on a device as if it ran here, and return its exit code.

    Files that it reads are sent, by content: what the device has is not sent again. What it writes comes back to the
    places where it would have written here.

    Raises:
        EdgeoptError: If the device cannot be reached, has no room, or stopped the command.
        KeyboardInterrupt: After the command ended too, and what it left came back.
    """
    with Connection(read_address(address)) as connection:
        device = Device(connection)
        wheel = make_wheel()
        worker = device.prepare(wheel, sorted(command.extras & wheel.extras), hearer.tell)
        files = files_behind(command.inputs)
        hashes = device.send(files, hearer.tell)
        arguments = _as_there(command)
        job, goes_on = Job.begin(device, worker, arguments, mirrored(Path()), hashes, command.variables)
        if goes_on:
            hearer.say("the same command runs there already: it is taken up")
        shown = _Shown(device.mirror_of(job.name), hearer.write)
        places = {mirrored(place): Path.cwd() / place for place in (_DEFAULT_OUT, *command.outputs)}
        try:
            code = job.follow(shown.write, hearer.say)
        except KeyboardInterrupt:
            job.stop()
            job.follow(shown.write, hearer.say)
            _bring(job, places, hearer)
            raise
        _bring(job, places, hearer)
        if code == STOPPED:
            raise EdgeoptError(
                f"{connection.address} stopped the command: it was restarted, or had too little memory",
                remedy="what it had written came back; try again, with --resume where the command has it",
            )
        return code if 0 <= code <= EXIT_INTERRUPTED else EXIT_ERROR


def _bring(job: Job, places: Mapping[str, Path], hearer: Hearer) -> None:
    count = job.bring(places)
    if count:
        hearer.say(f"{plural(count, 'file')} came back from {job.device.connection.address.host}")
    run_quietly(job.forget)


def _as_there(command: RemoteCommand) -> list[str]:
    """Return the arguments with the absolute paths of this machine as they are on the device."""
    whole = sorted((str(path) for path in (*command.inputs, *command.outputs) if path.is_absolute()), key=len)
    return [_argument_there(word, whole) for word in command.arguments]


def _argument_there(word: str, whole: Sequence[str]) -> str:
    for path in whole:
        if word == path or word.endswith(f"={path}"):
            return f"{word.removesuffix(path)}{FILES}/{mirrored(Path(path))}"
    return word


@dataclass(frozen=True, slots=True)
class _Shown:
    """Lines of the command, with the places of this machine in them."""

    mirror: str
    """Folder on the device that mirrors the root of this machine."""
    print_line: Write

    def write(self, stream: str, line: bytes) -> None:
        self.print_line(stream, line.replace(f"{self.mirror}/".encode(), b"/"))
