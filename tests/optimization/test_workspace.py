"""An output folder belongs to one run at a time, and only what that very run wrote is taken up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import cv2
import numpy as np
import pytest
from click.testing import CliRunner

from edgeopt.cli import cli
from edgeopt.errors import EdgeoptError, InvalidFileError
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.measurement.fresh_process.proof_time import SeenTimes
from edgeopt.optimization.candidate import Candidate
from edgeopt.optimization.choice.decide import decide
from edgeopt.optimization.folder.resume import fingerprint_files, open_workspace
from edgeopt.optimization.folder.workspace import Workspace
from edgeopt.optimization.optimize import optimize
from edgeopt.optimization.run import Silence
from edgeopt.recipes.inputs.frames import open_frames
from edgeopt.steps.quantize import STEP

RUN = {"model": "m", "labels": ["1"]}
FILE = "candidates/fuse/model.onnx"


def some(name: str = "fuse", **changes: object) -> Candidate:
    file = f"candidates/{name}/model.onnx"
    return replace(Candidate(name, "baseline", (name,), "fp32", file, 5), **changes)


def test_a_candidate_is_taken_up_by_the_same_run_only(tmp_path):
    with Workspace.open(tmp_path / "o", RUN) as first:
        first.store(some(), b"model")
        first.store(some(on_front=True), None)
    with open_workspace(tmp_path / "o", RUN, resume=True) as again:
        assert again.find(FILE) == some(on_front=True)
        assert (again.read(FILE), again.notes) == (b"model", [])
    with open_workspace(tmp_path / "o", {**RUN, "labels": ["2"]}, resume=True) as other:
        assert other.find(FILE) is None
        assert "it was another run, by its labels" in other.notes[0].detail


def test_a_candidate_that_was_overwritten_is_not_taken_up_and_not_bundled(tmp_path):
    with Workspace.open(tmp_path, RUN) as first:
        first.store(some(), b"model")
        (tmp_path / FILE).write_bytes(b"other")
        with pytest.raises(InvalidFileError, match="was changed since it was written"):
            first.read(FILE)
    with Workspace.open(tmp_path, RUN, resume=True) as again:
        assert again.find(FILE) is None
        assert "made again" in again.notes[0].detail


def test_what_was_compiled_is_hashed_with_its_candidate(tmp_path):
    binary = tmp_path / "candidates/fuse/npu/model.bin"
    binary.parent.mkdir(parents=True)
    (tmp_path / "run.json").write_text(json.dumps({"tool": "edgeopt optimize", "schema": 3}))
    binary.write_bytes(b"binary")
    with Workspace.open(tmp_path, RUN) as run:
        run.store(some(compiled="candidates/fuse/npu/model.bin"), b"model")
        assert run.find(FILE) is not None
        binary.write_bytes(b"another")
        assert run.find(FILE) is None


def test_a_step_is_finished_when_it_says_so_and_a_fresh_run_begins_anew(tmp_path):
    with Workspace.open(tmp_path, RUN) as run:
        run.store(some("quantize"), b"1")
        assert run.finished("quantize") is None
        run.finish("fuse", [])
        run.finish("quantize", ["a", "b"])
        assert (run.finished("quantize"), run.finished("fuse")) == (("a", "b"), ())
    with Workspace.open(tmp_path, RUN, resume=True) as again:
        assert again.finished("quantize") == ("a", "b")
    with Workspace.open(tmp_path, RUN) as fresh:
        assert fresh.finished("quantize") is None


@pytest.mark.parametrize("name", ["report.md", "answers.png", "bundle", "candidates", "notes.txt"])
def test_a_folder_with_the_users_own_files_is_left_alone(tmp_path, name):
    (tmp_path / name).mkdir() if "." not in name else (tmp_path / name).write_text("mine")
    with pytest.raises(InvalidFileError, match=f"holds something else: {name}"):
        Workspace.open(tmp_path, RUN)
    assert [one.name for one in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("mark", ["{}", "[]", "mine", '{"key": "0123456789abcdef"}', '{"schema": 2}', "[" * 10_000])
def test_a_foreign_run_json_makes_no_folder_ours(tmp_path, mark):
    (tmp_path / "run.json").write_text(mark)
    with pytest.raises(InvalidFileError) as caught:
        Workspace.open(tmp_path, RUN)
    assert "choose an empty folder" in caught.value.remedy
    assert (tmp_path / "run.json").read_text() == mark


def test_a_second_run_into_one_folder_is_refused_until_the_first_is_over(tmp_path):
    with Workspace.open(tmp_path, RUN), pytest.raises(EdgeoptError, match="another run writes into"):
        Workspace.open(tmp_path, RUN)
    with Workspace.open(tmp_path, RUN):
        pass


def test_a_killed_run_holds_no_folder(tmp_path):
    code = f"""import time; from pathlib import Path; from edgeopt.optimization.folder.workspace import Workspace
