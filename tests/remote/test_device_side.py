"""The program on the device, without a network between: jobs that end, stop, are followed twice, and are fetched."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from edgeopt.errors import EdgeoptError
from edgeopt.system.disk.wheel import Wheel
from edgeopt.verbs.remote.wheelhouse import DevicePlatform, collect_wheels

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


def small_wheel(name: str, needs: str = "") -> Wheel:
    """Return a wheel of nothing but its name, and perhaps an extra `more` that needs another."""
    stem = f"{name}-1.0.dist-info"
    more = f"Provides-Extra: more\nRequires-Dist: {needs}; extra == 'more'\n" if needs else ""
    files = {
        f"{name}.py": "",
        f"{stem}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{more}",
        f"{stem}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    contents = {path: text.encode() for path, text in files.items()}
    return Wheel(f"{name}-1.0-py3-none-any.whl", contents, frozenset({"more"} if needs else ()))


def test_a_wheel_that_was_cut_off_on_its_way_makes_no_environment(tmp_path):
    side, own = Side(tmp_path, "exit 0"), small_wheel("edgeopt").pack()
    words = ("prepare", "key", "edgeopt-1.0-py3-none-any.whl", hashlib.sha256(own).hexdigest(), "more")
    refused = subprocess.run([sys.executable, side.program, *words], input=own[:-9], capture_output=True, check=False)
    assert refused.returncode == 3
    assert b"edgeopt came with another hash" in refused.stderr
    assert not (tmp_path / "workers" / "key").exists()


def test_a_device_without_a_network_installs_from_wheels_that_were_sent(tmp_path, monkeypatch):
    side = Side(tmp_path, "exit 0")
    own, other = small_wheel("edgeopt", "helper").pack(), small_wheel("helper")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    for name in ("PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CONFIG_FILE"):
        monkeypatch.setenv(name, os.devnull if name == "PIP_CONFIG_FILE" else "")
    words = ("prepare", "key", "edgeopt-1.0-py3-none-any.whl", hashlib.sha256(own).hexdigest(), "more")
    refused = subprocess.run([sys.executable, side.program, *words], input=own, capture_output=True, check=False)
    assert refused.returncode == 3
    assert b"pip installs no edgeopt[more]" in refused.stderr
    assert side.ask("status", "key")["ready"] is False
    wheels = {other.name: side.put(other.pack())}
    python, ready = (side.root / "workers" / "key" / name for name in ("bin/python", "ready"))
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    ready.write_text("2.7")
    assert side.ask("status", "key")["ready"] is False, "made with a Python that was upgraded"
    side.call(*words, json.dumps(wheels), sent=own)
    assert side.ask("status", "key")["ready"] is True
    assert subprocess.run([python, "-c", "import edgeopt, helper"], check=False).returncode == 0
    python.unlink()
    python.symlink_to("python that was removed")
    assert side.ask("status", "key")["ready"] is False
    assert not (side.root / "workers" / "key" / "wheels").exists()


class Index(BaseHTTPRequestHandler):
    """An index with one package, which says of each answer that it may be kept."""

    def do_GET(self) -> None:
        name = "helper-1.0-py3-none-any.whl"
        is_page = not self.path.endswith(".whl")
        body = f'<a href="/{name}">{name}</a>'.encode() if is_page else small_wheel("helper").pack()
        self.send_response(200)
        self.send_header("Content-Type", "text/html" if is_page else "application/octet-stream")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"1"')
        self.send_header("Cache-Control", "max-age=3600")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_the_device_s_own_cache_of_packages_is_not_filled(tmp_path, monkeypatch):
    side, own = Side(tmp_path / "root", "exit 0"), small_wheel("edgeopt", "helper").pack()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    with ThreadingHTTPServer(("127.0.0.1", 0), Index) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/")
        monkeypatch.setenv("PIP_TRUSTED_HOST", "127.0.0.1")  # of others pip keeps nothing
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("PATH", os.defpath)  # pip asks for Rust's version, and rustup makes a folder then
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        words = ("prepare", "key", "edgeopt-1.0-py3-none-any.whl", hashlib.sha256(own).hexdigest(), "more")
        side.call(*words, sent=own)
        server.shutdown()
    assert (side.root / "workers" / "key" / "ready").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["root"]


def test_wheels_for_another_processor_are_collected_here(tmp_path, monkeypatch):
    """The index is a folder: what `pip download` takes for a processor that is not this one."""
    index, folder = tmp_path / "index", tmp_path / "wheels"
    index.mkdir()
    (index / "helper-1.0-py3-none-any.whl").write_bytes(small_wheel("helper").pack())
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    wheel = small_wheel("edgeopt", "helper")
    board = DevicePlatform("aarch64", "3.12")
    names = [path.name for path in collect_wheels(board, wheel, ["more"], folder)]
    assert names == ["edgeopt-1.0-py3-none-any.whl", "helper-1.0-py3-none-any.whl"]
    (index / "helper-1.0-py3-none-any.whl").unlink()
    assert collect_wheels(board, wheel, ["more"], folder), "what lies in the folder is not fetched again"
    (folder / "helper-1.0-py3-none-any.whl").unlink()
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(EdgeoptError, match="is no folder"):
        collect_wheels(board, wheel, ["more"], file)
    with pytest.raises(EdgeoptError, match=r"no wheels for aarch64, Python 3\.12: .*helper"):
        collect_wheels(board, wheel, ["more"], folder)
