"""What runs on the device, without a network between: jobs that end, stop, are followed twice, and are fetched."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

SIDE = Path(__file__).parents[2] / "toolkit" / "edgeopt" / "verbs" / "remote" / "_device_side.py"
MARKER = b"edgeopt-device:"
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the device's side needs a POSIX system")


class Side:
    """A device's folder, in which a shell script stands for edgeopt: what a command does is not its affair."""

    def __init__(self, root: Path, script: str) -> None:
        (root / "workers" / "w" / "bin").mkdir(parents=True)
        self.root, self.program = root, root / "side.py"
        self.program.write_bytes(SIDE.read_bytes())
        python = root / "workers" / "w" / "bin" / "python"
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o700)

    def call(self, *words: str, sent: bytes = b"") -> bytes:
        done = subprocess.run([sys.executable, self.program, *words], input=sent, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def ask(self, *words: str, sent: bytes = b"") -> Any:
        return json.loads(self.call(*words, sent=sent).removeprefix(MARKER))

    def begin(self, **more: Any) -> bool:
        asked = {"worker": "w", "arguments": ["go"], "folder": "home", "files": {}, "writes": ["home/out"], **more}
        return self.ask("begin", "job", sent=json.dumps({"variables": {}, **asked}).encode())["goes_on"]

    def follow(self) -> tuple[int, bytes]:
        """Return the code and what was printed; the standard input stays open, as ssh holds it."""
        command = [sys.executable, self.program, "follow", "job", "0", "0"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout
        printed, code = b"", None
        for line in process.stdout:
            head = json.loads(line.removeprefix(MARKER))
            code = head.get("code")
            printed += process.stdout.read(head.get("bytes", 0))
        process.communicate()
        assert code is not None
        return code, printed

    def brought(self) -> dict[str, bytes]:
        sent = json.dumps({"job": "job", "below": ["home/out"]}).encode()
        content = self.call("bring", sent=sent).partition(b"\n")[2]
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            return {each.name: archive.extractfile(each).read() for each in archive}

    def put(self, content: bytes) -> str:
        """Store a file, and return its hash."""
        digest, packed = hashlib.sha256(content).hexdigest(), io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w|") as archive:
            entry = tarfile.TarInfo(digest)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
        self.call("store", sent=packed.getvalue())
        return digest


def wait_until(is_so: Any) -> None:
    until_s = monotonic() + 60
    while not is_so():
        assert monotonic() < until_s
        sleep(0.02)


def test_a_job_runs_is_followed_fetched_and_forgotten(tmp_path):
    side = Side(tmp_path, "echo $0 $*; echo no line; mkdir out; echo made > out/a; echo other > b; exit 3")
    assert not side.begin()
    code, printed = side.follow()
    assert code == 3
    assert printed.endswith(b"-m edgeopt go\nno line\n")
    assert side.brought() == {"home/out/a": b"made\n"}
    side.call("forget", "job")
    assert not list((tmp_path / "jobs").iterdir())


def test_what_ended_unfetched_is_taken_up_and_what_was_delivered_begins_anew(tmp_path):
    side = Side(tmp_path, "date +%N")
    side.begin()
    first = side.follow()
    assert side.begin(), "nobody fetched it"
    assert side.follow() == first
    (tmp_path / "jobs" / "job" / "delivered").touch()
    assert not side.begin()
    assert side.follow() != first


def test_a_job_that_is_followed_elsewhere_is_not_removed(tmp_path):
    side = Side(tmp_path, "sleep 1; echo end")
    side.begin()
    command = [sys.executable, side.program, "follow", "job", "0", "0"]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    wait_until(lambda: (tmp_path / "jobs" / "job" / "followed").exists())
    side.call("forget", "job")
    assert b"end\n" in other.communicate()[0] or (tmp_path / "jobs" / "job").exists()


def test_stop_ends_a_job_that_runs_and_one_that_waits(tmp_path):
    side = Side(tmp_path, "trap 'exit 130' TERM; sleep 60 & wait")
    side.begin()
    wait_until(lambda: (tmp_path / "jobs" / "job" / "started").exists())
    side.call("begin", "next", sent=(tmp_path / "jobs" / "job" / "request.json").read_bytes())
    wait_until(lambda: b"waiting" in (tmp_path / "jobs" / "next" / "err").read_bytes())
    side.call("stop", "next")
    wait_until(lambda: (tmp_path / "jobs" / "next" / "code").exists())
    assert (tmp_path / "jobs" / "next" / "code").read_text() == "130"
    assert not (tmp_path / "jobs" / "next" / "started").exists(), "it never ran"
    side.call("stop", "job")
    assert side.follow()[0] == 130


def test_a_reused_number_of_a_process_is_not_taken_for_the_job(tmp_path):
    side = Side(tmp_path, "sleep 60")
    side.begin()
    wait_until(lambda: (tmp_path / "jobs" / "job" / "started").exists())
    # As after a restart of the device: the folder is as it was, and nothing of it runs.
    other = Side(tmp_path / "again", "true")
    job = tmp_path / "again" / "jobs" / "job"
    job.mkdir(parents=True)
    for path in (tmp_path / "jobs" / "job").iterdir():
        if path.is_file():
            (job / path.name).write_bytes(path.read_bytes())
    assert other.follow()[0] == 97
    side.call("stop", "job")
    assert side.follow()[0] == 143


def test_what_a_job_may_write_is_a_copy_and_the_store_stays(tmp_path):
    side = Side(tmp_path, "mkdir -p out; echo x >> out/w; stat -c %h out/w r")
    digest = side.put(bytes(9 << 20))
    side.begin(files={"home/out/w": digest, "home/r": digest})
    assert side.follow()[1] == b"1\n2\n", "only what is read is linked"
    assert side.brought()["home/out/w"][-2:] == b"x\n"
    stored = tmp_path / "store" / digest[:2] / digest
    assert stored.stat().st_mode & 0o222 == 0


def test_an_environment_in_use_is_not_removed_and_old_things_are(tmp_path):
    side = Side(tmp_path, "sleep 60")
    digest, old = side.put(b"x"), 1.0
    (tmp_path / "store" / digest[:2] / f"{digest}.77").touch()
    (tmp_path / "workers" / "w" / "ready").touch()
    (tmp_path / "workers" / "unused").mkdir()
    (tmp_path / "workers" / "unused" / "ready").touch()
    side.begin()
    wait_until(lambda: (tmp_path / "jobs" / "job" / "started").exists())
    for path in (*(tmp_path / "store").glob("*/*"), *(tmp_path / "workers").glob("*/ready")):
        os.utime(path, (old, old))
    side.call("forget", "nothing")
    assert not list((tmp_path / "store").glob("*/*"))
    assert [path.parent.name for path in (tmp_path / "workers").glob("*/ready")] == ["w"]
    side.call("stop", "job")
    side.follow()
