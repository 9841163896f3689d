"""Commands on a device behind a real sshd: what is sent, what comes back, and what a bad day leaves."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from secrets import token_hex
from time import monotonic, sleep

import onnx
import psutil
import pytest
from fixture_bundles import bundle_with_test
from ssh_server import Board

from edgeopt.graph.model import Model, load_model
from edgeopt.recipes.inputs.frames import open_frames
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.runtime.rollout.signature import make_keys, sign_bundle
from edgeopt.runtime.selftest import choose_samples

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the device's side needs a POSIX system")


def started(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "edgeopt", *arguments, "--on", "ssh://board"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(*arguments: str) -> tuple[int, str, str]:
    process = started(*arguments)
    printed, said = process.communicate(timeout=300)
    return process.returncode, printed, said


def wait_until(is_so: Callable[[], object]) -> None:
    until_s = monotonic() + 120
    while not is_so():
        assert monotonic() < until_s
        sleep(0.05)


def runs_on(board: Board) -> bool:
    return any((job / "started").is_file() for job in board.jobs)


def processes_on(board: Board) -> list[psutil.Process]:
    """Return what runs there for a command: what watches it, and itself."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(str(board.root) in word for word in process.info["cmdline"] or ())
        and not any("follow" in word for word in process.info["cmdline"])
    ]


def whole(text: str) -> str:
    """Return a text as one line, however it is folded."""
    return " ".join(text.split())


SHORT = ("--seconds", "0.2", "--starts", "3")
LONG = ("bench", "mine/model.onnx", "-t", "cpu", "--seconds", "60", "--threads", "1", "-o", "measured")


def test_a_command_runs_there_as_here_and_its_files_come_back(board, project):
    bench = ("bench", "mine/model.onnx", "-t", "cpu", "--seconds", "0.3", "-o", "measured")
    code, printed, said = finished(*bench)
    assert code in (0, 4), said
    assert "digits_detector" in printed
    assert "came back from board" in whole(said)
    stored = json.loads((project / "measured" / "bench.json").read_text())
    assert stored
    assert not board.jobs, "nothing is left of the command"
    assert board.root.stat().st_mode & 0o077 == 0, "other users of the device read nothing"
    assert all(path.stat().st_mode & 0o077 == 0 for path in (board.root / "store").glob("*/*"))
    sent = {path: path.stat().st_mtime_ns for path in (board.root / "store").glob("*/*")}
    code, printed, said = finished("run", "mine/model.onnx", "mine/calib", "--limit", "2", "--json")
    assert code in (0, 4), said
    assert [json.loads(line) for line in printed.splitlines()]
    assert "send" not in said
    assert {*(board.root / "store").glob("*/*")} == {*sent}, "what the device has is not sent again"
    assert len([*(board.root / "workers").glob("*/ready")]) == 1, "one environment for all commands"


def test_absolute_names_lie_elsewhere_there_and_are_read_here_as_they_were_typed(board, project):
    baseline = project / "gate" / "baseline.json"
    baseline.parent.mkdir()
    model = str(project / "mine" / "model.onnx")
    code, printed, said = finished("check", model, f"--baseline={baseline}", "--update", *SHORT)
    assert code == 0, said
    assert json.loads(baseline.read_text())
    assert baseline.with_suffix(".npz").is_file()
    code, printed, said = finished("check", model, "-b", str(baseline), *SHORT)
    assert code in (0, 2, 3, 4), said
    assert "does not exist" not in said
    assert str(baseline.parent) in printed + said
    assert str(board.root) not in printed + said


