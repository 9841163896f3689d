"""The example of the page runs: its file is the page's, its classifier is made, it is optimized and it answers."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import sys
from ast import literal_eval
from pathlib import Path

import cv2
import pytest
from click.testing import CliRunner

from edgeopt.cli import cli
from edgeopt.measurement.pipelines.given import open_pipeline
from edgeopt.pipeline.joint.judge import Judge
from edgeopt.recipes.frames import open_frames
from edgeopt.runtime.pipelines import Pipeline

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "pipeline"
PAGE = (ROOT / "docs" / "pipelines.md").read_text("utf-8")


@pytest.fixture(scope="session")
def example(tmp_path_factory) -> Path:
    """A copy of the example with its classifier, which the calibration pictures of the repository fit."""
    folder = tmp_path_factory.mktemp("example")
    for file in EXAMPLE.glob("*.*"):
        if file.suffix != ".onnx":
            shutil.copy(file, folder)
    described = (folder / "pipeline.toml").read_text("utf-8")
    calib = (ROOT / "models" / "digits_detector" / "calib").as_posix()
    (folder / "pipeline.toml").write_text(described.replace("../../models/digits_detector/calib", calib), "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["make_classifier.py", str(folder / "classifier.onnx")])
        runpy.run_path(str(EXAMPLE / "make_classifier.py"), run_name="__main__")
    return folder


def test_the_page_shows_the_file_itself():
    shown = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert shown == [(EXAMPLE / "pipeline.toml").read_text("utf-8")]


def test_the_page_runs_on_its_bundle(example, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "out" / "shop-cpu"
    open_pipeline(str(example / "pipeline.toml"), target="cpu", threads=1, code=example, folder=folder)
    picture = sorted((ROOT / "models" / "digits_detector" / "calib").glob("*.jpg"))[1]
    cv2.imwrite(str(tmp_path / "frame.jpg"), cv2.imread(str(picture)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(example))
    exec(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0], {})
    products, runs, lookup_ms = capsys.readouterr().out.splitlines()
    assert len(literal_eval(products)) == int(runs) >= 5
    assert float(lookup_ms) > 0


def test_optimize_makes_chooses_and_writes_what_the_app_loads(example, tmp_path, brief):
    wishes = ["--target", "cpu", "--code", str(example), "--threads", "1", "--steps", "fuse,quantize"]
    asked = ["optimize", str(example / "pipeline.toml"), *wishes, "--time-limit", "9s", "-o", str(tmp_path / "out")]
    shown = CliRunner().invoke(cli, asked)
    assert shown.exit_code in (0, 2, 3, 4), shown.output
    said = json.loads((tmp_path / "out" / "report.json").read_text("utf-8"))
    assert {one["name"] for one in said["after"]} == {"load", "detect", "crop", "recognise", "lookup"}
    assert [forms[0]["stage"] for forms in said["forms"]] == ["detect", "recognise"]
    assert said["forms"][0][0]["name"] == said["forms"][1][0]["name"] == "baseline"
    runs = next(one for one in said["after"] if one["name"] == "recognise")
    assert runs["runs_most"] > runs["runs_mean"] > 1
    assert (tmp_path / "out" / "models" / "recognise" / "report.md").is_file()
    with Pipeline.load(tmp_path / "out", stages={"lookup": lambda crops, digits: len(digits)}) as pipeline:
        picture = sorted((ROOT / "models" / "digits_detector" / "calib").glob("*.jpg"))[1]
        assert pipeline.predict(cv2.imread(str(picture))).last >= 5


def test_labels_of_boxes_judge_a_whole_that_ends_in_a_detector(tmp_path):
    shipped = ROOT / "models" / "digits_detector"
    file = tmp_path / "pipeline.toml"
    file.write_text('name = "digits"\n[[stage]]\nname = "detect"\nmodel = "digits_detector"\n', "utf-8")
    given = open_pipeline(str(file), target="cpu", threads=1, code=None, folder=tmp_path / "made")
    with given.open() as pipeline:
        judge = Judge(pipeline, open_frames(shipped / "calib"), shipped / "eval" / "instances.json", None)
        assert judge.metric == "AP"
        assert judge.baseline.accuracy.value > 0.7
        again = judge.judge(pipeline, "again")
        assert (again.drop, again.agreement, again.loss) == (0, 1, 0)
        assert again.interval.low <= 0 <= again.interval.high
