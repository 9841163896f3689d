"""A command of edgeopt on another device, from its arguments to its files and its exit code."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from edgeopt.errors import EXIT_INTERRUPTED, EdgeoptError, UnavailableError, UnsupportedError
from edgeopt.measurement.check.baseline import raw_beside
from edgeopt.runtime.devices.availability import load_executor
from edgeopt.system.declared.target import Target, declared_target, find_target
from edgeopt.system.text import plural
from edgeopt.verbs.remote.address import read_address
from edgeopt.verbs.remote.device import Device, Tell
from edgeopt.verbs.remote.job import STOPPED, Job, JobRequest, Write, is_lost
from edgeopt.verbs.remote.mirror import files_behind, is_sendable, mirrored, whole_path
from edgeopt.verbs.remote.ssh import Connection, LostError
from edgeopt.verbs.remote.wheel import make_wheel

FILES = "@FILES@"
"""As the device's side has it: stands in an argument for the folder that mirrors this machine."""
_DEFAULT_OUT = Path("out")
"""Folder below this one in which commands write where no place was named."""
_CPU, _COMMON = "cpu", ("serve", "sign")
"""Extras that commands may need: ONNX Runtime; what reads and writes texts, and what checks signatures."""
_BUILDS = {"onnxruntime-gpu": "gpu", "onnxruntime-webgpu": "webgpu"}
"""Packages that hold ONNX Runtime built for a device, and the extra that brings each in place of `cpu`: two builds in
one environment overwrite each other's files."""
_FAMILIES = {"x86_64": "x86-64", "amd64": "x86-64", "aarch64": "arm64", "arm64": "arm64"}
"""Words of `uname -m` for processors that all engines beside ONNX Runtime have wheels for, and the word of targets."""
_SIGNALS_FROM = 128
"""A shell's exit code of a program that a signal ended is this and the signal's number."""


def extras_for(target: str, machine: str) -> frozenset[str]:
    """Return the extras of edgeopt that a device gets: those of every command, and the engines of a target, if any.

    Of the engines that a target tries beside its own the device gets those that this machine has.

    Args:
        target: Name or file; empty: none was named.
        machine: The device's processor, as `uname -m` prints it there.

    Raises:
        NotFoundError: If there is no such target.
        UnsupportedError: If the target is for other processors.
    """
    if not target:
        return frozenset((_CPU, *_COMMON))
    chosen, family = find_target(target), _FAMILIES.get(machine.lower(), "")
    is_fixed = isinstance(declared_target(target), Target)  # `cpu` is another profile on the device
    if is_fixed and family and chosen.architectures and family not in chosen.architectures:
        raise UnsupportedError(
            f"the target {target!r} is for {' and '.join(chosen.architectures)}, and the device is {family}",
            remedy="name a target of the device: edgeopt targets lists them",
        )
    others = [find_target(name) for name in chosen.alternatives]
    fitting = [other.executor for other in others if family and family in (other.architectures or (family,))]
    beside = [name for name in fitting if load_executor(name).why_unavailable() is None]
    return frozenset((_BUILDS.get(chosen.package, _CPU), *_COMMON, chosen.executor, *beside))


@dataclass(frozen=True, slots=True)
class CommandWord:
    """One word of a command line."""

    text: str
    is_read: bool = False
    """Whether it may name a file or folder here that the command reads."""
    is_written: bool = False
    """Whether it names a place here into which the command writes."""

    @property
    def is_path(self) -> bool:
        """Whether it stands for the place of the same name on the device."""
        return self.is_written or (self.is_read and is_sendable(self.text))

    @property
    def there(self) -> str:
        """The word on the device: a relative name below this folder is the same there."""
        path = Path(self.text)
        if not self.is_path or not (path.is_absolute() or ".." in path.parts):
            return self.text
        return f"{FILES}/{mirrored(path)}"