def test_a_recorded_load_goes_along_and_figures_name_what_was_typed(board, project, monkeypatch):
    (project / "day.csv").write_text("time\n" + "".join(f"{number / 50}\n" for number in range(50)))
    (project / "here").mkdir()
    monkeypatch.chdir(project / "here")
    load, source = "trace:../day.csv@2x", str(project / "mine" / "calib")
    code, printed, said = finished(
        "bench",
        "../mine/model.onnx",
        "-t",
        "cpu",
        "--load",
        load,
        "--source",
        source,
        "-o",
        "measured",
        "--seconds",
        "0.3",
    )
    assert code in (0, 4), said
    assert load in whole(printed)
    text = (project / "here" / "measured" / "bench.json").read_text()
    assert f'"{source}"' in text
    assert load in text
    assert str(board.root / "jobs") not in text + printed + said
    code, _, said = finished("bench", "../mine/model.onnx", "-t", "cpu", "--load", "trace:none.csv")
    assert code == 1
    assert "none.csv does not exist" in whole(said)


def test_doctor_tells_of_the_device(board, project):
    code, printed, said = finished("doctor", "--json")
    assert code == 0, said
    assert json.loads(printed)


def test_where_the_device_runs_each_node_is_shown(board, project):
    code, printed, said = finished("inspect", "mine/model.onnx", "-t", "cpu")
    assert code == 0, said
    assert "CPUExecutionProvider" in printed
    assert "runs on" in printed


def test_ctrl_c_ends_the_command_there_too(board, project):
    process = started(*LONG)
    wait_until(lambda: runs_on(board))
    sleep(1)
    process.send_signal(signal.SIGTERM)  # as Ctrl-C, which a job in a background may be told to ignore
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert not processes_on(board)
    assert not board.jobs


def test_a_connection_that_is_cut_is_made_again_and_the_command_goes_on(board, project):
    process = started(*LONG[:5], "2", *LONG[6:])
    wait_until(lambda: runs_on(board))
    board.cut_connections()
    printed, said = process.communicate(timeout=300)
    assert process.returncode in (0, 4), said
    assert "connection lost" in whole(said)
    assert printed.count("Stages (ms)") == 1, "each line comes once"
    assert (project / "measured" / "bench.json").is_file()


@pytest.mark.parametrize(
    ("phase", "cut"),
    [
        ("facts", {"answered": 0}),
        ("prepare", {"sent": 1000}),
        ("store", {"sent": 5000}),
        ("begin", {"answered": 0}),
        ("follow", {"answered": 200}),
        ("bring", {"answered": 700}),
        ("forget", {"answered": 0}),
    ],
)
def test_a_connection_that_is_cut_in_any_phase_loses_nothing(board, project, monkeypatch, phase, cut):
    path = project / "mine" / "model.onnx"
    model = onnx.load(path)
    model.doc_string = token_hex()  # the device has it not
    onnx.save(model, path)
    if phase == "prepare":
        for ready in (board.root / "workers").glob("*/ready"):
            ready.unlink()
    monkeypatch.setenv("EDGEOPT_SSH", board.cut_once(phase, **cut))
    code, printed, said = finished("bench", "mine/model.onnx", "-t", "cpu", "--seconds", "0.2", "-o", "measured")
    assert code in (0, 4), said
    assert "connection lost" in whole(said)
    assert printed.count("Stages (ms)") == 1, "each line comes once"
    assert json.loads((project / "measured" / "bench.json").read_text())
    assert not board.jobs
    assert not [*(board.root / "store").glob("*/*.*")], "no half of a file is left"


def test_the_same_command_takes_up_what_a_dead_terminal_left(board, project):
    short = (*LONG[:5], "2", *LONG[6:])
    process = started(*short)
    wait_until(lambda: runs_on(board))
    process.kill()
    process.communicate()
    code, printed, said = finished(*short)
    assert code in (0, 4), said
    assert "the same command is there already" in whole(said)
    assert "Stages (ms)" in printed
    assert not board.jobs


def test_a_device_that_stops_the_command_is_one_clear_line(board, project):
    process = started(*LONG)
    wait_until(lambda: runs_on(board))
    for each in processes_on(board):
        each.kill()
    _, said = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "ssh://board stopped the command: the device was restarted, or what watched" in whole(said)
    assert "Traceback" not in said
    assert not board.jobs


