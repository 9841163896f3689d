"""The part of a remote command that runs on the device; it is sent as one file and imports nothing of edgeopt.

    python device_side.py NAME WORDS...

Names are the functions in `COMMANDS`. Below its own folder it keeps `store` (files by their SHA-256), `workers`
(environments by the hash of the wheel in them) and `jobs` (commands that run, or whose results nobody fetched yet).
An answer is JSON behind a marker: a shell's start file may print what it likes before. A failure is one line on the
standard error, marker, problem, ` -> `, remedy, and exit code 3.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import platform
import select
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

ROOT = Path(__file__).resolve().parent
STORE, WORKERS, JOBS = ROOT / "store", ROOT / "workers", ROOT / "jobs"
PYTHON = ".".join(map(str, sys.version_info[:2]))
"""Version of this Python, by which its environments find their packages."""
MARKER = "edgeopt-device:"
"""Stands before every answer."""
NO_PACKAGES = "pip installs no"
"""How the failure begins where a device gets no packages."""
STOPPED = 97
"""Code of a command that ended without one: the device was restarted, or something killed what watched it."""
FILES = "@FILES@"
"""Stands in an argument for the folder that mirrors the files of the other side."""
_LINKED_BYTES = 8 << 20
"""Bytes from which on a file that is only read is linked into a job and not copied."""
_KEPT_S, _DRAFT_S = 30 * 86400, 3600
"""Files, environments and results that nobody used for so long are removed, and so are drafts of files."""
_STARTING_S = 30
"""A job has ended if nothing watches it so long after it was begun."""
_CHUNK = 1 << 20
_LAST_LINES = 3
"""Lines of pip that say why it failed."""


def answer(value: Any) -> None:
    """Print an answer."""
    print(f"{MARKER}{json.dumps(value)}", flush=True)


def fail(problem: str, remedy: str) -> NoReturn:
    """End with one line."""
    print(f"{MARKER}{problem} -> {remedy}", file=sys.stderr)
    raise SystemExit(3)


@contextmanager
def locked(path: Path, how: int) -> Iterator[bool]:
    """Hold a lock on a file; it is gone with the process, so that no dead one is taken for alive.

    Yields:
        Whether it is held: with `LOCK_NB` another process may have it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, how)
        except BlockingIOError:
            yield False
        else:
            yield True


def status(key: str) -> None:
    """Answer whether an environment is made, and how many bytes are free."""
    is_ready = _is_ready(WORKERS / key)
    if is_ready:
        os.utime(WORKERS / key / "ready")
    answer({"ready": is_ready, "free_bytes": shutil.disk_usage(ROOT).free})


def _is_ready(place: Path) -> bool:
    """Return whether an environment is whole, and its Python still the one that it was made with."""
    try:
        version = (place / "ready").read_text()
    except OSError:
        return False
    return version == PYTHON and (place / "bin/python").exists()  # an upgrade may remove what the link leads to


def facts() -> None:
    """Answer what decides which wheels and targets fit: the Python, the system, the processor and the C library."""
    libc, version = platform.libc_ver()
    values = {"python": PYTHON, "system": sys.platform, "machine": platform.machine(), "libc": [libc, version]}
    answer({**values, "flags": _processor_flags()})


