"""Candidates of a pipeline's models made here for a device elsewhere, which chooses among them for the whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fixture_brief import briefly, ending_after

from edgeopt.errors import EdgeoptError
from edgeopt.optimization.candidate import RESUMED
from edgeopt.optimization.folder.handover import MadeHere, read_handover
from edgeopt.optimization.options import Options
from edgeopt.optimization.pipelines import elsewhere, optimize
from edgeopt.optimization.pipelines.elsewhere import make_stages_for
from edgeopt.optimization.pipelines.optimize import optimize_pipeline
from edgeopt.optimization.pipelines.result import JointReport
from edgeopt.optimization.run import Silence
from edgeopt.runtime.devices.availability import find_device_elsewhere
from edgeopt.runtime.pipelines.bundle import read_pipeline
from edgeopt.system.machine.processor import Processor, this_processor

SHIPPED = Path(__file__).parents[3] / "models" / "digits_detector"
DESCRIBED = """
name = "halves"
calib = "pictures"
[[stage]]
name = "cut"
call = "halves:cut"
takes = ["frame"]
[[stage]]
name = "detect"
model = "net.onnx"
recipe = "net.toml"
[[stage]]
name = "count"
call = "halves:count"
"""
CODE = """
def cut(frame):
    middle = frame.shape[1] // 2
    return [frame[:, :middle].copy(), frame[:, middle:].copy()]

def count(answers):
    return sum(len(answer) for answer in answers)
