"""A command of edgeopt on another device, from its arguments to its files and its exit code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from edgeopt.errors import EXIT_INTERRUPTED, EdgeoptError, UnavailableError, UnsupportedError
from edgeopt.runtime.devices.availability import load_executor
from edgeopt.system.declared.target import Target, declared_target, find_target
from edgeopt.system.disk.wheel import make_wheel
from edgeopt.system.machine.processor import ARCHITECTURES
from edgeopt.system.text import plural
from edgeopt.verbs.remote.address import read_address
from edgeopt.verbs.remote.command import RemoteCommand
from edgeopt.verbs.remote.device import Device, Tell
from edgeopt.verbs.remote.job import STOPPED, Job, JobRequest, Write, is_lost
from edgeopt.verbs.remote.mirror import files_behind, mirrored
from edgeopt.verbs.remote.places import PlacesThere
from edgeopt.verbs.remote.search import SearchHere
from edgeopt.verbs.remote.ssh import Connection, LostError

_CPU, _COMMON = "cpu", ("serve", "sign")
"""Extras that commands may need: ONNX Runtime; what reads and writes texts, and what checks signatures."""
_BUILDS = {"onnxruntime-gpu": "gpu", "onnxruntime-webgpu": "webgpu"}
"""Packages that hold ONNX Runtime built for a device, and the extra that brings each in place of `cpu`: two builds in
one environment overwrite each other's files."""
_MOST_HELD = 1 << 16
"""Bytes of a line that is not at its end."""
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
    chosen, family = find_target(target), ARCHITECTURES.get(machine.lower(), "")
    is_fixed = isinstance(declared_target(target), Target)  # `cpu` is another profile on the device
    if is_fixed and family and chosen.architectures and family not in chosen.architectures:
        raise UnsupportedError(
            f"the target {target!r} is for {' and '.join(chosen.architectures)}, and the device is {family}",
            remedy="name a target of the device: edgeopt targets lists them",
        )
    others = [find_target(name) for name in chosen.alternatives]
    fitting = [other.executor for other in others if family and family in (other.architectures or (family,))]
    light = [name for name in fitting if not load_executor(name).heavy]
    beside = [name for name in light if load_executor(name).why_unavailable() is None]
    return frozenset((_BUILDS.get(chosen.package, _CPU), *_COMMON, chosen.executor, *beside))


@dataclass(frozen=True, slots=True)
class Hearer:
    """Listener to a remote command."""

    tell: Tell
    say: Callable[[str], None]
    write: Write


@dataclass(frozen=True, slots=True)
class RemoteEnd:
    """The end of a command on a device."""

    exit_code: int
    places: PlacesThere
    """How places of this machine were called there."""


def run_remotely(address: str, command: RemoteCommand, hearer: Hearer, search: SearchHere | None = None) -> RemoteEnd:
    """Run a command on a device as if it ran here.

    Files that it reads are sent, by content: what the device has is not sent again. What it writes comes back to the
    places where it would have written here.

    Args:
        address: Of the device.
        command: As it was typed.
        hearer: Hears what it prints.
        search: The part of it that is done here first; None: it runs there from its beginning.

    Raises:
        EdgeoptError: If the device cannot be reached, has no room, or stopped the command.
        KeyboardInterrupt: After the command ended too, and what it left came back.
    """
    with Connection(read_address(address)) as connection:
        device = Device(connection)
        wheel = make_wheel()
        machine = connection.patiently(lambda: device.machine, hearer.say)
        extras = sorted(extras_for(command.target, machine) & wheel.extras)
        worker = connection.patiently(lambda: device.prepare(wheel, extras, hearer.tell), hearer.say)
        if search is not None:
            command = search.made_here(command, device, hearer.say)
        files = files_behind(command.reads)
        hashes = connection.patiently(lambda: device.send(files, hearer.tell), hearer.say)
        arguments = tuple(word.there for word in command.words)
        writes = command.writes
        request = JobRequest(worker, arguments, mirrored(Path()), hashes, (*writes,), command.variables)
        return _finish(Job(device, request.name), request, command, hearer)


def _finish(job: Job, request: JobRequest, command: RemoteCommand, hearer: Hearer) -> RemoteEnd:
    """Run a job to its end, or end it where this process is interrupted, and bring its files."""
    connection, writes = job.device.connection, command.writes

    def places() -> PlacesThere:
        return PlacesThere(job.mirror, command.typed)

    shown = _Shown(places, hearer.write)
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
        _bring(job, writes, places(), hearer)
        raise
    except LostError as error:
        remedy = f"the command goes on there; {command.again} takes it up"
        raise UnavailableError(f"{connection.address} is gone: {error.problem}", remedy=remedy) from error
    except BaseException:  # whoever reads the output is gone, or a fault of ours: nobody waits for the command
        is_lost(job.stop)
        raise
    shown.end()
    _bring(job, writes, places(), hearer)
    if code == STOPPED or (code > _SIGNALS_FROM and code != EXIT_INTERRUPTED):
        raise EdgeoptError(
            f"{connection.address} stopped the command: {_reason(code, job.signal)}",
            remedy="what it had written came back; try again, with --resume where the command has it",
        )
    return RemoteEnd(code, places())


def _reason(code: int, signal: str) -> str:
    if code == STOPPED:
        return "the device was restarted, or what watched the command was killed"
    name = signal or f"signal {code - _SIGNALS_FROM}"
    return f"{name}{', as where memory does not suffice' if name == 'SIGKILL' else ''}"


def _bring(job: Job, writes: Mapping[str, Path], places: PlacesThere, hearer: Hearer) -> None:
    connection = job.device.connection
    count = connection.patiently(lambda: job.bring(writes, places.named_here), hearer.say)
    if count:
        hearer.say(f"{plural(count, 'file')} came back from {connection.address.host}")
    connection.patiently(job.forget, hearer.say)


class _Shown:
    """Output of the command, with the places of this machine in it."""

    def __init__(self, places: Callable[[], PlacesThere], print_text: Write) -> None:
        self._places, self._print = places, print_text
        self._held = {"out": b"", "err": b""}

    def write(self, stream: str, text: bytes) -> None:
        """Print whole lines; what is none yet is held, as a place may be cut in two."""
        whole, end, rest = (self._held[stream] + text).rpartition(b"\n")
        if len(rest) > _MOST_HELD:  # no line has an end so far away
            whole, end, rest = whole + end, rest, b""
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
        self._print(stream, self._places().named_here(text))
