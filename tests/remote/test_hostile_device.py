"""A device that is not what it should be: whatever it sends ends in one line, in little memory, and nowhere else."""

from __future__ import annotations

import io
import json
import signal
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeopt.errors import EdgeoptError, InvalidFileError
from edgeopt.measurement.frames.options import BenchOptions
from edgeopt.system.declared.options import FileUse
from edgeopt.system.disk.wheel import Wheel
from edgeopt.verbs.remote import job
from edgeopt.verbs.remote.address import Address
from edgeopt.verbs.remote.command import CommandWord, RemoteCommand
from edgeopt.verbs.remote.device import Device
from edgeopt.verbs.remote.mirror import files_behind, mirrored
from edgeopt.verbs.remote.perform import Hearer, run_remotely
from edgeopt.verbs.remote.places import PlacesThere
from edgeopt.verbs.remote.results import read_result
from edgeopt.verbs.remote.ssh import Connection
from edgeopt.verbs.remote.wheelhouse import platform_of
from edgeopt.verbs.remote.words import WrittenOption, line_of

MARKER = "edgeopt-device:"
NOTHING_THERE = PlacesThere("/m")


@dataclass(frozen=True)
class Figures:
    """A result, as far as a device can lie about one."""

    ms: float = 0.0
    count: int = 0
    verdict: Literal["PASS", "FAIL"] = "PASS"
    batch: Literal[1, 2] = 1
    times: NDArray[np.int64] | None = None
    more: Any = None


def figures(**values: Any) -> dict[str, Any]:
    return {"is": f"{Figures.__module__}:Figures", "of": values}


def write_result(folder: Path, about: object, **arrays: NDArray[Any]) -> Path:
    text = about if isinstance(about, str) else json.dumps(about)
    np.savez(folder / "result.npz", about=np.frombuffer(text.encode(), np.uint8), **arrays)
    return folder / "result.npz"


def test_a_result_is_read(tmp_path):
    held = figures(ms=1.5, count=3, times={"array": "0"}, more={"map": [["a", [1]]]})
    file = write_result(tmp_path, held, **{"0": np.arange(3)})
    result = read_result(file, Figures, BenchOptions(), "ssh://x", NOTHING_THERE)
    assert (result.ms, result.count, result.times.tolist(), result.more) == (1.5, 3, [0, 1, 2], {"a": [1]})


@pytest.mark.parametrize(
    "about",
    [
        json.dumps(figures(ms=1)).replace("1", f"1{'0' * 400}"),
        json.dumps(figures(count=1)).replace("1", f"1{'0' * 30}"),
        json.dumps(figures(more=1)).replace("1", f"1{'0' * 5000}"),
        "[" * 100_000,
        figures(count=1.0),
        figures(count=True),
        figures(ms="1"),
        figures(verdict="MAYBE"),
        figures(batch=True),
        figures(batch=1.0),
        figures(times={"array": "text"}),
        figures(times={"array": "no"}),
        figures(times={"array": ["0"]}),
        figures(more={"map": 5}),
        figures(more={"map": [[[1], 2]]}),
        figures(more={"is": "os:system", "of": {}}),
        figures(other=1),
        {"is": "subprocess:Popen", "of": {"args": "id"}},
        {"is": [1], "of": {}},
        {"of": {}},
        [],
        "5",
        "",
        "null",
    ],
)
def test_another_result_is_refused_in_one_line(tmp_path, about):
    file = write_result(tmp_path, about, text=np.array(["a"]))
    with pytest.raises(InvalidFileError, match="ssh://x sends no result") as refused:
        read_result(file, Figures, BenchOptions(), "ssh://x", NOTHING_THERE)
    assert "\n" not in refused.value.problem
    assert len(refused.value.problem) < 300


def test_a_result_of_gigabytes_beside_its_arrays_is_refused(tmp_path):
    with pytest.raises(InvalidFileError, match="65 MiB beside its arrays"):
        read_result(write_result(tmp_path, " " * (65 << 20)), Figures, BenchOptions(), "ssh://x", NOTHING_THERE)


@pytest.mark.parametrize(
    ("there", "here"),
    [
        ("/d/files/home/me/net.onnx", "/home/me/net.onnx"),
        ('"source": "/d/files/home/me/frames"', '"source": "../frames"'),
        ("/d/files/home/me/frames/1.png", "../frames/1.png"),
        ("/d/files/home/me/frames2/1.png", "/home/me/frames2/1.png"),
        ("/d/files2/x", "/d/files2/x"),
    ],
)
def test_places_are_called_as_they_were_typed_here(there, here):
    places = PlacesThere("/d/files", {"home/me/frames": "../frames"})
    assert places.named_here(there.encode()) == here.encode()