"""
OPTIONS = Options(skip=("prune", "activations"), threads=1)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pipeline of one model behind a function of the app, with a few pictures."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "pipeline.toml").write_text(DESCRIBED, "utf-8")
    (folder / "halves.py").write_text(CODE, "utf-8")
    shutil.copy(SHIPPED / "model.onnx", folder / "net.onnx")
    recipe = (SHIPPED / "recipe.toml").read_text("utf-8").splitlines()
    bare = [line for line in recipe if not line.startswith(("calib =", "labels =", "model ="))]  # no labels judge it
    (folder / "net.toml").write_text("\n".join(bare), "utf-8")
    shutil.copy(SHIPPED / "labels.txt", folder)
    (folder / "pictures").mkdir()
    for file in sorted((SHIPPED / "calib").glob("*.jpg"))[:8]:
        shutil.copy(file, folder / "pictures")
    return folder


@pytest.fixture(scope="module", autouse=True)
def _brief() -> Iterator[None]:
    with briefly(), ending_after(1):
        yield


def made_for_a_board(
    project: Path, out: Path, options: Options = OPTIONS, listener: Silence | None = None
) -> MadeHere | str:
    device = find_device_elsewhere("cpu", "ssh://pi@board", this_processor())
    return make_stages_for(
        project / "pipeline.toml", device, named="cpu", code=project, out=out, options=options, listener=listener
    )


def on_the_board(project: Path, out: Path, options: Options = OPTIONS) -> JointReport:
    return optimize_pipeline(
        project / "pipeline.toml", target="cpu", code=project, out=out, options=replace(options, resume=True)
    )


def times_of(folder: Path) -> dict[Path, int]:
    """Return when what the search makes was written."""
    made = [*folder.glob("models/*/candidates/*/model.onnx"), *folder.glob("inputs/*/*")]
    return {path: path.stat().st_mtime_ns for path in made}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, project: Path) -> Path:
    out = tmp_path_factory.mktemp("made") / "out"
    assert made_for_a_board(project, out) == MadeHere(str(project / "pipeline.toml"), out)
    assert {path.name for path in out.glob("[!.]*")} == {"handover.json", "inputs", "models", "pipeline-run.json"}
    return out


@pytest.fixture(scope="module")
def sent(folder: Path) -> dict[Path, int]:
    return times_of(folder)


@pytest.fixture(scope="module")
def report(folder: Path, sent: dict[Path, int], project: Path) -> JointReport:
    assert sent
    return on_the_board(project, folder)


def test_what_the_model_is_fed_and_its_candidates_are_made_here(sent):
    assert sum(path.suffix == ".png" for path in sent) == 16
    names = {path.parent.name for path in sent if path.suffix == ".onnx"}
    assert names >= {"baseline", "simplify", "fuse", "quantize"}


def test_the_board_measures_them_and_makes_none(report, folder, sent):
    assert times_of(folder) == sent
    stage = json.loads((folder / "models" / "detect" / "report.json").read_text("utf-8"))
    assert all(RESUMED.detail in json.dumps(candidate["notes"]) for candidate in stage["candidates"])
    assert all(candidate["latency"] for candidate in stage["candidates"])
    assert {candidate.name for candidate in report.candidates} >= {"baseline"}
    assert all(candidate.latency for candidate in report.candidates)
    assert read_pipeline(folder).expected["forms"] == dict(report.chosen_forms)
    assert any("candidates were made on another machine" in note.detail for note in report.notes)


def test_what_was_made_is_not_made_again_so_that_a_command_is_the_same_to_the_board(project, folder, report, sent):
    before = {path: path.read_bytes() for path in folder.rglob("handover.json")}
    assert len(before) == 2
    made_for_a_board(project, folder, replace(OPTIONS, resume=True))
    assert times_of(folder) == sent
    assert {path: path.read_bytes() for path in folder.rglob("handover.json")} == before


def test_the_candidates_are_those_of_the_board_alone(project, folder, report, tmp_path):
    out, options = tmp_path / "out", replace(OPTIONS, steps=("simplify", "fuse"))  # the search for INT8 goes by times
    with pytest.raises(KeyboardInterrupt):
        optimize_pipeline(
            project / "pipeline.toml", target="cpu", code=project, out=out, options=options, listener=Cuts("measuring")
        )
    for name in ("baseline", "simplify", "fuse"):
        place = Path("models") / "detect" / "candidates" / name / "model.onnx"
        assert (out / place).read_bytes() == (folder / place).read_bytes()
    for file in (folder / "inputs" / "detect").iterdir():
        assert (out / "inputs" / "detect" / file.name).read_bytes() == file.read_bytes()


class Cuts(Silence):
    """A listener that interrupts where a line begins so."""

    def __init__(self, text: str) -> None:
        self._text = text

    def say(self, text: str) -> None:
        if text.startswith(self._text):
            raise KeyboardInterrupt


def test_an_interrupted_search_goes_on_and_the_pipeline_is_not_run_again(project, tmp_path, monkeypatch):
    out, options = tmp_path / "out", replace(OPTIONS, steps=("simplify", "fuse"))
    with pytest.raises(KeyboardInterrupt):
        made_for_a_board(project, out, options, Cuts("simplify"))
    assert read_handover(out / "models" / "detect") is None
    before = {path: time for path, time in times_of(out).items() if path.suffix == ".png"}
    monkeypatch.setattr(elsewhere, "observe_original", None)
    made = made_for_a_board(project, out, replace(options, resume=True))
    assert made == MadeHere(str(project / "pipeline.toml"), out)
    assert before.items() <= times_of(out).items()
    assert read_handover(out / "models" / "detect") is not None


def test_other_code_feeds_models_something_else_so_that_nothing_is_taken_up(project, tmp_path, monkeypatch):
    mine, options, kept = tmp_path / "mine", replace(OPTIONS, steps=("simplify",)), list[Path | None]()
    shutil.copytree(project, mine)
    made_for_a_board(mine, tmp_path / "out", options)

    def keep(pipeline: object, frames: object, folder: Path | None, tell: object) -> None:
        kept.append(folder)
        raise KeyboardInterrupt

    monkeypatch.setattr(optimize, "observe_original", keep)
    for changed in (CODE, CODE.replace("// 2", "// 3")):
        (mine / "halves.py").write_text(changed, "utf-8")
        with pytest.raises(KeyboardInterrupt):
            on_the_board(mine, tmp_path / "out", options)
    assert kept == [None, tmp_path / "out" / "inputs"], "what models are fed is found out there"


def test_what_does_not_run_here_is_left_to_the_board_and_said(project, tmp_path):
    mine = tmp_path / "mine"
    shutil.copytree(project, mine)
    (mine / "halves.py").write_text(f"import a_camera_of_the_board\n{CODE}", "utf-8")
    why = made_for_a_board(mine, tmp_path / "out")
    assert isinstance(why, str)
    assert why.startswith("its functions do not run here: stage cut: ")
    assert "a_camera_of_the_board" in why
    (mine / "halves.py").write_text("def cut(frame):\n    raise OSError('no sensor')\ndef count(_):\n    return 0\n")
    why = made_for_a_board(mine, tmp_path / "out")
    assert isinstance(why, str)
    assert why.startswith("it does not run here: stage cut failed")


def test_candidates_for_an_arm_board_are_made_here(project, tmp_path):
    device = find_device_elsewhere("cpu-arm64", "ssh://pi@board", Processor("arm64", {"asimd", "asimddp"}))
    out = tmp_path / "out"
    options = replace(OPTIONS, steps=("simplify",))
    file = project / "pipeline.toml"
    made = make_stages_for(file, device, named="cpu-arm64", code=project, out=out, options=options, listener=None)
    assert made == MadeHere(str(file), out)
    handover = read_handover(out / "models" / "detect")
    assert handover is not None
    assert handover.run["profile"] == "cpu-arm64"


def test_a_missing_model_is_one_line_that_names_its_stage(project, tmp_path):
    mine = tmp_path / "mine"
    shutil.copytree(project, mine)
    (mine / "pipeline.toml").write_text(DESCRIBED.replace('"net.onnx"', '"absent.onnx"'), "utf-8")
    with pytest.raises(EdgeoptError, match=r"stage detect: no model file or shipped model named 'absent.onnx'"):
        made_for_a_board(mine, tmp_path / "out")