held = Workspace.open(Path({str(tmp_path / "o")!r}), {{}}); print("open", flush=True); time.sleep(60)"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "open\n"
        shown = CliRunner().invoke(
            cli, ["optimize", "digits_detector", "-t", "cpu", "-o", str(tmp_path / "o"), "--threads", "1"]
        )
        assert shown.exit_code == 1
        assert "another run writes into" in shown.output
        assert len(shown.output.splitlines()) == 2
        process.send_signal(signal.SIGKILL)
    with Workspace.open(tmp_path / "o", RUN):
        pass


def test_data_is_known_by_its_content(tmp_path):
    rng, folder = np.random.default_rng(0), tmp_path / "a"
    folder.mkdir()
    for name in ("1.png", "2.png"):
        cv2.imwrite(str(folder / name), rng.integers(0, 255, (16, 16, 3), np.uint8))
    first = fingerprint_files(open_frames(folder).paths)
    for path in folder.iterdir():
        os.utime(path, (1, 1))
    folder.rename(tmp_path / "b")
    assert fingerprint_files(open_frames(tmp_path / "b").paths) == first
    (tmp_path / "b" / "1.png").rename(tmp_path / "b" / "3.png")
    assert fingerprint_files(open_frames(tmp_path / "b").paths) != first
    np.savez(tmp_path / "x.npz", x=rng.random((2, 3), np.float32))
    of_one = fingerprint_files(open_frames(tmp_path / "x.npz").paths)
    assert of_one not in ("", first)
    (tmp_path / "c").mkdir()
    for name in ("x.npz", "y.npz"):
        np.savez(tmp_path / "c" / name, x=rng.random((2, 3), np.float32))
    assert fingerprint_files(open_frames(tmp_path / "c").paths) not in ("", of_one)


class Interrupting(Silence):
    """A listener that interrupts the run at the first candidate of a step."""

    def say(self, text: str) -> None:
        if text.startswith("quantize "):
            raise KeyboardInterrupt


def test_a_step_that_was_interrupted_is_made_again_whole_and_the_report_says_so(tmp_path, monkeypatch, brief):
    def three(model: Model, *_: object) -> list[Outcome]:
        made = [Model(type(model.proto).FromString(model.data), model.name) for _ in range(3)]
        for i, one in enumerate(made):
            one.proto.doc_string = str(i)
        return [Outcome(one, {}) for one in made]

    monkeypatch.setattr("edgeopt.steps.quantize.STEP", replace(STEP, make=three))
    wishes = {"target": "cpu", "out": tmp_path / "o", "steps": ("quantize",), "threads": 1}
    monkeypatch.setattr("edgeopt.optimization.candidates.engines._alternatives", lambda *_: ([], []))
    cut = optimize("digits_detector", **wishes, listener=Interrupting(), time_limit_s=120.0)
    assert (cut.was_cut, cut.chosen, cut.bundle.is_dir()) == (True, "baseline", True)
    assert (tmp_path / "o" / "candidates" / "quantize" / "candidate.json").exists()
    seen = dict[str, SeenTimes]()

    def decide_and_look(run):
        seen.update(run.context.proof.forms)
        return decide(run)

    monkeypatch.setattr("edgeopt.optimization.optimize.decide", decide_and_look)
    report = optimize("digits_detector", **wishes, resume=True, time_limit_s=120.0)
    assert {"quantize", "quantize-2", "quantize-3"} <= seen.keys(), "the first was seen by the run that was cut"
    assert [one.name for one in report.candidates][:4] == ["baseline", "quantize", "quantize-2", "quantize-3"]
    assert any("quantize was interrupted after 1 candidate" in note.detail for note in report.notes)