@dataclass(frozen=True, slots=True)
class RemoteCommand:
    """A command as it was typed here."""

    words: tuple[CommandWord, ...]
    """Words behind `edgeopt`, without the option that names the device."""
    target: str
    """Name or file of the target; empty: none was named."""
    variables: Mapping[str, str]
    """Variables of its environment, such as the width of the terminal."""

    @property
    def reads(self) -> list[Path]:
        """Files and folders here that it reads."""
        return [Path(word.text) for word in self.words if word.is_read and is_sendable(word.text)]

    @property
    def writes(self) -> dict[str, Path]:
        """Places here into which it writes, by their names in the mirror; raw samples lie beside a file of figures."""
        places = [_DEFAULT_OUT]
        for word in self.words:
            if word.is_written:
                path = Path(word.text)
                places += [path, raw_beside(path)] if path.suffix == ".json" else [path]
        return {mirrored(place): whole_path(place) for place in places}


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
        extras = extras_for(command.target, device.machine)
        worker = device.prepare(wheel, sorted(extras & wheel.extras), hearer.tell)
        files = files_behind(command.reads)
        hashes = connection.patiently(lambda: device.send(files, hearer.tell), hearer.say)
        arguments = tuple(word.there for word in command.words)
        writes = command.writes
        request = JobRequest(worker, arguments, mirrored(Path()), hashes, (*writes,), command.variables)
        return _finish(Job(device, request.name), request, writes, hearer)


def _finish(job: Job, request: JobRequest, writes: Mapping[str, Path], hearer: Hearer) -> int:
    """Run a job to its end, or end it where this process is interrupted, and bring its files."""
    connection, shown = job.device.connection, _Shown(job, hearer.write)
    try:
        if connection.patiently(lambda: job.begin(request), hearer.say):
            hearer.say("the same command is there already: it is taken up")
        code = connection.patiently(lambda: job.follow(shown.write), hearer.say)
    except KeyboardInterrupt:
        if is_lost(job.stop) or not job.mirror:
            hearer.say(f"{connection.address} is not reached: the command may go on there")
            raise
        job.follow(shown.write)
        shown.end()
        _bring(job, writes, hearer)
        raise
    except LostError as error:
        remedy = "the command goes on there; the same command takes it up"
        raise UnavailableError(f"{connection.address} is gone: {error.problem}", remedy=remedy) from error
    except BaseException:  # whoever reads the output is gone, or a fault of ours: nobody waits for the command
        is_lost(job.stop)
        raise
    shown.end()
    _bring(job, writes, hearer)
    if code == STOPPED or (code > _SIGNALS_FROM and code != EXIT_INTERRUPTED):
        raise EdgeoptError(
            f"{connection.address} stopped the command: {_reason(code)}",
            remedy="what it had written came back; try again, with --resume where the command has it",
        )
    return code


def _reason(code: int) -> str:
    if code == STOPPED:
        return "the device was restarted, or what watched the command was killed"
    number = code - _SIGNALS_FROM
    name = signal.Signals(number).name if number in {each.value for each in signal.Signals} else f"signal {number}"
    return f"{name}{', as where memory does not suffice' if name == 'SIGKILL' else ''}"


def _bring(job: Job, writes: Mapping[str, Path], hearer: Hearer) -> None:
    connection = job.device.connection
    count = connection.patiently(lambda: job.bring(writes), hearer.say)
    if count:
        hearer.say(f"{plural(count, 'file')} came back from {connection.address.host}")
    connection.patiently(job.forget, hearer.say)


class _Shown:
    """Output of the command, with the places of this machine in it."""

    def __init__(self, job: Job, print_text: Write) -> None:
        self._job, self._print = job, print_text
        self._held = {"out": b"", "err": b""}

    def write(self, stream: str, text: bytes) -> None:
        """Print whole lines; what is none yet is held, as a place may be cut in two."""
        whole, end, rest = (self._held[stream] + text).rpartition(b"\n")
        self._held[stream] = rest
        if end:
            self._show(stream, whole + end)

    def end(self) -> None:
        """Print what is held."""
        for stream, text in self._held.items():
            if text:
                self._show(stream, text)
        self._held = dict.fromkeys(self._held, b"")

    def _show(self, stream: str, text: bytes) -> None:
        self._print(stream, text.replace(f"{self._job.mirror}/".encode(), b"/"))