def test_the_file_of_a_trace_goes_along(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for name in ("day.csv", "../up.csv"):
        Path(name).write_text("time\n0\n1\n")
    texts = ("trace:day.csv@2x", "trace:../up.csv@2x", f"trace:{tmp_path}/up.csv", "trace:none.csv", "poisson:9")
    words = line_of([WrittenOption("--load", texts, FileUse.READ_WITHIN)], [])
    up, day = mirrored(Path("../up.csv")), mirrored(Path("day.csv"))
    command = RemoteCommand(tuple(words), "", {})
    assert set(files_behind(command.reads)) == {day, up}
    assert [word.there for word in words[1::2]] == [
        "trace:day.csv@2x",
        f"trace:@FILES@/{up}@2x",
        f"trace:@FILES@/{up}",
        "trace:none.csv",
        "poisson:9",
    ]


_SSH = """
import json, sys, time
script = json.loads(open({script!r}).read())
words = sys.argv[-1].split()
name = words[2] if words[0] == "python" else "setup"
if name not in script:
    sys.exit(f"{marker}unscripted {{name}} -> look here")
said = script[name]
for _ in range(said.get("times", 1)):
    sys.stdout.buffer.write(bytes.fromhex(said["hex"]))
sys.stdout.flush()
"""
"""A device behind a program that is called as ssh is: it says what it was written to say."""


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """Return what writes the answers of a device, each raw or as JSON behind the marker."""

    def write(**answers: Any) -> Device:
        setup = f"{MARKER}python\nside.py\n".encode()
        said = {"setup": setup, "forget": b"", "stop": b"", **answers}
        texts = {
            name: each if isinstance(each, bytes) else f"{MARKER}{json.dumps(each)}\n".encode()
            for name, each in said.items()
        }
        script = {name: {"hex": text.hex()} for name, text in texts.items()}
        (tmp_path / "script.json").write_text(json.dumps(script))
        program = tmp_path / "ssh.py"
        program.write_text(_SSH.format(script=str(tmp_path / "script.json"), marker=MARKER))
        monkeypatch.setenv("EDGEOPT_SSH", f"'{sys.executable}' '{program}'")
        monkeypatch.chdir(tmp_path)
        return Device(Connection(Address("board")))

    return write


def run(**more: Any) -> list[str]:
    said: list[str] = []
    hearer = Hearer(lambda *_: None, said.append, lambda _, text: said.append(text.decode()))
    command = RemoteCommand((CommandWord("bench"), CommandWord("out.json", is_written=True)), "", {}, **more)
    run_remotely("ssh://board", command, hearer)
    return said


def packed(**files: bytes) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return made.getvalue()


def ended(code: int, signal_name: str = "") -> bytes:
    return f"{MARKER}{json.dumps({'code': code, 'signal': signal_name})}\n".encode()


GOOD = {
    "facts": {"machine": "x86_64"},
    "status": {"ready": True, "free_bytes": 1},
    "missing": [],
    "begin": {"goes_on": False, "mirror": "/d/files"},
    "follow": ended(0),
    "bring": f"{MARKER}{{}}\n".encode() + packed(),
}
UNKNOWN = "answers in no way that is known"


@pytest.mark.skipif(sys.platform == "win32", reason="a program of Python is called by a shell's words")
class TestDevice:
    """Each answer of a device, wrong."""

    @pytest.mark.parametrize(
        ("wrong", "problem"),
        [
            ({"status": None}, UNKNOWN),
            ({"status": {"ready": 1, "free_bytes": 1}}, UNKNOWN),
            ({"status": {"ready": False, "free_bytes": "many"}}, UNKNOWN),
            ({"status": MARKER.encode() + b"[" * 100_000}, UNKNOWN),
            ({"missing": {"a": 1}}, UNKNOWN),
            ({"missing": [[]]}, UNKNOWN),
            ({"begin": {}}, UNKNOWN),
            ({"begin": {"goes_on": False, "mirror": ""}}, UNKNOWN),
            ({"begin": {"goes_on": False, "mirror": 5}}, UNKNOWN),
            ({"begin": [1]}, UNKNOWN),
            ({"follow": MARKER.encode() + b"[" * 100_000 + b"\n"}, UNKNOWN),
            ({"follow": f'{MARKER}{{"code": 0, "signal": "\\u001b[2J"}}\n'.encode()}, UNKNOWN),
            ({"follow": f'{MARKER}{{"code": 1e9}}\n'.encode()}, UNKNOWN),
            ({"follow": f'{MARKER}{{"stream": "out", "bytes": {1 << 40}}}\n'.encode()}, UNKNOWN),
            ({"follow": f'{MARKER}"code"\n'.encode()}, UNKNOWN),
            ({"bring": f"{MARKER}{{}}\n".encode() + packed(**{"../x": b""})}, "which nobody asked for"),
        ],
    )
    def test_a_wrong_answer_is_one_line(self, hostile, wrong, problem):
        hostile(**{**GOOD, **wrong})
        with pytest.raises(EdgeoptError, match=problem) as refused:
            run()
        assert "do not trust this device" in refused.value.remedy

    @pytest.mark.parametrize("facts", [[1], None, {"machine": 5}, {"flags": "all"}])
    def test_a_device_need_not_say_what_it_is(self, hostile, facts):
        hostile(**{**GOOD, "facts": facts})
        assert run() == []

    @pytest.mark.parametrize(("name", "shown"), [("SIGBUS", "SIGBUS"), ("", "signal 7")])
    def test_a_signal_is_called_as_the_device_calls_it(self, hostile, name, shown):
        hostile(**{**GOOD, "follow": ended(135, name)})
        with pytest.raises(EdgeoptError, match=f"stopped the command: {shown}\n"):
            run()

    def test_figures_name_what_was_typed_here(self, hostile, tmp_path):
        name = mirrored(tmp_path / "out.json")
        figures = json.dumps({"source": f"/d/files{tmp_path}/frames"}).encode()
        hostile(**{**GOOD, "bring": f"{MARKER}{{}}\n".encode() + packed(**{name: figures})})
        assert run() == ["1 file came back from board"]
        assert json.loads((tmp_path / "out.json").read_text()) == {"source": f"{tmp_path}/frames"}

    def test_a_line_without_end_is_shown_and_not_held(self, hostile):
        block = b"x" * (1 << 20)
        head = f'{MARKER}{{"stream": "out", "bytes": {len(block)}}}\n'.encode()
        hostile(**{**GOOD, "follow": (head + block) * 3 + ended(0)})
        assert [len(text) for text in run()] == [1 << 20] * 3

    def test_what_lies_deep_in_a_folder_has_its_hash_in_a_manifest_and_stays(self, hostile, tmp_path):
        text, out = b"/d/files/x", mirrored(tmp_path / "out")
        files = {f"{out}/bench.json": text, f"{out}/bundle/manifest.json": text, f"{out}/a.npz": text}
        hostile(**{**GOOD, "bring": f"{MARKER}{{}}\n".encode() + packed(**files)})
        run()
        read = [(tmp_path / "out" / name).read_bytes() for name in ("bench.json", "bundle/manifest.json", "a.npz")]
        assert read == [b"/x", text, text]

    def test_an_answer_without_end_is_cut(self, hostile, tmp_path):
        device = hostile(**GOOD)
        script = json.loads((tmp_path / "script.json").read_text())
        script["status"] = {"hex": (b"x" * (1 << 20)).hex(), "times": 1 << 20}
        (tmp_path / "script.json").write_text(json.dumps(script))
        with pytest.raises(EdgeoptError, match=UNKNOWN):
            device.prepare(Wheel("edgeopt-1-py3-none-any.whl", {}, frozenset()), [], lambda *_: None)

    def test_a_file_that_the_disk_does_not_hold_is_refused_before_it_is_written(self, tmp_path):
        with pytest.raises(EdgeoptError, match="are free here"):
            job.write_below("home/out", {"home/out": tmp_path / "out"}, io.BytesIO(b""), 1 << 60)
        assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_the_device_itself_names_its_signals():
    from runpy import run_path

    side = run_path(str(Path(job.__file__).with_name("_device_side.py")), run_name="side")
    names = [side["_signal_of"](code) for code in (0, 2, 128 + signal.SIGKILL, 255)]
    assert names == ["", "", "SIGKILL", "signal 127"]


@pytest.mark.parametrize("version", ["2.99999999999", "2.", "two"])
def test_a_c_library_of_no_known_version_is_taken_for_the_usual_one(version):
    facts = {"libc": ["glibc", version], "system": "linux", "machine": "x86_64", "python": "3.12"}
    assert platform_of(facts).glibc == (2, 36)