def test_a_command_that_memory_does_not_hold_says_so(board, project):
    process = started(*LONG)
    wait_until(lambda: runs_on(board))
    (worker,) = [each for each in processes_on(board) if "watch" not in each.info["cmdline"]]
    worker.kill()
    _, said = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "ssh://board stopped the command: SIGKILL, as where memory does not suffice" in whole(said)


def test_what_is_wrong_with_the_command_itself_is_said_in_its_own_words(board, project):
    code, _, said = finished("bench", "mine/model.onnx", "-t", "cpu", "--seconds", "never")
    assert code == 1
    assert "never" in whole(said)
    code, _, said = finished("bench", "nothing.onnx")
    assert code == 1
    assert "no model file or shipped model named 'nothing.onnx'" in whole(said)
    code, _, said = finished("optimize", "mine/model.onnx", "-t", "cpu", "--resume", "--search-there")
    assert code == 1
    assert "name it: --out FOLDER" in whole(said)
    assert not board.jobs


def test_candidates_are_made_here_and_the_device_measures_and_chooses(board, project):
    briefly = ("mine/model.onnx", "-t", "cpu", "--steps", "simplify,fuse", "--time-limit", "40s")
    code, _, said = finished("optimize", *briefly)
    assert code in (0, 2, 4), said
    assert "making candidates here for ssh://board, which measures them" in whole(said)
    out = project / "out" / "mine-cpu"
    report = json.loads((out / "report.json").read_text())
    assert said.count("from disk") == 3, "the device makes none of them again"
    assert {candidate["name"] for candidate in report["candidates"]} == {"baseline", "simplify", "fuse"}
    assert all(candidate["latency"] for candidate in report["candidates"])
    assert "candidates were made on another machine" in json.dumps(report["notes"])
    assert (out / "bundle" / "manifest.json").is_file()
    assert not board.jobs


def test_what_the_device_must_search_for_is_said(board, project):
    code, _, said = finished("optimize", "mine/model.onnx", "-t", "cpu", "--dry-run")
    assert code == 0, said
    assert "candidates are made on board too: a plan is made where it runs" in whole(said)


def test_a_bundle_is_pushed_proven_there_and_goes_back(board, project, tmp_path_factory):
    """The device's place lies outside of the mirror; what is signed here is checked there."""
    place, file = tmp_path_factory.mktemp("device") / "door", project / "mine" / "model.onnx"
    net = load_model(file, "digits")
    recipe = choose_recipe(None, file, net.inputs, net.outputs, net.metadata).recipe
    frames = open_frames(project / "mine" / "calib")
    stored = choose_samples([frames.read(i) for i in range(2)], recipe.input.size)
    key = project / "release.key"
    public = make_keys(key)
    for serial, (name, other) in enumerate({"first": net, "second": _renamed(net)}.items()):
        bundle_with_test(project / name, net, recipe, stored, {"model.onnx": other.data})
        sign_bundle(project / name, key, serial)
    short = ("--to", str(place), "--seconds", "0.2", "--budget", "10s")
    code, printed, said = finished("push", "first", *short, "--trust", str(public))
    assert code == 0, printed + said
    running = (place / "current").resolve().name
    assert not list(board.root.rglob("release.key")), "the private key stays here"
    code, printed, said = finished("push", "second", *short, "--frames", "mine/calib")
    assert code == 0, printed + said
    assert "1.000 agree with the running bundle's" in whole(printed)
    assert (place / "current").resolve().name != running
    code, printed, said = finished("push", "first", *short)
    assert code == 1
    assert "release 0 is not newer than 1" in whole(said)
    code, printed, said = finished("push", "--back", "--to", str(place))
    assert code == 0, printed + said
    assert (place / "current").resolve().name == running
    code, _, said = finished("push", "second", "--to", "door")
    assert code == 1
    assert "depends on where the command runs" in whole(said)


def _renamed(net: Model) -> Model:
    """Return another file that computes the same."""
    proto = onnx.ModelProto()
    proto.CopyFrom(net.proto)
    proto.doc_string = "another release"
    return Model(proto, net.name)
