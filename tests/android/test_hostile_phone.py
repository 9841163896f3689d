"""A phone, or a server that claims to be adb, may send anything: each ends in one line, in bounded time and memory."""

from __future__ import annotations

import json
import resource
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from time import monotonic

import numpy as np
import pytest
from adb_phone import FakePhone, finished, net

from edgeopt.errors import EdgeoptError
from edgeopt.executors import SessionOptions
from edgeopt.runtime.opening import Opening
from edgeopt.verbs.android.adb import Link, choose, connected
from edgeopt.verbs.android.adb_stream import UnpluggedError
from edgeopt.verbs.android.facts import PhoneFacts
from edgeopt.verbs.android.log import RunnerLog
from edgeopt.verbs.android.phone import Phone
from edgeopt.verbs.android.place import PhonePlace

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the phone's shell is this machine's")
SERIAL = "R58M0ABC"
_MOST_GROWN = 600 << 20
"""Bytes that a hostile phone may make this process grow by."""


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    """Hold each test to a minute and to some memory."""
    began_s, before = monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert monotonic() - began_s < 60
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < _MOST_GROWN


# ---- a server that is none


def text(said: bytes) -> bytes:
    return b"%04x" % len(said) + said


def packet(kind: int, data: bytes, size: int | None = None) -> bytes:
    return struct.pack("<BI", kind, len(data) if size is None else size) + data