def _processor_flags() -> list[str]:
    """Return the processor's instruction flags in Linux words; none where the system tells of none."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
    names = ("flags", "Features")
    return next((line.partition(":")[2].split() for line in lines if line.partition(":")[0].strip() in names), [])


NO_VENV = "Python makes no virtual environment", "install its module venv (Debian: apt install python3-venv)"


def prepare(key: str, name: str, digest: str, extras: str, wheels: str = "{}") -> None:
    """Make an environment from the wheel on the standard input. Another command that makes the same is waited for.

    `wheels` names files of the store from which alone packages are taken (JSON, file name to hash); none: an index is.
    """
    try:
        import venv  # no other function needs it, and each command calls ten of them
    except ImportError:
        fail(*NO_VENV)
    packed = sys.stdin.buffer.read()  # before the lock: of a link that died nobody says that it ended
    if hashlib.sha256(packed).hexdigest() != digest:  # before minutes of work with it
        fail("edgeopt came with another hash", "its sending was cut off: try again")
    place = WORKERS / key
    with locked(WORKERS / f"{key}.lock", fcntl.LOCK_EX):
        if _is_ready(place):
            return
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        wheel = place / name
        wheel.write_bytes(packed)
        try:
            venv.create(place, with_pip=True)
        except subprocess.CalledProcessError:
            fail(*NO_VENV)
        pip = [
            str(place / "bin/python"),
            "-P",
            "-m",
            "pip",
            "install",
            "-q",
            "--no-compile",
            "--disable-pip-version-check",
        ]
        pip += ["--no-cache-dir"]  # the cache is the user's, and lies outside of this folder
        pip += _packages_from(json.loads(wheels), place / "wheels")
        done = subprocess.run([*pip, f"{wheel}[{extras}]"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        shutil.rmtree(place / "wheels", ignore_errors=True)
        if done.returncode:
            said = done.stdout.decode(errors="replace").strip().split("\n")
            shutil.rmtree(place, ignore_errors=True)
            last = " ".join(said[-_LAST_LINES:])
            fail(f"{NO_PACKAGES} edgeopt[{extras}]: {last}", "give the device a network, a pip.conf or a wheelhouse")
        (place / "ready").write_text(PYTHON)


def _packages_from(wheels: dict[str, str], folder: Path) -> list[str]:
    """Return where pip takes packages from: a folder of wheels, or an index, which is not asked for ever."""
    if not wheels:
        return ["--retries", "1", "--timeout", "10"]
    folder.mkdir()
    for name, digest in wheels.items():
        (folder / Path(name).name).symlink_to(_stored(digest))
    return ["--no-index", "--find-links", str(folder)]


def missing() -> None:
    """Answer which of the hashes on the standard input are not in the store."""
    names = json.load(sys.stdin)
    for name in names:
        if _stored(name).is_file():
            os.utime(_stored(name))
    answer([name for name in names if not _stored(name).is_file()])


def store() -> None:
    """Take files from a tar on the standard input, whose names are their hashes."""
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
        for member in archive:
            source = archive.extractfile(member)
            if source is None:
                continue
            place = _stored(member.name)
            place.parent.mkdir(parents=True, exist_ok=True)
            draft = place.with_name(f"{place.name}.{os.getpid()}")
            try:
                with open(draft, "wb") as file:
                    digest = _copy(source, file)
                if digest != member.name:
                    fail("a file that was sent has another hash", "it changed meanwhile, or on its way: try again")
                draft.chmod(0o400)  # what is in the store is never written again
                os.replace(draft, place)
            finally:
                draft.unlink(missing_ok=True)


def begin(job: str) -> None:
    """Begin the command on the standard input (JSON), or answer that it runs already, or ended and was not fetched.

    Keys: `worker`, `arguments`, `folder` (below the mirror, in which it runs), `files` (name to hash), `writes` (places
    below the mirror that it may write), `variables`.
    """
    place, request = JOBS / job, json.load(sys.stdin)
    with locked(JOBS / f"{job}.lock", fcntl.LOCK_EX):
        goes_on = (place / "begun").is_file() and not (place / "delivered").is_file()
        if not goes_on:
            try:
                _lay_out(place, request)
            except BaseException:
                shutil.rmtree(place, ignore_errors=True)
                raise
            (place / "begun").touch()
            null, command = subprocess.DEVNULL, [sys.executable, __file__, "watch", job]
            subprocess.Popen(command, start_new_session=True, stdin=null, stdout=null, stderr=null)
    answer({"goes_on": goes_on, "mirror": str(place / "files")})


def _lay_out(place: Path, request: Any) -> None:
    """Make the folder of a job, with the files that its command reads."""
    shutil.rmtree(place, ignore_errors=True)
    mirror, writes = place / "files", [Path(name) for name in request["writes"]]
    (mirror / request["folder"]).mkdir(parents=True)
    for name, digest in request["files"].items():
        _lay(_stored(digest), mirror / name, may_link=not _is_below(Path(name), writes))
    (place / "before.json").write_text(json.dumps(_stamps(mirror)))
    (place / "request.json").write_text(json.dumps(request))
    for name in ("out", "err"):
        (place / name).touch()


def watch(job: str) -> None:
    """Run a job's command to its end, alone on this device: two that measure would disturb each other."""
    place = JOBS / job
    request = json.loads((place / "request.json").read_text())
    worker, mirror = request["worker"], place / "files"
    with (
        locked(place / "alive", fcntl.LOCK_EX),
        locked(WORKERS / f"{worker}.lock", fcntl.LOCK_SH),
        open(place / "out", "ab") as out,
        open(place / "err", "ab") as err,
    ):
        words = [word.replace(FILES, str(mirror)) for word in request["arguments"]]
        with open(ROOT / "measuring.lock", "a") as lock:
            _wait_for(lock, place, err)
            code = _run([str(WORKERS / worker / "bin/python"), "-P", "-m", "edgeopt", *words], place, request, out, err)
        _write(place / "code", str(code))


