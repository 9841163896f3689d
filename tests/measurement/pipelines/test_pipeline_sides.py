"""`compare` and `check` of pipelines: on the command line and from Python, by labels and by answers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
from click.testing import CliRunner
from fixture_pipelines import shop
from test_pipeline_bench import CODE

import edgeopt
from edgeopt.cli import cli

QUICK = ("--seconds", "0.1s")


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "shop.py").write_text(CODE, "utf-8")
    return folder


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for i in range(4):
        cv2.imwrite(str(folder / f"{i}.png"), np.full((8, 8, 3), 40 * i, np.uint8))
    return folder


def run(*args: object):
    return CliRunner().invoke(cli, [str(arg) for arg in args])


def test_a_pipeline_is_compared_with_itself_stage_by_stage(tmp_path, code, pictures):
    bundle, out = shop(tmp_path / "bundle").folder, tmp_path / "out"
    done = run("compare", bundle, bundle, "--code", code, "--source", pictures, *QUICK, "-o", out)
    assert done.exit_code == 0, done.output
    values = json.loads((out / "compare.json").read_text("utf-8"))
    first, second = values["rows"]
    assert values["whole"] == "frame"
    assert first["sha256"] == second["sha256"]
    assert first["size_bytes"] == second["size_bytes"] > 0
    assert (second["quality"]["metric"], second["quality"]["value"]) == ("agreement", 1.0)
    assert second["quality"]["loss"] == {"name": "drop", "value": 0.0, "low": 0.0, "high": 0.0}
    assert "frame" in second["ratios"]
    assert all((out / f"samples-{name}.npz").is_file() for name in ("1", "2", "again"))


def test_made_up_pictures_judge_no_pipeline(tmp_path, code):
    bundle = shop(tmp_path / "bundle").folder
    found = edgeopt.compare(bundle, bundle, code=code, seconds=0.1)
    assert [row.quality for row in found.rows] == [None, None]
    assert any("synthetic pictures" in note.detail for note in found.notes)


def test_labels_of_a_pipeline_say_what_is_lost(tmp_path, code, pictures):
    labels = pictures / "answers.json"
    right = [int(index) for index in edgeopt_answers(tmp_path, code, pictures)]
    labels.write_text(json.dumps({f"{i}.png": right for i in range(4)}), "utf-8")
    other = tmp_path / "other"
    other.mkdir()
    (other / "shop.py").write_text(CODE.replace("int(one.indices[0])", "7"), "utf-8")
    baseline, bundle = tmp_path / "gate.json", shop(tmp_path / "bundle").folder
    asked = ("--source", pictures, "--eval", labels, "-b", baseline, "--skip", "latency")
    written = run("check", bundle, "--code", code, *asked, "--update")
    assert written.exit_code == 0, written.output
    assert "holds no labels" not in written.output
    same = run("check", bundle, "--code", code, *asked, "--json")
    verdicts = {result["name"]: result["verdict"] for result in json.loads(same.stdout)["results"]}
    assert verdicts == {"latency": "SKIPPED", "accuracy": "PASS", "size": "PASS"}
    shutil.rmtree(bundle)
    moved = shop(tmp_path / "moved").folder
    worse = run("check", moved, "--code", other, *asked, "--json")
    assert worse.exit_code == 2, worse.output
    verdicts = {result["name"]: result["verdict"] for result in json.loads(worse.stdout)["results"]}
    assert verdicts["accuracy"] == "FAIL"


def edgeopt_answers(tmp_path: Path, code: Path, pictures: Path) -> list[int]:
    """Return the answer that a pipeline gives to each of the pictures: it is the same for all."""
    from edgeopt.measurement.pipelines.marked import RunnablePipeline

    opened = RunnablePipeline(shop(tmp_path / "asked").folder, code).open()
    answers = [opened.pipeline.predict(cv2.imread(str(file))).last for file in sorted(pictures.glob("*.png"))]
    opened.close()
    assert all(answer == answers[0] for answer in answers)
    return answers[0]


def test_without_labels_the_baselines_own_answers_judge_while_it_is_there(tmp_path, code, pictures):
    baseline, bundle = tmp_path / "gate.json", shop(tmp_path / "bundle").folder
    asked = ("--code", code, "--source", pictures, "-b", baseline, "--skip", "latency")
    written = run("check", bundle, *asked, "--update")
    assert "check compares answers only while its pipeline is there" in " ".join(written.output.split())
    same = run("check", bundle, *asked)
    assert same.exit_code == 0, same.output
    moved = shop(tmp_path / "moved").folder
    shutil.rmtree(bundle)
    gone = run("check", moved, *asked)
    assert gone.exit_code == 3, gone.output
    assert "is not there any more" in " ".join(gone.output.split())


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (("--skip", "memory"), "no check of a pipeline named 'memory'"),
        (("--starts", "4"), "--starts is for a single model of frames"),
        (("--skip", "latency"), "gate.json does not exist"),
    ],
)
def test_what_a_pipeline_has_not_is_one_line(tmp_path, code, more, problem):
    shown = run("check", shop(tmp_path).folder, "--code", code, "-b", tmp_path / "gate.json", *more)
    assert shown.exit_code == 1
    assert problem in shown.output
    assert "Traceback" not in shown.output


def test_a_baseline_of_another_kind_is_refused(tmp_path, code):
    baseline = tmp_path / "gate.json"
    run("check", shop(tmp_path).folder, "--code", code, "-b", baseline, "--update", "--skip", "latency,accuracy")
    shown = run("check", "tiny_lm", "-b", baseline)
    assert shown.exit_code == 1
    assert "is the baseline of a pipeline, and tiny_lm is a language model" in shown.output
