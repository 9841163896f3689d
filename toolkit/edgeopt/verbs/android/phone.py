"""A phone: what lies on it, and what edgeopt-runner does there."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from edgeopt.errors import EdgeoptError, UnavailableError
from edgeopt.graph.files.outside import sha256_of
from edgeopt.system.amounts import Percent
from edgeopt.system.text import format_bytes, printable, shorten
from edgeopt.verbs.android.adb import LONGEST_S, Conversation, Link, ShellEnd, choose
from edgeopt.verbs.android.adb_stream import UnpluggedError
from edgeopt.verbs.android.facts import ASK, ASK_STATE, PhoneFacts, PhoneState, state_in
from edgeopt.verbs.android.log import RunnerLog
from edgeopt.verbs.android.request import request_for_greeting

Tell: TypeAlias = Callable[[str, int, int], None]
Files: TypeAlias = Mapping[str, Path | bytes]
"""Files of a folder by their names."""
ROOT = "/data/local/tmp/edgeopt"
"""Where a phone's shell may write, and start programs."""
_STORE = "store"
_REQUEST = "request"
_SPARE_BYTES = 32 << 20
_LEAST_TOLD_BYTES = 1 << 20
"""Bytes that take a moment to send."""
_KEPT_DAYS = 30
_SIGNALS_FROM = 128
"""Exit code of a program that a signal ended: this and the signal's number."""
_SIGNALS = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}
"""Signals by Linux's numbers, which other systems have otherwise."""
_LONGEST = 300


