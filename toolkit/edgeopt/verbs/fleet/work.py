"""The part of a fleet that runs on a worker: one cell, in a folder that outlives the worker's process."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from platform import node

from edgeopt.errors import EXIT_INCONCLUSIVE, EXIT_MISSED, EXIT_NOISY, EXIT_PASS, EdgeoptError
from edgeopt.graph.files.outside import sha256_of
from edgeopt.runtime.devices.availability import find_device, is_compiled
from edgeopt.system.cluster.dask import worker_address
from edgeopt.system.cluster.store import MissingFiles, forget_old, machine_lock, root, stored
from edgeopt.system.disk.locks import hold
from edgeopt.system.machine.processor import cpu_name
from edgeopt.verbs.remote.command import FILES
from edgeopt.verbs.remote.search import MACHINE_LOCK

TOPIC = "edgeopt"
"""Topic of the cluster's events under which a worker tells of its cells."""
_LAST_LINES = 12
_LEFT_OUT = frozenset({".calibration", "candidates", "engines"})
"""Folders of a run, and of the runs of a pipeline's models, that stay on the worker: bundle and report come back."""
_BUNDLE = "bundle"
_BEGUN = "*run.json"
"""Pattern of the file that a run of any kind writes at its beginning and is resumed by: `run.json`, `language-run.json`
and so on."""
_running: dict[str, subprocess.Popen[bytes]] = {}
"""The commands that run in this process, by the key of their cell."""


@dataclass(frozen=True, slots=True)
class CellRequest:
    """A cell as a worker is asked to run it."""

    key: str
    """Hash of all that enters; its folder is called so."""
    words: tuple[str, ...]
    files: Mapping[str, tuple[str, str]]
    """Name in the mirror to hash, and to the place where the file lies on the machine that asked."""
    folder: str
    """Name in the mirror of the folder in which the command runs."""
    is_here: bool
    """Whether the device is the worker's own machine."""
    target: str = ""


@dataclass(frozen=True, slots=True)
class CellRun:
    """A cell that ran to its end."""

    key: str
    code: int
    """Exit code of the command."""
    worker: str
    machine: str
    processor: str
    waited_s: float
    """Seconds until the machine was free."""
    began_s: float
    """Instant by the worker's clock, in seconds since 1970."""
    ended_s: float
    lines: tuple[str, ...]
    """Last lines of the command's output."""
    packed: bytes = b""
    """A tar with bundle and report."""

    @property
    def is_finished(self) -> bool:
        """Whether the command came to a result: what failed or was interrupted is run again."""
        return self.code in (EXIT_PASS, EXIT_MISSED, EXIT_INCONCLUSIVE, EXIT_NOISY)

    def without_files(self) -> CellRun:
        """Return what is told of it, without what it made."""
        return replace(self, packed=b"")


def run_cell(request: CellRequest) -> CellRun | MissingFiles:
    """Run a cell's command to its end; one that an earlier worker began goes on from what that left."""
    place = root() / "cells" / request.key
    mirror = place / "files"
    absent = frozenset(
        digest for name, (digest, origin) in request.files.items() if not _lay(mirror / name, digest, origin)
    )
    if absent:
        return MissingFiles(worker_address(), absent)
    (mirror / request.folder).mkdir(parents=True, exist_ok=True)
    out, asked_s = place / "out", time.time()
    with _alone(request) as locks:
        began_s = time.time()
        code, lines = _run(request, out, mirror, locks)
        ended_s = time.time()
    facts = (worker_address(), node(), cpu_name())
    done = CellRun(request.key, code, *facts, began_s - asked_s, began_s, ended_s, lines, _packed(out))
    shutil.rmtree(mirror, ignore_errors=True)
    return done


def stop_cells(keys: frozenset[str]) -> None:
    """Ask the commands of cells to end, as Ctrl-C does."""
    for key in keys & _running.keys():
        with contextlib.suppress(OSError):
            _running[key].terminate()


def forget_cell(key: str) -> None:
    """Remove what is left of a cell whose result was stored, and what nobody used for a month."""
    shutil.rmtree(root() / "cells" / key, ignore_errors=True)
    forget_old()


@contextlib.contextmanager
def _alone(request: CellRequest) -> Iterator[tuple[int, ...]]:
    """Take the machine for a cell of it; yield what its command holds on to beyond this worker's end.

    A cell that measures has it alone, one that only computes shares it. The command of a device elsewhere takes it by
    itself, as long as it searches here.
    """
    if not request.is_here:
        yield ()
        return
    with hold(machine_lock(), is_shared=not _is_timed(request.target)) as file:
        yield (file.fileno(),)


def _is_timed(name: str) -> bool:
    """Return whether frames of a target are timed on this machine: a simulated NPU has numbers and no times."""
    try:
        target = find_device(name)
    except EdgeoptError:  # its command says why
        return True
    return not (is_compiled(target) or target.why_untimed())


def _run(request: CellRequest, out: Path, mirror: Path, locks: tuple[int, ...]) -> tuple[int, tuple[str, ...]]:
    """Run the command and tell of each of its lines; return its exit code and the last lines."""
    words = [word.replace(FILES, str(mirror)) for word in request.words]
    options = ["--out", str(out), *(["--resume"] if any(out.glob(_BEGUN)) else [])]
    command = [sys.executable, "-m", "edgeopt.verbs.fleet.child", words[0], *options, *words[1:]]
    last: deque[str] = deque(maxlen=_LAST_LINES)
    tell = _teller(request.key)
    tell("")
    with subprocess.Popen(
        command,
        cwd=mirror / request.folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, MACHINE_LOCK: str(machine_lock())},
        pass_fds=() if sys.platform == "win32" else locks,
    ) as process:
        _running[request.key] = process
        try:
            assert process.stdout
            assert process.stderr
            drain = threading.Thread(target=process.stdout.read, daemon=True)
            drain.start()
            for line in io.TextIOWrapper(process.stderr, "utf-8", "replace"):
                if text := line.rstrip():
                    last.append(text)
                    tell(text)
            drain.join()
            code = process.wait()
        finally:
            del _running[request.key]
            process.kill()
    return code if code >= 0 else 128 - code, tuple(last)


def _teller(key: str) -> Callable[[str], None]:
    """Return what tells the cluster of a line of a cell's command; outside of a cluster nobody hears it."""
    try:
        from distributed import get_worker

        worker = get_worker()
    except (ImportError, ValueError):
        return lambda _: None
    return lambda text: worker.log_event(TOPIC, {"key": key, "line": text, "worker": worker.address})


def _lay(place: Path, digest: str, origin: str) -> bool:
    """Put a file into the mirror, from where it lies on a shared disk or from the store; return whether it is there."""
    if place.is_file() and sha256_of(place) == digest:
        return True
    place.unlink(missing_ok=True)
    sources = [path for path in (stored(digest), Path(origin)) if path.is_file()]
    source = next((path for path in sources if path != Path(origin) or sha256_of(path) == digest), None)
    if source is None:
        return False
    place.parent.mkdir(parents=True, exist_ok=True)
    if source == stored(digest):
        os.utime(source)  # it is in use
    try:
        os.link(source, place)
    except OSError:  # another disk
        shutil.copyfile(source, place)
    return True


def _packed(out: Path) -> bytes:
    """Return bundle and report in a tar."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
        for path in sorted(out.rglob("*")):
            name = path.relative_to(out)
            left_out = name.parts[0] != _BUNDLE and {*name.parts} & _LEFT_OUT
            if path.is_file() and not left_out and not name.name.startswith("."):
                archive.add(path, name.as_posix())
    return packed.getvalue()
