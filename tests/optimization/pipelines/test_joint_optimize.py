"""`optimize` of a pipeline: scripted forms are weighed in the whole, and the example runs as a user runs it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from click.testing import CliRunner
from fixture_pipelines import boxes, changed, classifier, described, detector

from edgeopt.cli import cli
from edgeopt.errors import EdgeoptError
from edgeopt.measurement.accuracy.judgement import judge_agreement
from edgeopt.measurement.pipelines.given import OpenedPipeline
from edgeopt.measurement.statistics.quantile import StageTime
from edgeopt.measurement.statistics.ratio import Change, Ratio
from edgeopt.optimization.candidate import BASELINE, Candidate, Latency
from edgeopt.optimization.choice.selection import Chosen
from edgeopt.optimization.folder.workspace import lock_run
from edgeopt.optimization.options import Options
from edgeopt.optimization.pipelines.choice import StageForm, front_of
from edgeopt.optimization.pipelines.forms import ModelForms, time_ratio, weigh
from edgeopt.optimization.pipelines.judge import Judged, PipelineJudge, read_expected
from edgeopt.optimization.pipelines.observe import observe_original
from edgeopt.optimization.pipelines.optimize import _Joint, _Tried, optimize_pipeline
from edgeopt.optimization.pipelines.prove import JOINT
from edgeopt.optimization.pipelines.result import JointReport
from edgeopt.optimization.report.result import read_report
from edgeopt.optimization.run import Silence
from edgeopt.recipes.inputs.frames import open_frames
from edgeopt.runtime.pipelines import Pipeline
from edgeopt.runtime.pipelines.bundle import read_pipeline, write_pipeline

MS = 1_000_000
CODE = "def find(crops, classes):\n    return sorted(int(one.indices[0]) for one in classes)\n"
FOUND = [boxes((0, 0, 4, 4, 0.9), (4, 4, 8, 8, 0.8))]
LOST = [boxes((0, 0, 4, 4, 0.9), (4, 4, 8, 8, 0.1))]
"""The second box is below the threshold: half of the answer is gone."""


@pytest.fixture
def pictures(tmp_path) -> Path:
    (tmp_path / "pictures").mkdir()
    for i in range(4):
        cv2.imwrite(str(tmp_path / "pictures" / f"{i}.png"), np.full((8, 8, 3), 40 * i, np.uint8))
    return tmp_path / "pictures"


@pytest.fixture
def code(tmp_path) -> Path:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "shop.py").write_text(CODE, "utf-8")
    return tmp_path / "app"


def scripted(folder: Path) -> tuple[ModelForms, ModelForms]:
    """Return forms: a detector that is faster for nothing or loses half of the boxes, a classifier that errs."""
    made = {
        "detect": {
            BASELINE: detector(folder / "d0", FOUND, 6 * MS),
            "fuse": detector(folder / "d1", FOUND, 4 * MS),
            "int8": detector(folder / "d2", LOST, 2 * MS),
        },
        "recognise": {
            BASELINE: classifier(folder / "r0", [1], 3 * MS),
            "int8": classifier(folder / "r1", [2], 1 * MS),
        },
    }
    ratios = {"detect": {BASELINE: 1.0, "fuse": 4 / 6, "int8": 2 / 6}, "recognise": {BASELINE: 1.0, "int8": 1 / 3}}
    detect, recognise = (ModelForms(name, 1, made[name], ratios[name]) for name in made)
    return detect, recognise


def joint(folder: Path, pictures: Path, code: Path, **options: object) -> _Joint:
    models = scripted(folder / "made")
    bundles = {one.stage: one.bundles[BASELINE] for one in models}
    bundle = write_pipeline(folder / "out" / "combinations" / BASELINE, described(), bundles, {}, {})
    calls = {"lookup": __import__("runpy").run_path(str(code / "shop.py"))["find"]}
    target = SimpleNamespace(name="script", budget_ms=40.0)
    given = OpenedPipeline("pipeline.toml", bundle, calls, code, described(), target, "cpu")
    frames = open_frames(pictures)
    with given.open() as pipeline:
        original = observe_original(pipeline, frames, folder / "out" / "inputs", None)
    return _Joint(given, frames, (original, models), folder / "out", Options(**options), Silence(), 0.0)


def test_a_form_is_weighed_by_what_the_whole_loses(tmp_path, pictures, code):
    stale = tmp_path / "out" / "inputs" / "recognise" / "00099.png"
    stale.parent.mkdir(parents=True)
    stale.write_bytes(b"of an earlier run")
    run = joint(tmp_path, pictures, code)
    with run._load(BASELINE) as pipeline:
        judge = PipelineJudge(pipeline, run._pictures, None, None, max_drop=0.01, least_agreement=0.8)
        detect, recognise = weigh(run._models, run._original, pipeline, judge)
    assert [(one.name, round(one.loss, 3)) for one in detect] == [(BASELINE, 0), ("fuse", 0), ("int8", round(1 / 3, 3))]
    assert [(one.name, one.loss) for one in recognise] == [(BASELINE, 0), ("int8", 1)]
    assert [one.frame_ms / detect[0].frame_ms for one in detect] == pytest.approx([1, 4 / 6, 2 / 6])
    assert (run._original.runs["recognise"] == 2).all()
    assert len(list((tmp_path / "out" / "inputs" / "recognise").glob("*.png"))) == 8
    assert not (tmp_path / "out" / "inputs" / "detect").exists()


def test_what_is_chosen_together_is_measured_whole_and_written(tmp_path, pictures, code, brief):
    report = joint(tmp_path, pictures, code, budget_ms=11.5).conclude()
    assert report.measured is not None
    assert report.measured.names == {"detect": "fuse", "recognise": BASELINE}
    assert [one.name for one in report.candidates] == [BASELINE, "joint"]
    assert report.candidates[1].agreement == 1
    is_proven = report.candidates[1].speed.verdict is Change.FASTER
    assert (report.chosen == "joint") == is_proven  # which of the two is the machine's affair
    assert report.chosen_forms["detect"] == ("fuse" if is_proven else BASELINE)
    assert [one.name for one in report.after] == ["load", "detect", "crop", "recognise", "lookup"]
    said = json.loads((tmp_path / "out" / "report.json").read_text("utf-8"))
    assert said["kind"] == "pipeline"
    page = (tmp_path / "out" / "report.md").read_text("utf-8")
    for word in ("detect", "crop", "recognise", "lookup", "fuse", "the whole loses"):
        assert word in page
    assert read_report(tmp_path / "out", JointReport) == report
    shown = CliRunner().invoke(cli, ["report", str(tmp_path / "out")])
    assert shown.exit_code == report.exit_code
    assert "Forms of each model" in shown.output
    made = read_pipeline(tmp_path / "out")
    assert made.expected["forms"] == dict(report.chosen_forms)
    assert made.expected["proof"] is None or made.expected["proof"]["word"] in ("KEPT", "AGREES", "NOT DECIDED")
    assert made.description.budget_ms == 11.5
    with Pipeline.load(tmp_path / "out", stages={"lookup": lambda crops, found: len(found)}) as pipeline:
        assert pipeline.predict(np.zeros((8, 8, 3), np.uint8)).last == 2


def test_models_stay_where_the_budget_is_met_or_nothing_may_be_lost(tmp_path, pictures, code, brief):
    run = joint(tmp_path, pictures, code)
    run._models = tuple(
        ModelForms(one.stage, 1, {n: b for n, b in one.bundles.items() if n != "fuse"}, one.time_ratio)
        for one in run._models
    )
    report = run.conclude()
    assert report.measured is None
    assert report.chosen == BASELINE
    assert len(report.candidates) == 1
    assert report.reason.startswith("the models stay as they came")


class Scripted:
    """Scripted results of judging and measuring combinations, by the names of their forms."""

    def __init__(self, losses: dict[str, float], misses: set[str]) -> None:
        self.losses, self.misses, self.proven = losses, misses, list[str]()

    def judge(self, combination, pipeline, judge):
        agreement = 1 - self.losses.get(str(combination), combination.loss)
        return Judged(agreement, judgement=judge_agreement(agreement, [agreement] * 100, 0.8))

    def prove(self, combination, judged, judge):
        self.proven.append(str(combination))
        verdict = "FAIL" if str(combination) in self.misses else "PASS"
        latency = replace(timed(JOINT, 5.0).latency, verdict=verdict)
        candidates = (timed(BASELINE, 10.0), replace(timed(JOINT, 5.0), latency=latency))
        return _Tried(combination, judged, SimpleNamespace(candidates=candidates, chosen=Chosen(JOINT, "")))


FRONT = front_of(
    2.0,
    [
        [StageForm("detect", BASELINE, 10.0, 0.0), StageForm("detect", "int8", 6.0, 0.05)],
        [StageForm("name", BASELINE, 8.0, 0.0), StageForm("name", "int8", 4.0, 0.08)],
    ],
)


@pytest.mark.parametrize(
    ("losses", "misses", "proven"),
    [
        ({}, set(), ["detect int8, name original"]),
        # expected within the budget, and misses it as a whole: the next one is measured
        ({}, {"detect int8, name original"}, ["detect int8, name original", "detect int8, name int8"]),
        # loses more than expected: what loses less is left, and that is the original
        ({"detect int8, name original": 0.3}, set(), []),
        # together they lose more than both alone
        (
            {"detect int8, name int8": 0.3},
            {"detect int8, name original"},
            ["detect int8, name original"],
        ),
    ],
)
def test_what_fails_as_a_whole_is_followed_by_the_next(tmp_path, pictures, code, losses, misses, proven):
    run, script = joint(tmp_path, pictures, code, budget_ms=17.0), Scripted(losses, misses)
    run._judge, run._prove = script.judge, script.prove
    run._original = replace(run._original, tail_ratio=1.0)
    tried = run._try(FRONT, None, SimpleNamespace(baseline=Judged(1.0)))
    assert [one for one in script.proven if one != "None"] == proven
    assert tried.combination is None or str(tried.combination) in proven
    assert len(run.notes) == bool(losses) + bool(misses)


def timed(name: str, execute_ms: float, low: float = 0.0, high: float = 0.0) -> Candidate:
    stages = {"load": StageTime(9.0, 9.0, None), "execute": StageTime(execute_ms, execute_ms, None)}
    speed = Ratio(10 / execute_ms, low, high, Change.UNCONFIRMED) if low else None
    return Candidate(
        name, "", (), "fp32", "m.onnx", 1, latency=Latency(9, stages["execute"], stages, "PASS", ""), speed=speed
    )


def test_no_gain_is_counted_on_where_none_was_measured():
    original = timed(BASELINE, 10.0)
    assert time_ratio(timed("fuse", 5.0, 1.1, 1.4), original) == 0.5  # pictures that are read are no part of it
    assert time_ratio(timed("fuse", 5.0, 0.9, 1.4), original) == 1.0
    assert time_ratio(original, original) == 1.0


def test_labels_of_answers_judge_the_whole(tmp_path, pictures, code):
    run = joint(tmp_path, pictures, code)
    expected = {f"{i}.png": [1, 1] if i else [1, 2] for i in range(4)}
    (pictures / "answers.json").write_text(json.dumps(expected), "utf-8")
    with run._load(BASELINE) as pipeline:
        judge = PipelineJudge(
            pipeline, run._pictures, pictures / "answers.json", None, max_drop=0.01, least_agreement=0.8
        )
        assert (judge.metric, judge.baseline.accuracy.value) == ("equal", 0.75)
        assert [one.loss for one in weigh(run._models, run._original, pipeline, judge)[0]] == [0, 0, 0.75]


def test_accuracy_that_labels_do_not_decide_is_no_success(tmp_path, pictures, code, brief):
    labels = pictures / "answers.json"
    labels.write_text(json.dumps({f"{i}.png": [1, 1] for i in range(4)}), "utf-8")
    report = joint(tmp_path, pictures, code, eval=str(labels), max_drop=0.3).conclude()
    assert report.accuracy_asked
    report = replace(report, budget_asked=False)  # a busy machine closes the gate of a budget
    assert replace(report, chosen=BASELINE).exit_code == 0, "the original keeps its accuracy"
    together = replace(report, chosen="joint")
    assert (together.best.word, together.exit_code) == ("NOT DECIDED", 3), "four pictures prove nothing"
    assert replace(together, accuracy_asked=False).exit_code == 0


def test_labels_that_are_none_are_one_line(tmp_path, pictures):
    file = pictures / "answers.json"
    for text, problem in (
        ("[]", "holds no answers"),
        ('{"x.png": 1}', "names x.png, which is not there"),
        ("{", "is not JSON"),
    ):
        file.write_text(text, "utf-8")
        with pytest.raises(EdgeoptError, match=problem):
            read_expected(file)


def test_an_answer_that_differs_from_itself_judges_nothing(tmp_path, pictures, code):
    (code / "shop.py").write_text(
        "from itertools import count\nN = count()\ndef find(*_):\n    return next(N)\n", "utf-8"
    )
    run = joint(tmp_path, pictures, code)
    with (
        run._load(BASELINE) as pipeline,
        pytest.raises(EdgeoptError, match=r"stage lookup answers 0.png differently a second time"),
    ):
        PipelineJudge(pipeline, run._pictures, None, None, max_drop=0.01, least_agreement=0.8)


def test_a_model_that_is_fed_nothing_ends_the_run(tmp_path, pictures, code):
    bundles = {
        "detect": detector(tmp_path / "d", [boxes()]),
        "recognise": classifier(tmp_path / "r", [1]),
    }
    made = write_pipeline(tmp_path / "bundle", described(), bundles, {}, {})
    with (
        Pipeline.load(made.folder, stages={"lookup": len}) as pipeline,
        pytest.raises(EdgeoptError, match="stage lookup failed"),
    ):
        observe_original(pipeline, open_frames(pictures), tmp_path / "inputs", None)
    with (
        Pipeline.load(made.folder, stages={"lookup": lambda *_: 0}) as pipeline,
        pytest.raises(EdgeoptError, match="stage recognise is fed nothing in any of the pictures: crop gives nothing"),
    ):
        observe_original(pipeline, open_frames(pictures), tmp_path / "inputs", None)


def test_features_that_a_model_is_fed_become_samples(tmp_path, pictures):
    stages = [{"name": "features", "call": "app:make"}, {"name": "score", "model": "a.onnx"}]
    bundles = {"score": classifier(tmp_path / "r", [1])}
    made = write_pipeline(tmp_path / "bundle", described({"name": "p", "stage": stages}), bundles, {}, {})
    make = {"features": lambda frame: {"x": np.full((1, 3, 8, 8), frame[0, 0, 0], np.float32)}}
    with Pipeline.load(made.folder, stages=make) as pipeline:
        observe_original(pipeline, open_frames(pictures), tmp_path / "inputs", None)
    fed = open_frames(tmp_path / "inputs" / "score")
    assert [float(one["x"][0, 0, 0, 0]) for one in fed] == [0, 40, 80, 120]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "names no pictures"),
        (["--calib", "{pictures}"], "code of an app runs only from a place that you name"),
        (["--calib", "{pictures}", "--prefer", "size"], "a pipeline is chosen by its budget"),
        (["--calib", "{pictures}", "--replay", "x"], "a pipeline has no replay"),
        (["--calib", "{pictures}", "--steps", "default,embed-preprocess"], "embed-preprocess is for a single model"),
        (["--recipe", "yolox"], "--recipe is for a single model of frames"),
        (["--calib", "{pictures}", "--code", "{code}", "-o", "{pictures}"], "holds something else"),
        (["--calib", "{pictures}", "--code", "{code}", "-o", "held"], "another run writes into held"),
        (["--calib", "{pictures}", "--code", "{code}"], "stage detect: no model file or shipped model named"),
    ],
)
def test_wrong_use_is_one_line_before_any_work(tmp_path, pictures, code, monkeypatch, arguments, problem):
    file = tmp_path / "pipeline.toml"
    lines = ['name = "shop"']
    for stage in changed("detect", model="absent.onnx")["stage"]:
        lines += ["[[stage]]", *(f"{key} = {json.dumps(value)}" for key, value in stage.items())]
    file.write_text("\n".join(lines), "utf-8")
    monkeypatch.chdir(tmp_path)
    given = [one.format(pictures=pictures, code=code) for one in arguments]
    with lock_run(tmp_path / "held"):
        shown = CliRunner().invoke(cli, ["optimize", str(file), "--target", "cpu", *given])
    assert shown.exit_code == 1
    assert problem in shown.output
    assert "Traceback" not in shown.output


def test_a_bundle_is_chosen_already(tmp_path, pictures, code):
    run = joint(tmp_path, pictures, code)
    with pytest.raises(EdgeoptError, match="is a bundle: its models were chosen"):
        optimize_pipeline(run._folder / "combinations" / BASELINE)
