"""The browser's engine without a browser: profiles that a killed process left, sockets of strangers, and a hang."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgeopt.errors import UnavailableError
from edgeopt.executors.browser import chromium, host
from edgeopt.executors.browser.chromium import WASM, sweep
from edgeopt.executors.browser.server import PageServer

OLD_S = 3600.0


def profile(folder: Path, name: str, age_s: float = OLD_S) -> Path:
    made = folder / f"edgeopt-browser-{name}"
    (made / "profile").mkdir(parents=True)
    (made / "start.html").touch()
    os.utime(made, (time.time() - age_s,) * 2)
    return made


def ended_process() -> int:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


def lock(made: Path, text: str) -> None:
    (made / "profile" / "SingletonLock").symlink_to(text)
    os.utime(made, (time.time() - OLD_S,) * 2)


@pytest.mark.skipif(sys.platform == "win32", reason="Chromium has another lock there")
def test_profiles_that_nobody_uses_are_removed_and_no_others(tmp_path):
    mine = socket.gethostname()
    left, dead, alive, elsewhere = (profile(tmp_path, name) for name in ("left", "dead", "alive", "elsewhere"))
    lock(dead, f"{mine}-{ended_process()}")
    lock(alive, f"{mine}-{os.getpid()}")
    lock(elsewhere, f"another.host-{ended_process()}")
    young = profile(tmp_path, "young", age_s=0)
    (tmp_path / "victim").mkdir()
    link = tmp_path / "edgeopt-browser-link"
    link.symlink_to(tmp_path / "victim")
    (tmp_path / "edgeopt-browser-file").touch()
    sweep(tmp_path)
    assert not left.exists()
    assert not dead.exists()
    assert all(path.exists() for path in (alive, elsewhere, young, link, tmp_path / "victim"))


@pytest.mark.skipif(sys.platform == "win32", reason="the program is a shell's")
def test_a_profile_that_another_process_holds_stays_until_that_ends(tmp_path, monkeypatch):
    program = tmp_path / "browser"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o700)
    monkeypatch.setenv("EDGEOPT_BROWSER", str(program))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(chromium, "_SECONDS_OF_A_START", -1.0)
    browser = chromium.Chromium("http://127.0.0.1:1/", WASM)
    (made,) = tmp_path.glob("edgeopt-browser-*")
    held = "import sys; from pathlib import Path; from edgeopt.executors.browser import chromium\n"
    held += "chromium._SECONDS_OF_A_START = -1.0; chromium.sweep(Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", held, str(tmp_path)], check=True)
    assert made.exists()
    browser.close()
    assert not list(tmp_path.glob("edgeopt-browser-*"))


@pytest.mark.skipif(sys.platform == "win32", reason="the program is a shell's")
def test_a_browser_that_hangs_is_one_line_and_is_not_waited_for_again(tmp_path, monkeypatch):
    pytest.importorskip("websockets")
    program = tmp_path / "browser"
    program.write_text(f"#!/bin/sh\necho x >> '{tmp_path}/starts'\nexec sleep 60\n")
    program.chmod(0o700)
    monkeypatch.setenv("EDGEOPT_BROWSER", str(program))
    monkeypatch.setattr(host, "find_package", lambda: SimpleNamespace(files=tmp_path, version="1"))
    monkeypatch.setattr(host, "_START_SECONDS", 0.5)
    monkeypatch.setattr(host, "_hung", {})
    monkeypatch.setattr(host, "_hosts", {})  # another test of this process may have left a browser that runs
    for _ in range(3):
        with pytest.raises(UnavailableError, match=r"the browser opened no page within 0.5 s") as refused:
            host.open_worker("wasm")
        assert "EDGEOPT_BROWSER" in refused.value.remedy
    assert (tmp_path / "starts").read_text() == "x\n"


@pytest.fixture
def server(tmp_path):
    pytest.importorskip("websockets")
    made = PageServer(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("origin", [None, "null", "http://evil.example", "http://localhost:{port}", "file://"])
def test_pages_of_other_sites_get_no_socket(server, origin):
    from websockets.exceptions import InvalidStatus
    from websockets.sync.client import connect

    address = server.address.removesuffix("index.html").replace("http", "ws", 1)
    port = address.split(":")[2].split("/")[0]
    expected = server.expect("page")
    with pytest.raises(InvalidStatus, match="403"):
        connect(f"{address}page", origin=origin and origin.format(port=port))
    assert expected.empty()
    with connect(f"{address}page", origin=f"http://127.0.0.1:{port}"):
        server.release(expected.get(timeout=10))


@pytest.mark.parametrize(("name", "status"), [("127.0.0.1", b"200"), ("evil.example", b"404"), ("localhost", b"404")])
def test_a_name_that_leads_here_is_another_site(server, name, status):
    _, _, host_and_path = server.address.partition("//")
    there, _, path = host_and_path.partition("/")
    with socket.create_connection(("127.0.0.1", int(there.split(":")[1]))) as opened:
        opened.sendall(f"GET /{path} HTTP/1.1\r\nHost: {name}:{there.split(':')[1]}\r\n\r\n".encode())
        assert status in opened.recv(99).split(b"\r\n")[0]
