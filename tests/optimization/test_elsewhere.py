"""Candidates made here for a device elsewhere: what machines share, and what the device takes up."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from fixture_brief import briefly, ending_after

from edgeopt.errors import Note, NoteKind, UnavailableError
from edgeopt.executors.onnxruntime import UNFUSED
from edgeopt.optimization import elsewhere
from edgeopt.optimization.candidate import RESUMED
from edgeopt.optimization.candidates.engines import open_engines
from edgeopt.optimization.elsewhere import make_for, why_not_made_here
from edgeopt.optimization.folder.handover import Handover, MadeHere, read_handover
from edgeopt.optimization.folder.resume import made_none
from edgeopt.optimization.folder.workspace import Workspace
from edgeopt.optimization.optimize import optimize
from edgeopt.optimization.options import Options
from edgeopt.optimization.plan import make_plan
from edgeopt.optimization.result import ModelReport
from edgeopt.recipes.recipe import find_recipe
from edgeopt.runtime.devices.availability import find_device_elsewhere
from edgeopt.system.declared import target
from edgeopt.system.machine.processor import Processor, this_processor

BOARD = "ssh://pi@board"
ARM, NARROW = Processor("arm64", {"asimd", "asimddp"}), Processor("x86-64", {"avx2"})
SHORT = Options(skip=("prune", "activations"), threads=1)


def made_for_a_board(out: Path, options: Options = SHORT) -> MadeHere:
    """Make the candidates of a small detector for a board that is like this machine."""
    device = find_device_elsewhere("cpu", BOARD, this_processor())
    with briefly(), ending_after(2):
        return make_for("digits_detector", device, named="cpu", out=out, recipe=None, options=options, listener=None)


def on_the_board(out: Path, options: Options = SHORT) -> ModelReport:
    with briefly(), ending_after(2):
        return optimize("digits_detector", target="cpu", out=out, options=replace(options, resume=True))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An output folder whose candidates were made for a board and then measured on it."""
    out = tmp_path_factory.mktemp("made") / "out"
    made = made_for_a_board(out)
    assert made == MadeHere("digits_detector", out)
    assert not (out / "report.json").exists(), "nothing is chosen where nothing is measured"
    assert not (out / "bundle").exists()
    return out


@pytest.fixture(scope="module")
def models(folder):
    """When each candidate's model was written."""
    return {path: path.stat().st_mtime_ns for path in folder.glob("candidates/*/model.onnx")}


@pytest.fixture(scope="module")
def report(folder, models):
    assert models
    return on_the_board(folder)


def test_the_board_takes_every_candidate_up_and_measures_it(report, folder, models):
    assert {folder / candidate.file for candidate in report.candidates} == {*models}
    assert all(RESUMED in candidate.notes for candidate in report.candidates)
    assert {path: path.stat().st_mtime_ns for path in models} == models
    assert all(candidate.latency for candidate in report.candidates)
    assert not report.untimed
    assert report.bundle


def test_the_report_says_where_they_were_made(report):
    assert any("candidates were made on another machine" in note.detail for note in report.notes)


def test_what_was_made_is_not_made_again_so_that_a_command_is_the_same_to_the_board(report, folder, models):
    """A job on a device is known by its files: one that went on without its terminal is taken up, and not repeated."""
    before = (folder / "handover.json").read_bytes()
    made_for_a_board(folder, replace(SHORT, resume=True))
    assert {path: path.stat().st_mtime_ns for path in models} == models
    assert (folder / "handover.json").read_bytes() == before


@pytest.mark.parametrize(("name", "threads"), [("cpu-arm64", 64), ("raspberry-pi-5", 0)])
def test_a_board_may_have_more_cores_than_this_machine(tmp_path, monkeypatch, name, threads):
    """The options for the device describe the run: the machine that searches takes as many threads as it has."""
    monkeypatch.setattr("edgeopt.system.machine.threads.logical_cores", lambda: 2)
    device, options = find_device_elsewhere(name, BOARD, ARM), Options(steps=("simplify",), threads=threads)
    make_for("digits_detector", device, named=name, out=tmp_path, recipe=None, options=options, listener=None)
    handover = read_handover(tmp_path)
    assert handover is not None
    assert handover.run["plan"]["threads"] == (threads or device.threads) > 2


def test_another_run_takes_nothing_up_and_says_by_what_it_differs(tmp_path):
    options = Options(steps=("simplify",), threads=1)
    made_for_a_board(tmp_path / "out", options)
    report = on_the_board(tmp_path / "out", replace(options, max_drop=0.5))
    assert not any(RESUMED in candidate.notes for candidate in report.candidates)
    assert any("another run, by its" in note.detail for note in report.notes)
    assert not any("another machine" in note.detail for note in report.notes)


@pytest.mark.parametrize(
    "damage", ["", "[]", '{"made_on": 1}', '{"made_on": "", "steps": [], "notes": [{}], "run": {}}']
)
def test_a_damaged_handover_is_none(tmp_path, damage):
    with Workspace.open(tmp_path, {"plan": {}}):
        (tmp_path / "handover.json").write_text(damage)
        assert read_handover(tmp_path) is None