@contextmanager
def server(answer: Callable[[socket.socket, bytes], None], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Serve each request for a service by a function."""

    def serve(client: socket.socket) -> None:
        with closing(client), suppress(OSError, ValueError):
            while size := client.recv(4):
                service = b""
                while len(service) < int(size, 16):
                    service += client.recv(int(size, 16) - len(service))
                answer(client, service)

    def accept(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(listener.getsockname()[1]))
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
        yield


def polite(shell: Callable[[socket.socket], None]) -> Callable[[socket.socket, bytes], None]:
    """Answer as adb does until a command of the shell is asked for."""

    def answer(client: socket.socket, service: bytes) -> None:
        if service.endswith(b":features"):
            client.sendall(b"OKAY" + text(b"shell_v2"))
        elif service.startswith(b"shell"):
            client.sendall(b"OKAY")
            shell(client)
        else:
            client.sendall(b"OKAY")

    return answer


@pytest.mark.parametrize(
    "listed",
    [
        b"OKAYzzzz",
        b"OKAYffff" + b"x" * 10,
        b"FAILffff" + b"\x1b[2J" * 3,
        b"FAIL",
        b"OKAY-001",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"",
    ],
)
def test_a_list_of_phones_that_is_none_is_one_line(listed, monkeypatch):
    def answer(client: socket.socket, _: bytes) -> None:
        client.sendall(listed)
        client.shutdown(socket.SHUT_RDWR)

    with server(answer, monkeypatch), pytest.raises(EdgeoptError) as refused:
        choose("")
    assert "\x1b" not in str(refused.value)


def test_names_of_phones_drive_no_terminal(monkeypatch):
    listed = text(b"\x1b]0;mine\x07\tdevice\nother\t\x1b[31moffline\n")
    with server(lambda client, _: client.sendall(b"OKAY" + listed), monkeypatch):
        assert not [each for pair in connected().items() for each in pair if "\x1b" in each or "\x07" in each]


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (packet(1, b"", 0xFFFFFFFF), "no adb"),
        (packet(3, b"", 0xFFFFFFFF), "no adb"),
        (packet(1, b"abc", 100), "the connection ended"),
        (b"\x01\x05", "the connection ended"),
        (packet(9, b"x") + packet(9, b"y"), "the connection ended"),
    ],
)
def test_a_stream_that_is_cut_or_lies_of_its_length_is_a_phone_that_is_gone(sent, told, monkeypatch):
    def shell(client: socket.socket) -> None:
        client.sendall(sent)
        client.shutdown(socket.SHUT_RDWR)

    with server(polite(shell), monkeypatch), pytest.raises(UnpluggedError, match=told):
        Link(SERIAL).shell("true")


@pytest.mark.parametrize("kind", [1, 2, 7])
def test_output_without_end_ends(kind, monkeypatch):
    """The kept output is bounded where it is printed; complaints and packets of no known kind end with the time."""

    def shell(client: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client.sendall(packet(kind, bytes(1 << 16)))

    with server(polite(shell), monkeypatch), pytest.raises(UnpluggedError, match=r"without end|after 1 s"):
        Link(SERIAL).shell("true", longest_s=1.0)


def test_a_byte_now_and_then_holds_nobody(monkeypatch):
    def shell(client: socket.socket) -> None:
        with suppress(OSError):
            for byte in packet(1, bytes(1000)):
                client.sendall(bytes([byte]))
                threading.Event().wait(0.1)

    with server(polite(shell), monkeypatch), pytest.raises(UnpluggedError, match="has not ended after 1 s"):
        Link(SERIAL).shell("true", longest_s=1.0)


def test_a_line_without_end_ends(monkeypatch):
    def shell(client: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client.sendall(packet(1, b"x" * (1 << 16)))

    raised = pytest.raises(UnpluggedError, match="a line without end")
    with server(polite(shell), monkeypatch), Link(SERIAL).talk("true") as conversation, raised:
        conversation.line(1 << 20)


# ---- what a phone tells of itself


def test_facts_write_no_file_elsewhere_and_make_no_list_of_a_billion_cores(tmp_path):
    told = {
        f"/sys/devices//{tmp_path}/escaped": "1",
        "/sys/devices/system/cpu/cpu0/../../../../../../tmp/escaped": "1",
        "/sys/devices/system/cpu/cpuX/cpu_capacity": "1",
        "/sys/devices/system/cpu/cpu99999999999/cpu_capacity": "1",
        "/sys/devices/system/cpu/cpu0/cpu_capacity": "9" * 4000,
        "/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": "9" * 4000,
        "/sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq": "8" * 3000,
        "allowed": "Cpus_allowed_list:\t0-99999999999",
        "abis": "../../../etc,/etc,arm64-v8a,\x00",
        "battery.level": "nan",
        "battery.temperature": "1e999",
        "heat": "Thermal Status: -99999999999999999999",
        "memory": "MemTotal: inf kB",
        "flags": "Features: " + "x " * 100_000,
        "maker": "\x1b[2J" + "m" * 10_000,
    }
    facts = PhoneFacts("\n".join(f"{key}={value}" for key, value in told.items()).encode("utf-8", "surrogateescape"))
    assert facts.fast_cores >= 1
    assert facts.logical_cores == 1
    assert facts.abis == ("arm64-v8a",)
    assert (facts.state.level_percent, facts.state.battery_c) == (None, None)
    assert "\x1b" not in facts.name
    assert len(facts.name) < 200
    assert str(facts.state)
    assert not facts.notes
    assert facts.environment({}, {}, {}).memory_mib == 0
    assert not (tmp_path / "escaped").exists()


# ---- what the runner prints


HELLO = {"runner": 2, "onnxruntime": "1.23.0", "clock_ns": 1000, "wall_ns": 5000}
READING = {
    "at_ns": 5, "wall_ns": 6, "cpu": "100 0 50 800 10 0 20 5 0 0", "hz": 100, "own_ns": 10**9, "switches": 3,
    "major_faults": 0, "pressure": "total=1", "khz": [1], "ceiling_khz": [1], "lowered": 0, "temperature": [41],
    "load": "3.1 2",
}  # fmt: skip
ANSWER = {
    "outputs": [{"name": "y", "dtype": "float32", "shape": [1, 64]}],
    "stages_ns": [1, 2, 3],
    "since_start_ns": 9,
    "peak_bytes": 9,
    "bytes": 256,
}


@pytest.mark.parametrize(
    "line",
    [
        '{"rows": [[0, 10, NaN, 5, 2, 19, 0]], "walls": []}',
        '{"rows": [[0, 10, 1.5, 5, 2, 19, 0]], "walls": []}',
        '{"rows": [[0, 10, Infinity, 5, 2, 19, 0]], "walls": []}',
        '{"rows": [[0, -9000000000000000000, 1, 1, 1, 9000000000000000000, 0]], "walls": []}',
        '{"rows": [[0, 10, 9223372036854775807, 9223372036854775807, 2, 19, 0]], "walls": []}',
        '{"rows": [[0, 10, 5, 5, 5, 19, 0]], "walls": []}',
        '{"rows": [[[0]]], "walls": []}',
        '{"rows": [["0", "10", "1", "5", "2", "19", "0"]], "walls": []}',
        '{"rows": [], "walls": [[0, NaN]]}',
        '{"rows": [], "walls": [[0, -1]]}',
        '{"rows": [], "walls": [[0, 1, 2]]}',
        '{"rows": {}, "walls": []}',
        '{"opened_ns": NaN}',
        '{"opened_ns": -1}',
        '{"opened_ns": true}',
        '{"opened_ns": ' + "9" * 4000 + "}",
        '{"opened_ns": ' + "9" * 100_000 + "}",
        '{"memory": [1, 2, NaN]}',
        '{"memory": [1, 2]}',
        '{"cpu_ns": 1, "span_ns": Infinity, "peak_bytes": 1}',
        "[" * 100_000,
        '{"rows": ' + "[" * 100_000,
        "\x00\x01",
        *(json.dumps({"reading": READING | change}) for change in (
            {"hz": "nan"}, {"hz": 1e400}, {"at_ns": -5}, {"load": "nan 1"}, {"load": "inf"}, {"khz": [1e30]},
            {"temperature": ["x"]}, {"own_ns": "9"}, {"cpu": "a b c d e f g h"}, {"khz": 7},
        )),
        *(json.dumps({"answer": ANSWER | change}) for change in (
            {"bytes": -1}, {"bytes": 10**30}, {"stages_ns": [1, 2]}, {"stages_ns": [1, 2, -3]},
            {"stages_ns": [1, 2, float("nan")]}, {"outputs": [{"name": "y", "dtype": "float32", "shape": [-1, 64]}]},
            {"outputs": [{"name": "y", "dtype": "float32", "shape": [1] * 100}]}, {"outputs": [7]}, {"outputs": {}},
            {"outputs": [{"name": "y"}] * 5000}, {"peak_bytes": "many"},
        )),
    ],
)  # fmt: skip
def test_no_line_is_believed_unseen(line):
    heard = RunnerLog()
    heard.take(json.dumps(HELLO).encode() + b"\n")
    with pytest.raises(EdgeoptError, match="prints what is not known"):
        heard.take(line.encode() + b"\n")


def test_a_log_without_end_or_line_ends():
    heard = RunnerLog()
    for _ in range(100):
        heard.take(b" " * (1 << 16))
    with pytest.raises(EdgeoptError, match="prints what is not known"):
        heard.take(b" " * (1 << 22))
    with pytest.raises(EdgeoptError, match="prints what is not known"):
        RunnerLog().take(b'{"opened_ns": 1}\n' * 2000)


def test_what_a_runner_complains_of_drives_no_terminal():
    heard = RunnerLog()
    heard.take(json.dumps({"error": "\x1b[2J" + "x" * 10**6}).encode() + b"\n")
    assert "\x1b" not in heard.error
    assert len(heard.error) < 10_000


# ---- a runner that answers something else


FILTER = """#!{python}
import json, os, sys
out = sys.stdout.buffer
for line in sys.stdin.buffer:
    told = json.loads(line)
    answer, data = told.get("answer"), b""
    if answer:
        data = sys.stdin.buffer.read(answer["bytes"])
        {change}
        line = json.dumps(told).encode() + b"\\n"
    out.write(line + data)
    out.flush()
"""


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("answer['outputs'][0]['name'] = 'z'", "sends other outputs than the model has"),
        ("answer['outputs'] = []", "sends other outputs than the model has"),
        ("answer['outputs'] *= 2", "sends other outputs than the model has"),
        ("answer['outputs'][0]['dtype'] = 'object'", "sends another tensor than y float32 1x64"),
        ("answer['outputs'][0]['dtype'] = 'int32'", "sends another tensor than y float32 1x64"),
        ("answer['outputs'][0]['shape'] = [64, 1]", "sends another tensor than y float32 1x64"),
        ("answer['outputs'][0]['shape'] = [1, 1 << 40]", "sends another tensor than y float32 1x64"),
        ("answer['bytes'] = 1 << 50", "bytes for outputs of 256"),
        ("answer['bytes'] = 1", "1 bytes for outputs of 256"),
        ("answer['stages_ns'][1] = float('nan')", "prints what is not known"),
        ("told, data = {'error': 'broken'}, b''", "edgeopt-runner on adb://R58M0ABC: broken"),
        ("out.write(b'x' * (1 << 22)); out.flush()", "a line without end"),
        (
            "out.write(json.dumps(told).encode() + b'\\n' + data[:9]); out.flush(); os.killpg(0, 15)",
            "ends within",
        ),
        ("os.killpg(0, 15)", "was ended by SIGTERM"),
        ("told, data = {'done': True}, b''", "is gone: it has not ended after 5 s"),
    ],
)
def test_what_is_no_answer_of_the_model_is_refused(phone, tmp_path, change, told):
    net(tmp_path / "a.onnx")
    lie(phone, change)
    place = PhonePlace(Phone("", lambda *_: None))
    session = place.open(Opening("onnxruntime", SessionOptions()), tmp_path / "a.onnx")
    with pytest.raises(EdgeoptError) as refused:
        session.run({"the input": np.ones((1, 64), np.float32)})
    assert told in str(refused.value)
    assert refused.value.remedy
    place.close()
    assert not list((phone.own / "jobs").iterdir())


def lie(phone: FakePhone, change: str) -> None:
    """Let what the runner prints be changed on its way."""
    program = phone.folder / "bin" / "change"
    program.write_text(FILTER.format(python=sys.executable, change=change))
    program.chmod(0o755)
    phone.behind_runner = "change"


@pytest.mark.parametrize("command", ["run", "bench", "check"])
def test_a_lie_is_one_line(phone, tmp_path, command):
    net(tmp_path / "a.onnx")
    lie(phone, "answer['outputs'][0]['shape'] = [64, 1]")
    arguments = {
        "run": ("inputs.npz", "--json"),
        "bench": ("-s", "inputs.npz"),
        "check": ("-b", "b.json", "--update", "-s", "inputs.npz"),
    }
    code, said = finished(command, "a.onnx", *arguments[command], "--on", "adb://")
    assert code == 1, said
    assert "adb://R58M0ABC sends another tensor than y float32 1x64" in said
    assert "->" in said


def test_a_runner_that_floods_its_complaints_is_heard_as_far_as_is_told(phone):
    phone.before_runner = "head -c 30000000 /dev/zero | tr '\\0' 'e' >&2; exit 7"
    with pytest.raises(EdgeoptError) as refused:
        Phone("", lambda *_: None)
    assert len(str(refused.value)) < 2000


def test_a_runner_that_prints_without_end_is_ended(phone):
    phone.before_runner = "cat /dev/zero"
    with pytest.raises(EdgeoptError, match=r"prints what is not known|without end"):
        Phone("", lambda *_: None)


def test_a_phone_whose_disk_lies_is_told(empty_phone):
    (empty_phone.folder / "bin" / "df").unlink(missing_ok=True)
    (empty_phone.folder / "bin" / "df").write_text(f"#!/bin/sh\necho a b c {'9' * 3000}\n")
    (empty_phone.folder / "bin" / "df").chmod(0o755)
    Phone("", lambda *_: None)
    (empty_phone.folder / "bin" / "df").write_text("#!/bin/sh\necho a b c 12\n")
    empty_phone.own.rename(empty_phone.folder / "gone")
    with pytest.raises(EdgeoptError, match="has no room"):
        Phone("", lambda *_: None)
