"""Commands on a device behind a real sshd: what is sent, what comes back, and what a bad day leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from shutil import rmtree
from time import monotonic, sleep

import onnx
import psutil
import pytest
from fixture_bundles import bundle_with_test
from fixture_models import model, numbers
from ssh_server import Board

from edgeopt.graph.files.outside import sha256_of
from edgeopt.graph.model import Model, load_model, save_model
from edgeopt.recipes.inputs.frames import open_frames
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.runtime.rollout.signature import make_keys, sign_bundle
from edgeopt.runtime.selftest import choose_samples
from edgeopt.system.machine.facts import moment_facts

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


def read_by_nobody(paths: list[Path]) -> set[Path]:
    """Return those of the files and folders that the system's user for nobody reads."""
    script = 'for path do if cat "$path" || ls "$path"; then echo "$path" >&3; fi; done 3>&1 > /dev/null 2>&1'
    command = ["sh", "-c", script, "sh", *map(str, paths)]
    alone = {"user": NOBODY, "group": NOBODY, "extra_groups": (), "cwd": "/"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, **alone)
    return {Path(line) for line in done.stdout.splitlines()}


@contextmanager
def small_disk(place: Path) -> Iterator[None]:
    """Let a folder be a disk of 1 MB. Without the right to mount one, skip."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", str(place)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no disk can be mounted here: {whole(done.stderr)}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def whole(text: str) -> str:
    """Return a text as one line, however it is folded."""
    return " ".join(text.split())


NOBODY = 65534
by_root = pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs root, and mounts of Linux")
SHORT = ("--seconds", "0.2", "--skip", "memory,cold_start", "--threads", "1")
BENCH = ("bench", "mine/model.onnx", "-t", "cpu", "--seconds", "0.2", "--frames", "30", "--threads", "1")
LONG = ("bench", "mine/model.onnx", "-t", "cpu", "--seconds", "60", "--threads", "1", "-o", "measured")


def test_an_environment_is_made_though_the_connection_is_cut_on_the_way(first_command):
    board, done = first_command
    assert done.returncode == 0, done.stderr
    assert whole(done.stderr).count("connection lost") == 2
    assert [*(board.root / "workers").glob("*/ready")]


def test_a_command_runs_there_as_here_and_its_files_come_back(board, project):
    code, printed, said = finished(*BENCH, "-o", "measured")
    assert code in (0, 4), said
    assert "digits_detector" in printed
    assert "came back from board" in whole(said)
    stored = json.loads((project / "measured" / "bench.json").read_text())
    facts = stored["environment"]["facts"]
    state = {"cpu.limit_khz", "power.source", *moment_facts(Path("/proc"), Path("/sys"))}
    assert {"cpu.now_khz", "cpu.throttle_counts", "heat.zones"} < state <= {*facts}, "as of a bench here"
    assert all(facts[name]["value"] is not None or facts[name]["reason"] for name in state)
    assert not board.jobs, "nothing is left of the command"
    assert not board.beside, "nothing else on the device is touched"
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
    file = str(project / "mine" / "model.onnx")
    code, printed, said = finished("check", file, f"--baseline={baseline}", "--update", *SHORT)
    assert code == 0, said
    assert json.loads(baseline.read_text())
    assert baseline.with_suffix(".npz").is_file()
    code, printed, said = finished("check", file, "-b", str(baseline), *SHORT)
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
        "--frames",
        "30",
        "--threads",
        "1",
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


def test_doctor_tells_of_the_device_in_an_environment_of_this_very_edgeopt(board, project):
    """Another version has its own there."""
    other = board.root / "workers" / "0.0.9-0123456789abcdef-cpu-serve-sign"
    (other / "bin").mkdir(parents=True)
    (other / "ready").touch()
    (other / "bin" / "python").write_text(f"#!/bin/sh\ntouch {other}/used\nexit 1\n")
    (other / "bin" / "python").chmod(0o700)
    before = {path: path.stat().st_mtime_ns for path in (other, *other.rglob("*"))}
    try:
        code, printed, said = finished("doctor", "--json")
        assert {path: path.stat().st_mtime_ns for path in (other, *other.rglob("*"))} == before
    finally:
        rmtree(other)
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


CUTS = {
    "facts": {"answered": 0},
    "missing": {"answered": 0},
    "store": {"sent": 5000},
    "begin": {"answered": 0},
    "follow": {"answered": 200},
    "bring": {"answered": 700},
    "forget": {"answered": 0},
}
"""Bytes that pass in each phase of a command until the connection is gone."""


def test_a_connection_that_is_cut_in_every_phase_loses_nothing(board, project, monkeypatch):
    path = project / "mine" / "model.onnx"
    proto = onnx.load(path)
    proto.doc_string = token_hex()  # the device has it not
    onnx.save(proto, path)
    monkeypatch.setenv("EDGEOPT_SSH", board.cut_once(**CUTS))
    code, printed, said = finished(*BENCH, "-o", "measured")
    assert code in (0, 4), said
    assert whole(said).count("connection lost") == len(CUTS)
    assert printed.count("Stages (ms)") == 1, "each line comes once"
    assert json.loads((project / "measured" / "bench.json").read_text())
    assert not board.jobs
    assert not [*(board.root / "store").glob("*/*.*")], "no half of a file is left"


def test_a_connection_is_made_again_and_the_same_command_takes_up_what_a_dead_terminal_left(board, project):
    short = (*LONG[:5], "1", *LONG[6:])
    process = started(*short)
    wait_until(lambda: runs_on(board))
    board.cut_connections()
    assert any("connection lost" in line for line in process.stderr)
    wait_until(board.server.children)
    process.kill()
    process.communicate()
    code, printed, said = finished(*short)
    assert code in (0, 4), said
    assert "the same command is there already" in whole(said)
    assert printed.count("Stages (ms)") == 1, "each line comes once"
    assert (project / "measured" / "bench.json").is_file()
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


@by_root
def test_another_user_of_the_device_reads_nothing(board, project):
    process = started(*LONG)
    wait_until(lambda: runs_on(board))
    closed = {path: path.stat().st_mode for path in board.root.parents if not path.stat().st_mode & 0o001}
    for path, mode in closed.items():
        path.chmod(mode | 0o011)  # else pytest's own folders would keep others away
    beside = board.root.parent / "open"
    beside.write_text("everybody's")
    beside.chmod(0o644)
    paths = [path for name in ("store", "jobs") for path in (board.root / name).rglob("*")]
    try:
        assert {"err", "model.onnx", "request.json"} <= {path.name for path in paths}
        assert read_by_nobody([beside, board.root, *paths]) == {beside}, "the way there is open to others"
    finally:
        beside.unlink()
        for path, mode in closed.items():
            path.chmod(mode)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)


@by_root
@pytest.mark.parametrize("full", ["store", "jobs"])
def test_a_device_whose_disk_is_full_says_so_and_keeps_no_half(board, project, full):
    path = project / "mine" / "model.onnx"
    proto = onnx.load(path)
    proto.doc_string = token_hex(3 << 19)
    onnx.save(proto, path)
    (board.root / full).mkdir(parents=True, exist_ok=True)
    with small_disk(board.root / full):
        code, printed, said = finished("bench", "mine/model.onnx", "-t", "cpu", *SHORT[:2], "-o", "measured")
        left = [each for each in (board.root / full).rglob("*") if each.is_file() and each.suffix != ".lock"]
        assert all(each.name == sha256_of(each) for each in left), "what is whole stays: it is not sent again"
        assert not board.jobs
    assert code == 1
    assert whole(said).endswith(
        f"error: ssh://board: {board.root} cannot be written: No space left on device"
        " -> free disk space there, or correct its permissions"
    )
    assert not printed
    assert not (project / "measured").exists()


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


def test_candidates_are_made_here_and_the_device_measures_and_chooses(board, project, monkeypatch):
    """The connection is lost once while they are handed over."""
    text = """net (float[1,64,16,16] x) => (float[1,64,16,16] y) {
        c = Conv<pads = [1,1,1,1]>(x, w) i = Identity(c) m = Mul(i, s) a = Add(m, o) y = Relu(a)
    }"""
    constants = {"w": numbers(64, 64, 3, 3), "s": numbers(1, 64, 1, 1), "o": numbers(1, 64, 1, 1, seed=1)}
    save_model(model(text, **constants), project / "net.onnx")
    monkeypatch.setenv("EDGEOPT_SSH", board.cut_once(store={"sent": 300_000}))
    briefly = ("--recipe", "tensors", "--steps", "simplify,fuse", "--threads", "1", "--time-limit", "40s")
    code, _, said = finished("optimize", "net.onnx", "-t", "cpu", *briefly)
    assert code in (0, 2, 3, 4), said
    assert "making candidates here for ssh://board, which measures them" in whole(said)
    assert said.count("connection lost") == 1
    out = project / "out" / "net-cpu"
    report = json.loads((out / "report.json").read_text())
    assert said.count("from disk") == 3, "the device makes none of them again"
    assert {candidate["name"] for candidate in report["candidates"]} == {"baseline", "simplify", "fuse"}
    assert all(candidate["latency"] for candidate in report["candidates"])
    assert "candidates were made on another machine" in json.dumps(report["notes"])
    assert (out / "bundle" / "manifest.json").is_file()
    assert not board.jobs
    assert not board.beside


def test_a_device_that_restarts_while_it_measures_candidates_loses_none(board, project):
    asked = ("optimize", "mine/model.onnx", "-t", "cpu", "--steps", "simplify", "--threads", "1")
    process = started(*asked, "--time-limit", "5m")  # it is killed as soon as it measures
    wait_until(lambda: runs_on(board) and (board.jobs[0] / "err").read_text().count("from disk") == 2)
    for each in processes_on(board):
        with suppress(psutil.NoSuchProcess):  # it ended with the one before it
            each.kill()
    _, said = process.communicate(timeout=120)
    assert process.returncode == 1
    assert said.count("stopped the command") == 1
    assert "the device was restarted" in whole(said)
    assert "came back from board" in whole(said)
    assert "Traceback" not in said
    out = project / "out" / "mine-cpu"
    made = {path: path.read_bytes() for path in out.glob("candidates/*/*")}
    assert {path.parent.name for path in made} == {"baseline", "simplify"}
    assert not board.jobs
    code, _, said = finished(*asked, "--resume", "--time-limit", "20s")
    assert code in (0, 2, 3, 4), said
    assert said.count("from disk") == 2, "none is made again"
    assert (out / "bundle" / "manifest.json").is_file()
    assert {path: path.read_bytes() for path in made if path.suffix == ".onnx"}.items() <= made.items()


def test_what_the_device_must_search_for_is_said(board, project):
    code, _, said = finished("optimize", "mine/model.onnx", "-t", "cpu", "--dry-run")
    assert code == 0, said
    assert "candidates are made on board too: a plan is made where it runs" in whole(said)


def test_a_bundle_is_pushed_proven_there_and_goes_back(board, project, tmp_path_factory, monkeypatch):
    """The device's place lies outside of the mirror; what is signed here is checked there."""
    monkeypatch.setenv("EDGEOPT_SSH", board.cut_once(follow={"answered": 20}))  # cut in the head of a frame
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
    assert "connection lost" in whole(said)
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