def test_notes_of_the_search_are_told_by_the_board(tmp_path, monkeypatch):
    told = Note(NoteKind.WARNING, "quantize-3 left out: it aborted", "update the engine")
    monkeypatch.setattr("edgeopt.optimization.elsewhere.make_candidates", lambda run: run.context.notes.append(told))
    made_for_a_board(tmp_path / "out")
    handover = read_handover(tmp_path / "out")
    assert handover is not None
    assert handover.notes == (told,)
    assert told in handover.told


def test_a_step_that_made_none_is_tried_again_by_the_machine_that_made_them_alone(tmp_path):
    with Workspace.open(tmp_path, {"plan": {}}) as workspace:
        workspace.finish("prune", [])
        run = SimpleNamespace(workspace=workspace)
        assert not made_none(run, "prune")
        workspace.handover = Handover({}, "", (), ())
        assert made_none(run, "prune")
        assert not made_none(run, "fuse")


def test_a_step_whose_package_the_board_lacks_stays_in_its_plan(monkeypatch):
    monkeypatch.setattr("edgeopt.optimization.plan.find_spec", lambda _: None)
    recipe, device = find_recipe("imagenet"), find_device_elsewhere("cpu", BOARD, this_processor())
    options = Options(finetune_s=60.0, calib="synthetic")
    assert "finetune" not in make_plan(recipe, device, options, 1).steps
    assert "finetune" in make_plan(recipe, device, options, 1, made=("finetune",)).steps


@pytest.mark.parametrize(("processor", "name"), [(ARM, "cpu-arm64"), (NARROW, "cpu-x86-avx2")])
def test_the_profile_is_that_of_the_board(processor, name):
    device = find_device_elsewhere("cpu", BOARD, processor)
    assert device.name == name
    assert device.why_unfit() is None
    assert device.why_untimed() is None
    assert device.why_not_here() == f"candidates are measured on {BOARD}"
    other = find_device_elsewhere("cpu-arm64", BOARD, NARROW)
    assert other.why_untimed() == f"{BOARD} is x86-64, not arm64"


def test_a_board_is_described_alike_in_each_process():
    """Else an interrupted search is taken for another one: a set of texts has another order each time."""
    code = (
        "from edgeopt.runtime.devices.availability import find_device_elsewhere\n"
        "from edgeopt.system.machine.processor import Processor\n"
        "board = Processor('arm64', frozenset({'asimd', 'asimddp', 'i8mm', 'bf16', 'fp16'}))\n"
        f"print(repr(find_device_elsewhere('cpu', {BOARD!r}, board)))"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }  # fmt: skip
    assert len(printed) == 1


def test_a_board_that_no_profile_fits_is_said_with_the_reasons():
    with pytest.raises(UnavailableError, match=f"{BOARD} is riscv64"):
        find_device_elsewhere("cpu", BOARD, Processor("riscv64", frozenset({"v"})))


def test_a_board_whose_engine_is_not_here_searches_itself(monkeypatch):
    monkeypatch.setattr(elsewhere, "why_unavailable", lambda target: f"no engine of {target.name} is here")
    assert elsewhere.searched_target("nvidia-cuda", BOARD, this_processor()) == "no engine of nvidia-cuda is here"
    compiled = elsewhere.searched_target("rockchip-rk3588", BOARD, ARM)
    assert not isinstance(compiled, str), "why it is left to the board is said of what compiles on it"
    monkeypatch.undo()
    here = elsewhere.searched_target("cpu", BOARD, this_processor())
    assert not isinstance(here, str)
    assert here.address == BOARD
    assert elsewhere.searched_target("rockchip-rk3588", BOARD, ARM, Options()) == (
        "rockchip-rk3588 compiles on the device"
    )
    why = elsewhere.searched_target("cpu", BOARD, Processor("riscv64", frozenset({"v"})))
    assert isinstance(why, str)
    assert f"{BOARD} is riscv64" in why


def test_profiles_beside_it_follow_the_processor_of_the_board():
    wide = find_device_elsewhere("openvino-cpu", BOARD, Processor("x86-64", {"avx2", "avx512_vnni", "avx512_bf16"}))
    narrow = find_device_elsewhere("cpu", BOARD, NARROW).beside(target.find_target("openvino-cpu"))
    assert not wide.rules_here.reduce_range
    assert wide.why_no_precision("bf16") is None
    assert narrow.rules_here.reduce_range
    assert narrow.why_no_precision("bf16")


def test_a_processor_that_saturates_judges_for_another_without_its_own_saturation(monkeypatch):
    monkeypatch.setattr(target, "this_processor", lambda: NARROW)
    for name, board, entries in (("cpu-arm64", ARM, UNFUSED), ("cpu-x86-avx2", NARROW, {})):
        engines = open_engines(find_device_elsewhere(name, BOARD, board), 1, "")
        assert engines.own.entries == entries
        assert engines.untimed == f"candidates are measured on {BOARD}"
    assert open_engines(target.find_target("cpu-arm64"), 1, "").own.entries == UNFUSED


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (Options(), ""),
        (Options(prune="0.3"), ""),
        (Options(prune="1.5x"), "prunes by the device's own times"),
        (Options(replay="out"), "a replay"),
    ],
)
def test_what_needs_the_device_itself_is_left_to_it(options, why):
    device = find_device_elsewhere("cpu", BOARD, this_processor())
    assert why in why_not_made_here(device, options)
    assert bool(why) == bool(why_not_made_here(device, options))