def _wait_for(lock: Any, place: Path, err: BinaryIO) -> None:
    """Wait until no other command runs here, or this one is to stop."""
    has_said = False
    while not (place / "stop").exists():
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not has_said:
                err.write(b"waiting for another command on this device\n")
                err.flush()
            has_said = True
            time.sleep(0.5)
        else:
            return


def _run(command: list[str], place: Path, request: Any, out: BinaryIO, err: BinaryIO) -> int:
    """Run a command until it ends; where the job is to stop, it is asked to end as by Ctrl-C."""
    if (place / "stop").exists():
        return 130
    process = subprocess.Popen(
        command,
        cwd=place / "files" / request["folder"],
        env={**os.environ, **request["variables"]},
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
    )
    (place / "started").touch()
    is_told = False
    while True:
        try:
            code = process.wait(0.2)
        except subprocess.TimeoutExpired:
            if not is_told and (place / "stop").exists():
                process.send_signal(signal.SIGTERM)
                is_told = True
        else:
            return code if code >= 0 else 128 - code


def follow(job: str, read_out: str, read_err: str) -> None:
    """Answer what a job's command prints, from these places on, and its code: frames of a JSON head and its bytes."""
    place = JOBS / job
    if not (place / "begun").is_file():
        fail("the command is not on the device any more", "start it again")
    with (
        locked(place / "followed", fcntl.LOCK_SH),
        open(place / "out", "rb") as out,
        open(place / "err", "rb") as err,
    ):
        out.seek(int(read_out))
        err.seek(int(read_err))
        while True:
            code = _code(place)
            for name, source in (("out", out), ("err", err)):
                while block := source.read(_CHUNK):
                    _frame({"stream": name, "bytes": len(block)}, block)
            if code is not None:
                _frame({"code": code, "signal": _signal_of(code)}, b"")
                return
            # The other side holds the standard input open; where it is gone, nobody reads on.
            if select.select([sys.stdin], [], [], 0.1)[0] and not os.read(0, 1):
                return


def _signal_of(code: int) -> str:
    """Return the signal that a code stands for as this system calls it: its numbers are not those of another one."""
    names = {each.value: each.name for each in signal.Signals}
    return names.get(code - 128, f"signal {code - 128}") if code > 128 else ""


def _frame(head: Any, body: bytes) -> None:
    sys.stdout.buffer.write(f"{MARKER}{json.dumps(head)}\n".encode() + body)
    sys.stdout.buffer.flush()


def stop(job: str) -> None:
    """Ask a job's command to end, as Ctrl-C does, also one that has not started yet."""
    if (JOBS / job).is_dir():
        (JOBS / job / "stop").touch()


