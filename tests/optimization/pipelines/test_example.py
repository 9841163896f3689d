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
import numpy as np
import pytest
from click.testing import CliRunner, Result
from fixture_pipelines import classifier

from edgeopt.cli import cli
from edgeopt.measurement.pipelines.given import open_pipeline
from edgeopt.optimization.pipelines.judge import PipelineJudge
from edgeopt.recipes.inputs.frames import open_frames
from edgeopt.runtime.pipelines import Pipeline
from edgeopt.runtime.pipelines.bundle import write_pipeline
from edgeopt.runtime.pipelines.description import parse_description

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "pipeline"
PICTURES = ROOT / "models" / "digits_detector" / "calib"
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


@pytest.fixture(scope="module")
def bundle(example, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "shop-cpu"
    open_pipeline(str(example / "pipeline.toml"), target="cpu", threads=1, code=example, folder=folder)
    return folder


def ran(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["run", *map(str, arguments)])


def test_run_tells_the_last_answers_names_the_stages_and_draws_the_boxes(example, bundle, tmp_path):
    asked = [bundle, PICTURES, "--code", example, "--limit", 20]
    shown = ran(*asked, "--budget", "1us", "--save", tmp_path / "drawn")
    assert shown.exit_code == 2, shown.output
    lines = shown.stdout.splitlines()
    assert lines[0] == "0001.jpg: apple"
    assert {"detect.execute", "crop", "recognise.postprocess", "lookup"} <= {line.split(" ")[0] for line in lines}
    assert lines[-1] == f"next       edgeopt bench {bundle} --code {example} --budget 1us"
    assert sorted(path.stem for path in (tmp_path / "drawn").iterdir()) == [f"{k:04}" for k in range(1, 21)]
    plain, drawn = (cv2.imread(str(path)) for path in (PICTURES / "0001.jpg", tmp_path / "drawn" / "0001.png"))
    assert np.abs(cv2.resize(plain, drawn.shape[1::-1]).astype(int) - drawn).max() > 200, "no box is drawn"


def test_run_writes_the_answers_of_all_stages_as_json(example, bundle):
    shown = ran(bundle, PICTURES, "--code", example, "--limit", 2, "--json")
    rows = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [row["frame"] for row in rows] == ["0001.jpg", "0002.jpg"]
    for row in rows:
        stages = row["stages"]
        assert list(stages) == ["detect", "crop", "recognise", "lookup"]
        assert row["last"] == stages["lookup"]
        assert row["runs"]["recognise"] == len(row["last"]) == len(stages["recognise"]) == len(stages["crop"]["boxes"])
        assert {one["class"] for one in stages["detect"]["detections"]}
        assert all(one["classes"][0]["score"] > 0 for one in stages["recognise"])


def test_a_pipeline_that_finds_no_boxes_is_told_and_not_drawn(tmp_path):
    stages = [{"name": "recognise", "model": "recognise.onnx"}]
    described = parse_description({"name": "kinds", "stage": stages}, "pipeline.toml", Path())
    made = classifier(tmp_path / "made", [2])
    folder = write_pipeline(tmp_path / "bundle", described, {"recognise": made}, {}, {}).folder
    cv2.imwrite(str(tmp_path / "one.png"), np.zeros((8, 8, 3), np.uint8))
    told = ran(folder, tmp_path / "one.png")
    assert told.stdout.startswith("one.png: class 2 1.000; "), told.output
    refused = ran(folder, tmp_path / "one.png", "--save", tmp_path / "drawn")
    assert refused.exit_code == 1
    assert refused.stderr.startswith("error: no stage of kinds finds boxes in the frame")
    assert not (tmp_path / "drawn").exists()


def test_run_without_the_code_with_a_description_or_with_code_for_a_model_is_one_error(example, bundle):
    for asked, said in (
        ([bundle, PICTURES], "stage lookup calls shop:find_products"),
        ([example / "pipeline.toml", PICTURES], "says what a pipeline is, and run takes its bundle"),
        ([bundle / "detect", PICTURES, "--code", example], "--code is for a pipeline"),
    ):
        shown = ran(*asked)
        assert shown.exit_code == 1
        assert said in shown.stderr
        assert shown.stderr.count("error: ") == 1


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["compare", "digits_detector"], "digits_detector is a single model of frames, and {} is a pipeline"),
        (
            ["check", "--update", "-b", "base.json"],
            "stage lookup calls shop:find_products, and code of an app runs only",
        ),
        (["inspect", "--quantized"], "a pipeline has no whole graph"),
        (["quantize", "-t", "cpu"], "{} is a pipeline, and this takes a single model"),
    ],
)
def test_what_takes_a_single_model_says_so(command, said, example, bundle, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in (bundle, example / "pipeline.toml"):
        shown = CliRunner().invoke(cli, [*command, str(path)])
        assert shown.exit_code == 1
        assert f"error: {said.format(path)}" in shown.stderr
        assert shown.stderr.count("  -> ") == 1


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
        judge = PipelineJudge(
            pipeline,
            open_frames(shipped / "calib"),
            shipped / "eval" / "instances.json",
            None,
            max_drop=0.01,
            least_agreement=0.8,
        )
        assert judge.metric == "AP"
        assert judge.baseline.accuracy.value > 0.7
        again = judge.judge(pipeline, "again")
        assert (again.drop, again.agreement, again.loss) == (0, 1, 0)
        assert again.judgement.drop_least <= 0 <= again.judgement.drop_most
        assert again.judgement.word == "NOT DECIDED", "few pictures, which also chose"
