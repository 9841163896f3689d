"""The part of a remote command that runs on the device; it is sent as one file and imports nothing of edgeopt.

    python device_side.py NAME WORDS...

Names are the functions in `COMMANDS`. Below its own folder it keeps `store` (files by their SHA-256), `workers`
(environments by the hash of the wheel in them) and `jobs` (commands that run, or whose results nobody fetched yet).
A failure is one line on the standard error, `problem -> remedy`, and exit code 3.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import venv
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

ROOT = Path(__file__).resolve().parent
STORE, WORKERS, JOBS = ROOT / "store", ROOT / "workers", ROOT / "jobs"
STOPPED = 97
"""Exit code of `follow` where the command ended without one: the device was restarted, or something killed it."""
LOST = 255
"""Exit code that belongs to ssh itself."""
FILES = "@FILES@"
"""Stands in an argument for the folder that mirrors the files of the other side."""
_LINKED_BYTES = 8 << 20
"""From this size on a file is linked into a job and not copied: a command that writes into such a file would change
the store, and none does."""
_KEPT_S = 30 * 86400
"""Files and environments that no command used for so long are removed."""
_CHUNK = 1 << 20
_OLD_LINES = 3
"""Last lines of pip that say why it failed."""


def fail(problem: str, remedy: str) -> NoReturn:
    """End with one line."""
    print(f"{problem} -> {remedy}", file=sys.stderr)
    raise SystemExit(3)


def status(key: str) -> None:
    """Print what is here, as JSON: whether the environment is made, the processor, the bytes that are free."""
    found = {
        "ready": (WORKERS / key / "ready").is_file(),
        "machine": os.uname().machine,
        "python": ".".join(map(str, sys.version_info[:3])),
        "free_bytes": shutil.disk_usage(ROOT).free,
    }
    print(json.dumps(found))


def prepare(key: str, name: str, extras: str) -> None:
    """Make an environment from the wheel on the standard input; another command that makes the same is waited for."""
    WORKERS.mkdir(exist_ok=True)
    place = WORKERS / key
    with open(WORKERS / f"{key}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (place / "ready").is_file():
            return
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        wheel = place / name
        with open(wheel, "wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        try:
            venv.create(place, with_pip=True)
        except subprocess.CalledProcessError:
            fail(
                "Python cannot make a virtual environment", "install its module venv (Debian: apt install python3-venv)"
            )
        command = [str(place / "bin/python"), "-m", "pip", "install", "-q", "--no-compile", "--disable-pip-version-check"]
        done = subprocess.run([*command, f"{wheel}[{extras}]"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode:
            last = " ".join(done.stdout.decode(errors="replace").split("\n")[-_OLD_LINES - 1 :]).strip()
            shutil.rmtree(place, ignore_errors=True)
            fail(
                f"pip installs no edgeopt[{extras}]: {last}",
                "give the device an index of packages, or its pip.conf one",
            )
        (place / "ready").touch()


def missing() -> None:
    """Print which of the hashes on the standard input are not in the store, as JSON."""
    names = json.load(sys.stdin)
    for name in names:
        if _stored(name).is_file():
            os.utime(_stored(name))
    print(json.dumps([name for name in names if not _stored(name).is_file()]))


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
            with open(draft, "wb") as file:
                if _copy(source, file) != member.name:
                    draft.unlink()
                    fail("a file came over the network other than it was sent", "try again")
            os.replace(draft, place)


def begin(job: str) -> None:
    """Begin the command on the standard input (JSON), or say that it runs already.

    Keys: `worker`, `arguments`, `folder` (below the mirror, in which it runs), `files` (name to hash), `variables`.
    """
    place, asked = JOBS / job, json.load(sys.stdin)
    if (place / "begun").is_file():
        print(json.dumps({"goes_on": True}))
        return
    shutil.rmtree(place, ignore_errors=True)
    mirror = place / "files"
    (mirror / asked["folder"]).mkdir(parents=True)
    for name, digest in asked["files"].items():
        _lay(_stored(digest), mirror / name)
    (place / "before.json").write_text(json.dumps(_stamps(mirror)))
    (place / "request.json").write_text(json.dumps(asked))
    for name in ("out", "err"):
        (place / name).touch()
    null = subprocess.DEVNULL
    subprocess.Popen(
        [sys.executable, __file__, "watch", job], start_new_session=True, stdin=null, stdout=null, stderr=null
    )
    (place / "begun").touch()
    print(json.dumps({"goes_on": False}))


def watch(job: str) -> None:
    """Run a job's command to its end, alone on this device: two that measure would disturb each other."""
    place = JOBS / job
    asked = json.loads((place / "request.json").read_text())
    mirror = place / "files"
    (place / "watcher").write_text(str(os.getpid()))
    with open(place / "out", "ab") as out, open(place / "err", "ab") as err, open(ROOT / "measuring.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            err.write(b"waiting for another command on this device\n")
            err.flush()
            fcntl.flock(lock, fcntl.LOCK_EX)
        words = [word.replace(FILES, str(mirror)) for word in asked["arguments"]]
        command = [str(WORKERS / asked["worker"] / "bin/python"), "-m", "edgeopt", *words]
        process = subprocess.Popen(
            command,
            cwd=mirror / asked["folder"],
            env={**os.environ, **asked["variables"]},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
        )
        (place / "pid").write_text(str(process.pid))
        code = process.wait()
    draft = place / "code.draft"
    draft.write_text(str(code if code >= 0 else 128 - code))
    os.replace(draft, place / "code")


def follow(job: str, read_out: str, read_err: str) -> None:
    """Print what a job's command prints, from these places on, and end with its exit code."""
    place = JOBS / job
    if not (place / "begun").is_file():
        fail("the command is not on the device any more", "start it again")
    with open(place / "out", "rb") as out, open(place / "err", "rb") as err:
        out.seek(int(read_out))
        err.seek(int(read_err))
        while True:
            code = _code(place)
            for source, sink in ((out, sys.stdout.buffer), (err, sys.stderr.buffer)):
                shutil.copyfileobj(source, sink)
                sink.flush()
            if code is not None:
                raise SystemExit(min(code, LOST - 1))
            # The other side holds the standard input open; where it is gone, nobody reads on.
            if select.select([sys.stdin], [], [], 0.1)[0] and not os.read(0, 1):
                return


def stop(job: str) -> None:
    """Ask a job's command to end, as Ctrl-C does."""
    for name in ("pid", "watcher"):
        file = JOBS / job / name
        if file.is_file():
            try:
                os.kill(int(file.read_text()), signal.SIGTERM)
            except ProcessLookupError:
                continue
            return


def bring() -> None:
    """Write files of a job into a tar on the standard output: those that its command made or changed.

    The standard input holds JSON: `job`, and `below`, the places below the mirror that are wanted.
    """
    asked = json.load(sys.stdin)
    mirror = JOBS / asked["job"] / "files"
    before = json.loads((mirror.parent / "before.json").read_text())
    wanted = [Path(name) for name in asked["below"]]
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|", dereference=True) as archive:
        for name, stamp in _stamps(mirror).items():
            path = Path(name)
            if before.get(name) != stamp and any(place == path or place in path.parents for place in wanted):
                archive.add(mirror / name, name, recursive=False)


def forget(job: str) -> None:
    """Remove a job, and what no command used for a month."""
    shutil.rmtree(JOBS / job, ignore_errors=True)
    oldest = time.time() - _KEPT_S
    for path in STORE.glob("*/*"):
        if path.stat().st_mtime < oldest:
            path.unlink()
    for path in WORKERS.glob("*/ready"):
        if path.stat().st_mtime < oldest:
            shutil.rmtree(path.parent, ignore_errors=True)


def _code(place: Path) -> int | None:
    """Return the exit code of a job; None while it runs."""
    if (place / "code").is_file():
        return int((place / "code").read_text())
    watcher = place / "watcher"
    if watcher.is_file() and not _lives(int(watcher.read_text())):
        return int((place / "code").read_text()) if (place / "code").is_file() else STOPPED
    is_old = time.time() - (place / "begun").stat().st_mtime > 30
    return STOPPED if is_old and not watcher.is_file() else None


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _stored(digest: str) -> Path:
    if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        fail("a file has no hash as its name", "use the same edgeopt on both sides")
    return STORE / digest[:2] / digest


def _lay(stored: Path, place: Path) -> None:
    """Put a file of the store where the command looks for it."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if stored.stat().st_size >= _LINKED_BYTES:
        os.link(stored, place)
    else:
        shutil.copyfile(stored, place)


def _stamps(mirror: Path) -> dict[str, list[int]]:
    """Return size, time and number of every file in a mirror: another one is another file."""
    files = (path for path in mirror.rglob("*") if path.is_file() and not path.is_symlink())
    facts = {path.relative_to(mirror).as_posix(): path.stat() for path in files}
    return {name: [fact.st_size, fact.st_mtime_ns, fact.st_ino] for name, fact in facts.items()}


def _copy(source: Any, sink: BinaryIO) -> str:
    digest = hashlib.sha256()
    while block := source.read(_CHUNK):
        digest.update(block)
        sink.write(block)
    return digest.hexdigest()


COMMANDS = {
    each.__name__: each for each in (status, prepare, missing, store, begin, watch, follow, stop, bring, forget)
}


if __name__ == "__main__":
    try:
        COMMANDS[sys.argv[1]](*sys.argv[2:])
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
            raise
        fail(f"{ROOT} cannot be written: {error.strerror}", "free disk space there, or correct its permissions")