def bring() -> None:
    """Write files of a job into a tar behind the marker: those that its command made or changed.

    The standard input holds JSON: `job`, and `below`, the places below the mirror that are wanted.
    """
    request = json.load(sys.stdin)
    mirror = JOBS / request["job"] / "files"
    before = json.loads((mirror.parent / "before.json").read_text())
    wanted = [Path(name) for name in request["below"]]
    answer({})
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|", dereference=True) as archive:
        for name, stamp in _stamps(mirror).items():
            if before.get(name) != stamp and _is_below(Path(name), wanted):
                archive.add(mirror / name, name, recursive=False)


def forget(job: str) -> None:
    """Remove a job whose results were fetched, unless somebody else follows it, and what nobody used for a month."""
    place = JOBS / job
    if place.is_dir():
        (place / "delivered").touch()
        with locked(place / "followed", fcntl.LOCK_EX | fcntl.LOCK_NB) as is_free:
            if is_free:
                shutil.rmtree(place, ignore_errors=True)
                (JOBS / f"{job}.lock").unlink(missing_ok=True)
    now_s = time.time()
    for path in STORE.glob("*/*"):
        if now_s - path.stat().st_mtime > (_DRAFT_S if "." in path.name else _KEPT_S):
            path.unlink()
    for path in (*ROOT.glob("side-*"), *JOBS.glob("*/code"), *WORKERS.glob("*/ready")):
        if now_s - path.stat().st_mtime > _KEPT_S:
            _remove(path)


def _remove(path: Path) -> None:
    """Remove an old file of this program, or the job or environment that a file stands for, unless it is in use."""
    if path.parent == ROOT:
        path.unlink()
        return
    with locked(path.parent.with_name(f"{path.parent.name}.lock"), fcntl.LOCK_EX | fcntl.LOCK_NB) as is_free:
        if is_free:
            shutil.rmtree(path.parent, ignore_errors=True)


def _code(place: Path) -> int | None:
    """Return the exit code of a job; None while it runs."""
    code = place / "code"
    if code.is_file():
        return int(code.read_text())
    with locked(place / "alive", fcntl.LOCK_SH | fcntl.LOCK_NB) as is_free:
        if not is_free:
            return None
    if code.is_file():  # it ended meanwhile
        return int(code.read_text())
    has_run = (place / "started").exists() or time.time() - (place / "begun").stat().st_mtime > _STARTING_S
    return STOPPED if has_run else None


def _stored(digest: str) -> Path:
    if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        fail("a file has no hash as its name", "use the same edgeopt on both sides")
    return STORE / digest[:2] / digest


def _is_below(path: Path, places: list[Path]) -> bool:
    return any(place == path or place in path.parents for place in places)


def _lay(stored: Path, place: Path, *, may_link: bool) -> None:
    """Put a file of the store where the command looks for it; what it may write is a copy."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if may_link and stored.stat().st_size >= _LINKED_BYTES:
        try:
            os.link(stored, place)
        except OSError:  # a file system without hard links
            shutil.copyfile(stored, place)
    else:
        shutil.copyfile(stored, place)


def _stamps(mirror: Path) -> dict[str, list[int]]:
    """Return size, time and number of every file in a mirror: another one is another file."""
    files = (path for path in mirror.rglob("*") if path.is_file() and not path.is_symlink())
    facts = {path.relative_to(mirror).as_posix(): path.stat() for path in files}
    return {name: [fact.st_size, fact.st_mtime_ns, fact.st_ino] for name, fact in facts.items()}


def _write(path: Path, text: str) -> None:
    """Write a file that is whole whenever it is there."""
    draft = path.with_name(f"{path.name}.draft")
    draft.write_text(text)
    os.replace(draft, path)


def _copy(source: Any, sink: BinaryIO) -> str:
    digest = hashlib.sha256()
    while block := source.read(_CHUNK):
        digest.update(block)
        sink.write(block)
    return digest.hexdigest()


COMMANDS = {
    each.__name__: each for each in (status, facts, prepare, missing, store, begin, watch, follow, stop, bring, forget)
}


if __name__ == "__main__":
    os.umask(0o077)  # models and pictures are nobody else's affair
    try:
        COMMANDS[sys.argv[1]](*sys.argv[2:])
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
            raise
        fail(f"{ROOT} cannot be written: {error.strerror}", "free disk space there, or correct its permissions")
