"""Which phone is meant, what adb's server says of it, files and commands on it: by the protocol, without a runner."""

from __future__ import annotations

import socket
import sys
import threading
from contextlib import closing

import pytest
from adb_phone import TMP, FakePhone, adb_server

from edgeopt.errors import EdgeoptError, UnavailableError
from edgeopt.verbs.android import is_phone, require_verb, serial_in
from edgeopt.verbs.android.adb import Link, choose, connected
from edgeopt.verbs.android.adb_stream import UnpluggedError
from edgeopt.verbs.android.phone import Phone, find_runner

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the phone's shell is this machine's")


def silent(_: int) -> None:
    """Hear nothing."""


def test_addresses_of_phones():
    assert is_phone("adb://R58M")
    assert not is_phone("ssh://board")
    assert serial_in("adb://") == ""
    assert serial_in("adb://192.168.1.7:5555/") == "192.168.1.7:5555"
    assert serial_in("adb://adb-R58M-x1Y2._adb-tls-connect._tcp") == "adb-R58M-x1Y2._adb-tls-connect._tcp"
    for text in ("adb://a b", "adb://a;reboot", "adb://a/b", "adb://$(id)"):
        with pytest.raises(EdgeoptError, match="names no phone"):
            serial_in(text)


def test_only_what_runs_models_goes_to_a_phone():
    for verb in ("bench", "compare", "check", "run"):
        require_verb(verb, "adb://x")
    for verb in ("inspect", "doctor", "push"):
        with pytest.raises(EdgeoptError, match="Android has no Python"):
            require_verb(verb, "adb://x")


def test_without_a_server_one_line_says_how_to_start_it(monkeypatch):
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(port))
    with pytest.raises(UnavailableError, match=f"no adb server answers at 127.0.0.1:{port}") as refused:
        connected()
    assert "adb start-server" in refused.value.remedy
    monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", "five")
    with pytest.raises(EdgeoptError, match="ANDROID_ADB_SERVER_PORT is 'five'"):
        connected()


def test_another_server_at_the_port_is_no_adb(monkeypatch):
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(server.getsockname()[1]))

        def answer() -> None:
            client, _ = server.accept()
            with closing(client):
                client.recv(64)
                client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(UnavailableError, match="it answers b'HTTP'"):
            connected()
        thread.join()


@pytest.mark.parametrize(
    ("states", "serial", "told", "remedy"),
    [
        ({}, "", "no phone is connected", "connect one"),
        ({}, "A1", "no phone A1 is connected", "connect one"),
        ({"B2": "device", "C3": "offline"}, "A1", "no phone A1 is connected", "name one of: B2, C3 (offline)"),
        ({"B2": "device", "C3": "device"}, "", "several phones are connected: B2, C3", "--on adb://SERIAL"),
        ({"B2": "unauthorized"}, "B2", "adb://B2 does not trust this machine", "allow USB debugging on its screen"),
        ({"B2": "unauthorized"}, "", "adb://B2 does not trust this machine", "allow USB debugging on its screen"),
        ({"B2": "offline"}, "B2", "adb://B2 is offline", "plug it in again"),
        ({"B2": "no permissions (user in plugdev group)"}, "B2", "is 'no permissions", "adb devices"),
    ],
)
def test_a_phone_that_is_not_ready_is_told_with_those_that_are_there(tmp_path, states, serial, told, remedy):
    phones = [FakePhone(tmp_path / name, name, state) for name, state in states.items()]
    with adb_server(*phones), pytest.raises(EdgeoptError) as refused:
        choose(serial)
    assert told in refused.value.problem
    assert remedy in refused.value.remedy


def test_the_only_phone_or_that_of_the_variable_is_meant(tmp_path, monkeypatch):
    phones = [FakePhone(tmp_path / name, name) for name in ("A1", "B2")]
    with adb_server(phones[0]):
        assert choose("") == "A1"
    with adb_server(*phones):
        monkeypatch.setenv("ANDROID_SERIAL", "B2")
        assert choose("") == "B2"
        assert choose("A1") == "A1"


def test_a_phone_before_android_7_is_refused(tmp_path):
    with (
        adb_server(FakePhone(tmp_path / "old", "OLD", features="cmd")),
        pytest.raises(EdgeoptError, match="older than 7"),
    ):
        Link("OLD")