class Phone:
    """One phone behind adb, with the runner on it."""

    def __init__(self, serial: str, tell: Tell) -> None:
        """Reach a phone, and put the runner there unless it is.

        Args:
            serial: Empty: the only one that is connected.
            tell: Hears what is sent.

        Raises:
            EdgeoptError: If it cannot be reached or used, or there is no runner for it.
        """
        self._link = Link(choose(serial))
        self.tell = tell
        self.facts = PhoneFacts(self._link.shell(ASK).printed)
        built = find_runner(self.facts.abis)
        self.abi = built.abi
        tidy = f"find {_STORE} -mindepth 1 -maxdepth 1 -mtime +{_KEPT_DAYS} -exec rm -rf {{}} +"
        stale = "find jobs parts -mindepth 1 -maxdepth 1 -mtime +0 -exec rm -rf {} +"
        self._do(f"mkdir -p {ROOT}/{_STORE} {ROOT}/jobs {ROOT}/parts")
        self._do(f"cd {ROOT} && {{ {tidy}; {stale}; }} 2>/dev/null; true")
        self.runner = self.put("edgeopt-runner", built.files, program=PROGRAM)
        self.require_alone()
        greeting = self.run(request_for_greeting())
        if greeting.lost is not None:
            raise greeting.lost
        self.version = greeting.version
        """Version of ONNX Runtime there."""

    @property
    def address(self) -> str:
        """Its address, as `--on` takes it."""
        return self._link.address

    @property
    def name(self) -> str:
        """Its maker, its model and its Android."""
        return f"{self.facts.name}, {self.facts.system}"

    def _do(self, command: str) -> bytes:
        """Return what a command of the shell prints.

        Raises:
            EdgeoptError: If it fails.
        """
        end = self._link.shell(command)
        if end.code:
            text = " ".join((end.complaints or end.printed.decode("utf-8", "replace")).split())
            said = shorten(printable(text), _LONGEST)
            raise UnavailableError(f"{self.address}: {said or 'a command failed'}", remedy=f"look at {ROOT} there")
        return end.printed

    def state(self) -> PhoneState | None:
        """Return how warm and how charged it is now; None: it is gone, and what was measured is kept."""
        try:
            return state_in(self._link.shell(ASK_STATE).printed)
        except UnpluggedError:
            return None

    def put(self, what: str, files: Files, program: str = "") -> str:
        """Put files into a folder of their own, and return its name from a job's folder; what is there stays.

        Args:
            what: What they are, in words.
            files: By their names.
            program: Name of the one that is started; empty: none is.

        Raises:
            EdgeoptError: If the phone has no room, or does not take them.
        """
        digest = hashlib.sha256()
        for name, source in sorted(files.items()):
            content = hashlib.sha256(source).hexdigest() if isinstance(source, bytes) else sha256_of(source)
            digest.update(f"{name}\0{content}\0".encode())
        folder = digest.hexdigest()[:32]
        there = f"{ROOT}/{_STORE}/{folder}"
        if self._link.exists(there):
            self._do(f"touch {there}")
            return f"../../{_STORE}/{folder}"
        size = sum(len(each) if isinstance(each, bytes) else each.stat().st_size for each in files.values())
        self.facts.require_free(size + _SPARE_BYTES, self._free_kib())
        part, sent = f"{ROOT}/parts/{secrets.token_hex(8)}", 0
        title = f"send {what}, {format_bytes(size)}"

        def count(more: int) -> None:
            nonlocal sent
            sent += more
            if size > _LEAST_TOLD_BYTES:
                self.tell(title, min(100, 100 * sent // size), Percent(100))

        try:
            for name, source in files.items():
                mode = 0o755 if name == program else 0o644
                self._link.push(source, f"{part}/{name}", mode=mode, tell=count)
            self._do(f"mv {part} {there}")
        except BaseException:
            with suppress(EdgeoptError):
                self._link.shell(f"rm -rf {part}")
            raise
        return f"../../{_STORE}/{folder}"

    def _free_kib(self) -> int | None:
        words = self._link.shell(f"df -k {ROOT} | tail -n 1").printed.split()
        return int(words[3]) if len(words) > 3 and words[3].isdigit() else None

    def run(
        self, request: bytes, *, on_rows: Callable[[int], None] | None = None, longest_s: float = LONGEST_S
    ) -> RunnerLog:
        """Let the runner do what a request says; return what it told.

        A phone that is gone on the way leaves what it told until then, with the reason.

        Args:
            request: As `request.py` makes it.
            on_rows: Hears how many nanoseconds of frames came.
            longest_s: Seconds that it may take.

        Raises:
            EdgeoptError: If the runner fails, or dies.
        """
        heard = RunnerLog(on_rows=on_rows or (lambda _: None))
        try:
            with self._job(request) as start:
                self.require_success(heard, self._link.shell(start, heard.take, longest_s=longest_s))
        except UnpluggedError as error:
            heard.lost = error
        return heard

    @contextmanager
    def serve(self, request: bytes) -> Iterator[Conversation]:
        """Let the runner answer what it is sent, as long as the `with` lasts."""
        with self._job(request) as start, self._link.talk(start) as conversation:
            yield conversation

    @contextmanager
    def _job(self, request: bytes) -> Iterator[str]:
        """Send a request, and return the command that does it; what lies there for it is removed in the end."""
        job = f"{ROOT}/jobs/{secrets.token_hex(8)}"
        try:
            self._link.push(request, f"{job}/{_REQUEST}", tell=lambda _: None)
            place = f"{ROOT}/{_STORE}/{self.runner.rpartition('/')[2]}"
            yield f"cd {job} && export LD_LIBRARY_PATH={place} && exec {place}/{PROGRAM} {_REQUEST}"
        finally:
            with suppress(EdgeoptError):
                self._link.shell(f"rm -rf {job}")

    def require_alone(self) -> None:
        """Raise where another runner runs.

        Raises:
            UnavailableError: If so.
        """
        if self._link.shell(f"pidof {PROGRAM}").printed.strip():
            raise UnavailableError(
                f"{self.address} measures already: two would disturb each other",
                remedy=f"wait, or end it: adb shell pkill {PROGRAM}",
            )

    def require_success(self, heard: RunnerLog, end: ShellEnd) -> None:
        """Raise unless a runner did what it was asked for.

        Raises:
            EdgeoptError: If it did not; the line says why.
        """
        code, complaints = end.code, end.complaints
        if heard.error:
            raise EdgeoptError(
                f"{PROGRAM} on {self.address}: {shorten(heard.error, _LONGEST)}",
                remedy="check the model with edgeopt inspect; ONNX Runtime for Android may lack what this one has",
            )
        if code > _SIGNALS_FROM:
            number = code - _SIGNALS_FROM
            name = _SIGNALS.get(number, f"signal {number}")
            why = ", as where memory does not suffice" if name == "SIGKILL" else ""
            raise EdgeoptError(
                f"{PROGRAM} on {self.address} was ended by {name}{why}",
                remedy="look at `adb logcat`, and try a smaller model or --threads 1",
            )
        if code or not heard.is_done:
            said = shorten(printable(" ".join(complaints.split())), _LONGEST) or f"exit code {code}"
            raise EdgeoptError(
                f"{PROGRAM} on {self.address} does not run: {said}", remedy=f"build it anew for {self.abi}"
            )


# edgeopt-runner, the program that times models on a phone: where it lies once it is built, and for which phones.

VARIABLE = "EDGEOPT_ANDROID_RUNNER"
"""Names the folder with a folder for each ABI in it."""
PROGRAM = "edgeopt-runner"
_LIBRARY = "libonnxruntime.so"
_SCRIPT = "examples/cpp/runner/build_android.sh"
"""Path in edgeopt's repository: no wheel holds sources in C++."""
_BUILD = f"build it with {_SCRIPT} of edgeopt's repository, and set {VARIABLE} to its folder"
_MACHINES = {"arm64-v8a": 183, "armeabi-v7a": 40, "x86_64": 62, "x86": 3}
"""Machine in the head of a program, by Android's ABI (the ELF specification's e_machine)."""
_HEAD = slice(18, 20)


@dataclass(frozen=True, slots=True)
class BuiltRunner:
    """The runner for one kind of phone."""

    abi: str
    files: Mapping[str, Path]
    """Program and libraries by their names."""


def find_runner(abis: Sequence[str]) -> BuiltRunner:
    """Return the runner for a phone.

    Args:
        abis: Those of the phone, the best first.

    Raises:
        EdgeoptError: If it is not built for the phone, or lies without ONNX Runtime; the line says what to do.
    """
    named = os.environ.get(VARIABLE, "")
    if not named:
        raise UnavailableError(f"a phone runs {PROGRAM}, and {VARIABLE} does not say where it lies", remedy=_BUILD)
    folder = Path(named)
    if not folder.is_dir():
        raise UnavailableError(f"{VARIABLE} names {folder}, which is no folder", remedy=_BUILD)
    abi = next((abi for abi in abis if (folder / abi / PROGRAM).is_file()), "")
    if not abi:
        held = sorted(path.parent.name for path in folder.glob(f"*/{PROGRAM}"))
        holds = f"for {', '.join(held)}" if held else "for no phone"
        wanted = " or ".join(abis) or "a phone that tells no ABI"
        raise UnavailableError(
            f"the phone needs {PROGRAM} for {wanted}, and {folder} holds it {holds}",
            remedy=f"build it for {abis[0]}: {_SCRIPT} {folder} {abis[0]}" if abis else _BUILD,
        )
    _require_machine(folder / abi / PROGRAM, abi)
    libraries = sorted((folder / abi).glob(f"{_LIBRARY}*"))
    if not libraries:
        raise UnavailableError(
            f"{folder / abi} holds no {_LIBRARY}", remedy=f"put that of the package onnxruntime-android for {abi} there"
        )
    return BuiltRunner(abi, {PROGRAM: folder / abi / PROGRAM, **{path.name: path for path in libraries}})


def _require_machine(program: Path, abi: str) -> None:
    with program.open("rb") as file:
        head = file.read(20)
    wanted, machine = _MACHINES.get(abi), int.from_bytes(head[_HEAD], "little")
    if head[:4] != b"\x7fELF":
        raise EdgeoptError(f"{program} is no program for Android", remedy=_BUILD)
    if wanted is not None and machine != wanted:
        built = next((name for name, number in _MACHINES.items() if number == machine), f"machine {machine}")
        raise EdgeoptError(f"{program} is built for {built}, not for {abi}", remedy=_BUILD)
