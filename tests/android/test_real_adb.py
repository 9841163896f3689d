"""The same through Android's own adb server, where it is installed; the phone behind it is this machine."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing

import numpy as np
import pytest
from adb_daemon import real_adb
from adb_phone import TMP, FakePhone, net
from click.testing import CliRunner

from edgeopt.cli import cli
from edgeopt.errors import EdgeoptError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.runtime.opening import Opening
from edgeopt.verbs.android.adb import Link, choose, connected
from edgeopt.verbs.android.adb_stream import UnpluggedError
from edgeopt.verbs.android.phone import Phone
from edgeopt.verbs.android.place import PhonePlace

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the phone's shell is this machine's")


def test_commands_and_files_through_the_server(tmp_path):
    with real_adb(FakePhone(tmp_path / "phone"), tmp_path) as serial:
        assert connected() == {serial: "device"}
        with pytest.raises(EdgeoptError, match="no phone nobody is connected"):
            choose("nobody")
        with pytest.raises(EdgeoptError, match="device 'nobody' not found"):
            Link("nobody")
        link = Link(choose(""))
        end = link.shell("echo out; echo err >&2; exit 7")
        assert (end.code, end.printed, end.complaints) == (7, b"out\n", "err\n")
        data = bytes(range(256)) * 10_000
        link.push(data, f"{TMP}/a/b", mode=0o755, tell=lambda _: None)
        assert link.exists(f"{TMP}/a/b")
        assert not link.exists(f"{TMP}/a/c")
        assert link.shell(f"cat {TMP}/a/b").printed == data
        with link.talk('while read -r line; do echo "<$line>"; done; echo over >&2; exit 3') as conversation:
            conversation.send(b"one\ntwo\n")
            assert [conversation.line(99), conversation.line(99)] == [b"<one>", b"<two>"]
            conversation.send(data.replace(b"\n", b"-").replace(b"\r", b"-").replace(b"\0", b"-")[:200] + b"\n")
            conversation.close_input()
            assert conversation.line(999) is not None
            end = conversation.end()
            assert (end.code, end.complaints) == (3, "over\n")

        def pull_out(_: bytes) -> None:
            subprocess.run(["adb", "disconnect", serial], check=True, capture_output=True)

        with pytest.raises(UnpluggedError, match="is gone"):
            link.shell("echo here; sleep 20; echo there", pull_out)
        with pytest.raises(UnpluggedError, match="not found"):
            link.shell("true")


def test_a_model_is_measured_through_the_server(runner, tmp_path, monkeypatch):
    monkeypatch.setenv("EDGEOPT_ANDROID_RUNNER", str(runner))
    with real_adb(FakePhone(tmp_path / "phone"), tmp_path) as serial:
        bench = ["bench", "digits_detector", "--on", f"adb://{serial}", "--seconds", "0.1", "--frames", "30"]
        result = CliRunner().invoke(cli, [*bench, "-o", str(tmp_path / "measured")])
    assert result.exit_code == 0, result.output
    stored = json.loads((tmp_path / "measured" / "bench.json").read_text())
    assert stored["samples"]["frames"] >= 30


def test_samples_are_answered_through_the_server(runner, tmp_path, monkeypatch):
    monkeypatch.setenv("EDGEOPT_ANDROID_RUNNER", str(runner))
    net(tmp_path / "a.onnx")
    with real_adb(FakePhone(tmp_path / "phone"), tmp_path) as serial:
        place = PhonePlace(Phone(serial, lambda *_: None))
        session = place.open(Opening("onnxruntime", SessionOptions()), tmp_path / "a.onnx")
        there = [session.run({"the input": np.full((1, 64), value, np.float32)})["y"] for value in range(20)]
        place.close()
    with closing(EXECUTOR.open(tmp_path / "a.onnx", SessionOptions())) as here:
        for value, output in enumerate(there):
            expected = here.run({"the input": np.full((1, 64), value, np.float32)})["y"]
            assert np.allclose(output, expected, rtol=1e-4, atol=1e-4)