def test_commands_give_output_complaints_and_their_end(tmp_path):
    with adb_server(FakePhone(tmp_path / "phone")):
        link = Link("R58M0ABC")
        end = link.shell("echo out; echo err >&2; exit 7")
        assert (end.code, end.printed, end.complaints) == (7, b"out\n", "err\n")
        parts: list[bytes] = []
        end = link.shell("head -c 300000 /dev/zero", parts.append)
        assert (end.code, sum(map(len, parts)), end.printed) == (0, 300_000, b"")
        assert link.shell("kill -SEGV $$").code == 128 + 11


def test_files_go_there_and_come_back_as_they_were(tmp_path):
    phone = FakePhone(tmp_path / "phone")
    data = bytes(range(256)) * 1000
    (tmp_path / "file").write_bytes(data)
    with adb_server(phone):
        link = Link("R58M0ABC")
        sent: list[int] = []
        assert not link.exists(f"{TMP}/a/b")
        link.push(tmp_path / "file", f"{TMP}/a/b", mode=0o755, tell=sent.append)
        assert sum(sent) == len(data)
        assert link.exists(f"{TMP}/a/b")
        assert link.shell(f"cat {TMP}/a/b").printed == data
        assert phone.here(f"{TMP}/a/b").stat().st_mode & 0o777 == 0o755
        link.push(b"", f"{TMP}/empty", tell=silent)
        assert link.shell(f"cat {TMP}/empty").printed == b""
        phone.full = True
        with pytest.raises(EdgeoptError, match=r"does not take c: write failed: No space left on device"):
            link.push(data * 100, f"{TMP}/c", tell=silent)


def test_a_phone_that_goes_away_is_told_as_such(tmp_path):
    phone = FakePhone(tmp_path / "phone", unplug_at=b"there")
    with adb_server(phone):
        link = Link("R58M0ABC")
        with pytest.raises(UnpluggedError, match="adb://R58M0ABC is gone"):
            link.shell("echo here; sleep 0.1; echo there")
        with pytest.raises(UnavailableError, match="device 'R58M0ABC' not found"):
            link.shell("true")


def test_a_runner_that_is_missing_or_for_another_phone_is_one_line(tmp_path, monkeypatch):
    def refusal(*abis: str) -> EdgeoptError:
        with pytest.raises(EdgeoptError) as refused:
            find_runner(abis)
        return refused.value

    monkeypatch.delenv("EDGEOPT_ANDROID_RUNNER", raising=False)
    assert "EDGEOPT_ANDROID_RUNNER does not say where it lies" in refusal("arm64-v8a").problem
    monkeypatch.setenv("EDGEOPT_ANDROID_RUNNER", str(tmp_path / "absent"))
    assert "which is no folder" in refusal("arm64-v8a").problem
    monkeypatch.setenv("EDGEOPT_ANDROID_RUNNER", str(tmp_path))
    assert "holds it for no phone" in refusal("arm64-v8a").problem
    program = tmp_path / "x86_64" / "edgeopt-runner"
    program.parent.mkdir()
    program.write_bytes(b"\x7fELF" + bytes(14) + (183).to_bytes(2, "little"))
    held = refusal("arm64-v8a", "armeabi-v7a")
    assert "the phone needs edgeopt-runner for arm64-v8a or armeabi-v7a" in held.problem
    assert "holds it for x86_64" in held.problem
    assert "build_android.sh" in held.remedy
    assert "is built for arm64-v8a, not for x86_64" in refusal("x86_64").problem
    program.write_bytes(b"#!/bin/sh\n")
    assert "is no program for Android" in refusal("x86_64").problem
    program.write_bytes(b"\x7fELF" + bytes(14) + (62).to_bytes(2, "little"))
    assert "holds no libonnxruntime.so" in refusal("x86_64").problem
    (program.parent / "libonnxruntime.so").touch()
    assert {*find_runner(("arm64-v8a", "x86_64")).files} == {"edgeopt-runner", "libonnxruntime.so"}


def test_a_phone_of_another_processor_says_which_runner_it_needs(tmp_path, monkeypatch):
    (tmp_path / "runner").mkdir()
    monkeypatch.setenv("EDGEOPT_ANDROID_RUNNER", str(tmp_path / "runner"))
    phone = FakePhone(tmp_path / "phone", abis="arm64-v8a,armeabi-v7a")
    with adb_server(phone), pytest.raises(EdgeoptError, match="needs edgeopt-runner for arm64-v8a or armeabi-v7a"):
        Phone("", lambda *_: None)
    assert not phone.own.exists(), "nothing is written there before it is known to work"
