"""Embedded parts of the recipe: the models give Python's answers, judged by plain ONNX Runtime."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import onnxruntime as ort
import pytest
from few_labels import write_few
from fixture_brief import briefly
from fixture_bundles import packed

import edgeopt
from edgeopt import Runtime, compare
from edgeopt.errors import EdgeoptError, NoteKind, UnsupportedError
from edgeopt.measurement.accuracy.evaluate import open_labelled
from edgeopt.measurement.accuracy.judgement import Judgement, Word, judge_numbers
from edgeopt.measurement.bench.stored import read_stored
from edgeopt.measurement.opening.given import OpenedModel, open_given
from edgeopt.measurement.statistics.ratio import Change
from edgeopt.optimization.candidate import Candidate
from edgeopt.optimization.deployment.embedding import _why_not
from edgeopt.optimization.options import Options
from edgeopt.optimization.plan import all_steps, make_plan
from edgeopt.optimization.report.result import read_report
from edgeopt.optimization.report.verdict import judge
from edgeopt.optimization.result import ModelReport
from edgeopt.recipes.recipe import Recipe, find_recipe
from edgeopt.runtime.bundle import read_bundle, write_bundle
from edgeopt.runtime.bundles.targets import measured_on, this_machine
from edgeopt.steps.embed_postprocess import embed_postprocess
from edgeopt.steps.embed_preprocess import embed_preprocess
from edgeopt.system.declared.target import find_target
from edgeopt.system.processes.time_limit import limited
from edgeopt.tasks import make_task
from edgeopt.workloads.frames.report import earlier_run, merge_results

DIGITS = Path(__file__).parents[2] / "models" / "digits_detector"
BOTH = ("embed-preprocess", "embed-postprocess")
PICTURES = 24
CASES = {
    "digits_detector": ("digits_detector", None, None, 0.97, 0.01),
    "YOLOX": ("models/yolox_nano_416.onnx", "yolox", "coco/instances_val.json", 0.97, 0.01),
    "SqueezeNet": ("models/squeezenet_224.onnx", "imagenet_caffe", "imagenet/val_labels.csv", 0.99, 0.0),
}
"""Model, recipe, labels; least agreement of the answers, most of the metric that may differ."""


def as_evaluated(recipe: Recipe) -> Recipe:
    """Return a recipe with the thresholds of its evaluation for applications too."""
    low = {name: getattr(recipe.evaluation, name) for name in ("score_threshold", "iou_threshold", "max_detections")}
    return replace(recipe, postprocess=replace(recipe.postprocess, **low))


def opened(case: str, data: Path) -> tuple[OpenedModel, Path]:
    model, recipe, labels, *_ = CASES[case]
    given = open_given(model if recipe is None else str(data / model), "cpu", recipe)
    return given, data / labels if labels else given.recipe.path_of(given.recipe.evaluation.labels)


def skip_without(case: str, request: pytest.FixtureRequest) -> Path:
    return Path() if CASES[case][1] is None else request.getfixturevalue("data")


@pytest.mark.parametrize("case", CASES)
def test_plain_onnx_runtime_gives_the_tasks_answers(case, request):
    given, labels = opened(case, skip_without(case, request))
    recipe, labelled = as_evaluated(given.recipe), open_labelled(labels)
    model = embed_postprocess(embed_preprocess(given.model, recipe), recipe)
    alone = ort.InferenceSession(given.model.data, providers=["CPUExecutionProvider"])
    whole = ort.InferenceSession(model.data, providers=["CPUExecutionProvider"])
    task = make_task(recipe, given.model.inputs, given.model.outputs, evaluating=True)
    reader = make_task(recipe.with_embedded(*_parts()), model.inputs, model.outputs, evaluating=True)
    positions = range(min(PICTURES, len(labelled.frames)))
    expected, found = [], []
    for i in positions:
        frame = labelled.frames.picture(i)
        inputs, geometry = task.preprocess(frame)
        outputs = dict(zip([one.name for one in alone.get_outputs()], alone.run(None, dict(inputs)), strict=True))
        expected.append(task.postprocess(outputs, geometry))
        outputs = dict(zip([one.name for one in whole.get_outputs()], whole.run(None, {"frame": frame}), strict=True))
        found.append(reader.postprocess(outputs, reader.preprocess(frame)[1]))
    least, most = CASES[case][3:]
    assert task.agreement(found, expected) >= least
    kept = labelled.labels.select([*positions])
    assert abs(task.score(expected, kept).value - task.score(found, kept).value) <= most


def _parts():
    steps = all_steps()
    return [steps[name].embeds for name in BOTH]


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Labels of a few pictures of the shipped detector."""
    return write_few(DIGITS / "eval" / "instances.json", 16, tmp_path_factory.mktemp("few") / "labels.json")


@pytest.fixture(scope="module")
def bundles(few: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Bundles of the shipped detector with each part alone and none, and one with both as `optimize` makes it."""
    folder, target = tmp_path_factory.mktemp("embedded"), find_target("cpu-x86-vnni")
    given = open_given("digits_detector", "cpu", None)
    models = {"none": given.model, "pre": embed_preprocess(given.model, given.recipe)}
    models["post"] = embed_postprocess(given.model, given.recipe)
    parts = {"none": (), "pre": _parts()[:1], "post": _parts()[1:]}
    for name, model in models.items():
        recipe = given.recipe.with_embedded(*parts[name])
        write_bundle(folder / name, [packed("model.onnx", "fp32", model.data, target, 1)], target, recipe, {}, {})
    with briefly():
        edgeopt.optimize("digits_detector", out=folder / "both", steps=BOTH, threads=1, eval=few)
    return {name: folder / name for name in (*models, "both")}


@pytest.mark.parametrize("part", ["pre", "post", "both"])
def test_a_runtime_gives_the_same_answers_from_an_embedded_bundle(bundles, part):
    files = sorted((DIGITS / "calib").iterdir())[:12]
    frames = [cv2.resize(cv2.imread(str(one)), (60 + 40 * i, 300 - 20 * i)) for i, one in enumerate(files)]
    with Runtime.load(bundles["none"]) as plain, Runtime.load(bundles[part]) as embedded:
        assert embedded.artefact.file == "model.onnx"
        assert not embedded.notes
        wanted, found = plain.predict_batch(frames), embedded.predict_batch(frames)
        assert plain.task.agreement(found, wanted) >= (0.999 if part == "post" else 0.97)
        if part == "post":
            np.testing.assert_allclose(found[0].boxes, wanted[0].boxes, atol=1e-2)


def test_the_report_and_the_manifest_say_what_is_inside(bundles):
    report = read_report(bundles["both"], ModelReport)
    assert report.inside is not None
    assert report.inside.parts == ("preprocess", "postprocess")
    assert report.inside.agreement > 0.97
    assert report.inside.score is not None
    assert abs(report.inside.score.value - report.candidates[0].score.value) < 0.01
    assert "embedded" in (bundles["both"] / "report.md").read_text("utf-8")
    bundle = read_bundle(bundles["both"])
    assert bundle.recipe.embedded == ("preprocess", "postprocess")
    assert bundle.expected["accuracy"] == report.inside.score.value
    assert report.inside.judgement is not None
    assert bundle.expected["proof"] == report.inside.judgement.proof
    assert bundle.artefacts[0].expected.frame_p50_ms == report.inside.frame_p50_ms
    assert measured_on(bundle.expected) == this_machine()
    assert bundle.expected["original"] == report.model_sha256


def test_beside_other_runs_the_bundles_own_frames_are_judged(bundles):
    report = read_report(bundles["both"], ModelReport)
    run = earlier_run(bundles["both"])
    assert report.latency is not None
    assert report.latency == report.inside.latency != report.best.latency
    assert (run.latency, run.verdict) == (report.latency, report.latency.verdict)
    assert run.samples is None, "those on disk are of the model alone"


def test_what_a_device_measured_of_the_bundle_replaces_what_was_measured_here(bundles, tmp_path):
    out = shutil.copytree(bundles["both"], tmp_path / "out")
    edgeopt.bench(str(out), out=tmp_path / "brought", threads=1, seconds=0.1, min_frames=60)
    report = merge_results(out, [tmp_path / "brought"])
    frame = read_stored(tmp_path / "brought").samples.summary()["frame"]
    assert report.latency == report.best.latency != report.inside.latency
    assert report.latency.frame.p50_ms == frame.p50.value_ms
    assert report.verdict == report.best.latency.verdict
    assert earlier_run(out).latency == report.latency


def test_the_word_that_is_told_is_that_of_what_is_deployed(bundles):
    report = read_report(bundles["both"], ModelReport)
    assert report.inside is not None
    judged = report.inside.judgement
    assert judged is not None
    assert judged.samples == 16, "on the labels, with the parts inside"
    assert report.best.judgement == judged
    assert judged.drop == pytest.approx(report.candidates[0].score.value - report.inside.score.value, abs=1e-9)
    told = judge(report)
    assert next(one.text for one in told.facts if one.label == "accuracy").startswith(f"{judged.word}: ")
    assert f"its accuracy is {judged.word}" in told.sentence or report.best.name == "baseline"
    assert report.reason.endswith(f"deployed with preprocess and postprocess inside, {judged.word}: {judged}")
    assert report.is_accuracy_open, "labels were given, and 16 prove nothing"
    assert report.exit_code == 3


KEPT = Judgement(Word.KEPT, 400, 0.01, drop=0.0, drop_least=0.0, drop_most=0.005)
BY_NUMBERS = judge_numbers(120.0, 0.01)
OPEN = replace(KEPT, word=Word.NOT_DECIDED, drop_most=0.02)
LOST = replace(KEPT, word=Word.LOST, drop=0.05, drop_least=0.02, drop_most=0.08)
AGREES = Judgement(Word.AGREES, 128, 0.9, agreement=0.95, agreement_least=0.93)


@pytest.mark.parametrize(
    ("alone", "inside", "agreement", "asked", "unasked"),
    [
        (KEPT, KEPT, 1.0, True, True),
        (KEPT, OPEN, 1.0, False, False),
        (BY_NUMBERS, OPEN, 1.0, True, False),
        (OPEN, OPEN, 1.0, True, True),
        (None, OPEN, 1.0, True, True),
        (OPEN, LOST, 1.0, False, False),
        (AGREES, AGREES, 0.95, True, True),
        (AGREES, AGREES, 0.85, False, False),
        (AGREES, replace(AGREES, word=Word.NOT_DECIDED, agreement_least=0.8), 0.95, False, False),
        (AGREES, replace(AGREES, word=Word.DIFFERS, agreement=0.8), 0.95, False, False),
    ],
)
def test_parts_are_inside_by_the_rule_of_every_candidate(alone, inside, agreement, asked, unasked):
    one = Candidate("fuse", "baseline", ("fuse",), "fp32", "fuse/model.onnx", 1, judgement=alone)
    may = [not _why_not(one, inside, agreement, is_asked=is_asked) for is_asked in (True, False)]
    assert may == [asked, unasked]


def test_a_manifest_is_enough_for_an_app(bundles):
    manifest = json.loads((bundles["both"] / "bundle" / "manifest.json").read_text("utf-8"))
    first = manifest["artefacts"][0]
    assert first["inputs"] == [{"name": "frame", "dtype": "uint8", "shape": [None, None, 3]}]
    assert [one["name"] for one in first["outputs"]] == ["boxes", "scores", "classes"]
    assert manifest["recipe"]["class_names"] == [str(digit) for digit in range(10)]


def test_a_run_by_default_tries_what_it_can_measure():
    recipe, target = find_recipe("yolox"), find_target("cpu-x86-vnni")
    plan = make_plan(recipe, target, Options(calib="synthetic"), 1)
    assert [*plan.tried_on("onnxruntime")] == [*BOTH]
    assert [*plan.tried_on("litert")] == [*plan.tried_on("ncnn")] == ["embed-normalise"]
    assert not plan.tried_on("executorch")
    left_out = make_plan(recipe, target, Options(calib="synthetic", skip=(BOTH[0], "embed-normalise")), 1)
    assert [*left_out.tried_on("onnxruntime")] == [*BOTH[1:]]
    assert not left_out.tried_on("litert")
    for steps in (("fuse",), ("default", BOTH[0]), ("default", "embed-normalise")):
        assert not make_plan(recipe, target, Options(calib="synthetic", steps=steps), 1).tried
    assert not make_plan(recipe, find_target("nvidia-cuda"), Options(calib="synthetic"), 1).tried_on("onnxruntime")
    assert not make_plan(find_recipe("tensors"), target, Options(calib="synthetic"), 1).tried


def test_what_is_tried_is_kept_where_it_is_faster_and_told_where_it_is_not(few, tmp_path, brief, monkeypatch):
    """Which of the two it is, the machine says."""
    monkeypatch.setattr("edgeopt.optimization.deployment.embedding.TRIAL_SECONDS", 0.2)
    skip = ("fuse", "prune", "quantize", "convert")
    report = edgeopt.optimize("digits_detector", out=tmp_path / "out", skip=skip, threads=1, eval=few)
    left_out = [one for one in report.notes if "inside the model: whole frames" in one.detail]
    inputs = [one.name for one in read_bundle(tmp_path / "out").artefacts[0].inputs]
    if report.inside is None:
        assert len(left_out) == 1
        assert "default,embed-preprocess,embed-postprocess" in str(left_out[0])
        assert inputs != ["frame"]
    else:
        assert not left_out
        assert report.inside.speed.verdict is Change.FASTER
        assert inputs == ["frame"]


def test_a_limit_that_ends_while_parts_are_tried_leaves_a_bundle_without_them(few, tmp_path, brief, monkeypatch):
    """CenterFace's run of 90 s ended here in a traceback, and without a bundle."""
    monkeypatch.setattr("edgeopt.optimization.deployment.embedding.TRIAL_SECONDS", 0.2)
    monkeypatch.setattr("edgeopt.optimization.deployment.embedding.limited", lambda ends_s: limited(0.0))
    skip = ("fuse", "prune", "quantize", "convert")
    report = edgeopt.optimize("digits_detector", out=tmp_path / "out", skip=skip, threads=1, eval=few)
    assert report.inside is None
    assert any(one.detail.endswith("not tried inside the model: no time") for one in report.notes)
    assert read_bundle(tmp_path / "out").artefacts


def test_a_replay_embeds_what_the_earlier_run_kept(bundles, few, tmp_path, brief):
    skip, source = ("fuse", "prune", "quantize", "convert"), str(bundles["both"])
    again = edgeopt.optimize("digits_detector", out=tmp_path / "o", skip=skip, threads=1, eval=few, replay=source)
    assert again.inside is not None
    assert again.inside.parts == ("preprocess", "postprocess")
    assert [one.name for one in read_bundle(tmp_path / "o").artefacts[0].inputs] == ["frame"]


def test_the_steps_are_off_and_the_word_default_adds_to_the_others():
    recipe, target = find_recipe("yolox"), find_target("cpu-x86-vnni")
    plain = make_plan(recipe, target, Options(calib="synthetic"), 1)
    assert not {*BOTH} & plain.steps.keys()
    asked = make_plan(recipe, target, Options(calib="synthetic", steps=("default", *BOTH)), 1)
    assert asked.steps.keys() == {*plain.steps, *BOTH}
    left = make_plan(recipe, target, Options(calib="synthetic", steps=("default", *BOTH), skip=BOTH), 1)
    assert left.steps.keys() == plain.steps.keys()


@pytest.mark.parametrize("target", ["qualcomm-htp-v73", "nvidia-cuda"])
def test_a_target_of_fixed_shapes_or_another_device_says_why_not(target):
    plan = make_plan(find_recipe("yolox"), find_target(target), Options(calib="synthetic", steps=("fuse", *BOTH)), 1)
    assert not {*BOTH} & plan.steps.keys()
    told = [one.detail for one in plan.notes if one.kind is NoteKind.SKIPPED]
    assert sum("embed" in one for one in told) == 2


def test_an_answer_that_cannot_be_embedded_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(UnsupportedError, match=r"embed-postprocess: .*the outputs are the answer already"):
        edgeopt.optimize("digits_detector", out=tmp_path / "out", recipe="tensors", steps=("fuse", BOTH[1]), threads=1)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("step", ["embed-preprocess", "embed-normalise"])
def test_texts_sounds_and_tensors_have_no_picture_to_embed(step):
    target, options = find_target("cpu-x86-vnni"), Options(calib="synthetic", steps=("fuse", step))
    tensors = find_recipe("tensors")
    kinds = {
        "texts": replace(tensors, tokenizer=replace(tensors.tokenizer, file="vocab.txt")),
        "sounds": replace(tensors, audio=replace(tensors.audio, rate_hz=16000)),
        "tensors": tensors,
    }
    for kind, recipe in kinds.items():
        with pytest.raises(UnsupportedError, match=f"{step}: .*takes {kind}, no pictures"):
            make_plan(recipe, target, options, 1)


def test_a_model_is_fed_in_one_way():
    options = Options(calib="synthetic", steps=("fuse", "embed-preprocess", "embed-normalise"))
    with pytest.raises(EdgeoptError, match="embed-normalise and embed-preprocess both change what the model is fed"):
        make_plan(find_recipe("yolox"), find_target("cpu-x86-vnni"), options, 1)


def test_fixed_sizes_are_taken_by_engines_that_take_no_free_ones():
    options = Options(calib="synthetic", steps=("fuse", "embed-normalise"))
    for target in ("android-nnapi", "nvidia-cuda", "openvino-cpu"):
        assert "embed-normalise" in make_plan(find_recipe("yolox"), find_target(target), options, 1).steps
    plan = make_plan(find_recipe("yolox"), find_target("qualcomm-htp-v73"), options, 1)
    assert "embed-normalise" not in plan.steps
    assert any("compiled before anything is embedded" in one.detail for one in plan.notes)


def test_a_bundle_of_resized_pictures_gives_the_same_answers(bundles, few, tmp_path):
    with briefly():
        steps = ("embed-normalise", "embed-postprocess")
        report = edgeopt.optimize("digits_detector", out=tmp_path / "out", steps=steps, threads=1, eval=few)
    assert report.inside is not None
    assert report.inside.parts == ("normalise", "postprocess")
    height, width = open_given("digits_detector", "cpu", None).recipe.input.size
    manifest = json.loads((tmp_path / "out" / "bundle" / "manifest.json").read_text("utf-8"))
    assert manifest["artefacts"][0]["inputs"] == [{"name": "picture", "dtype": "uint8", "shape": [height, width, 3]}]
    files = sorted((DIGITS / "calib").iterdir())[:8]
    frames = [cv2.resize(cv2.imread(str(one)), (60 + 40 * i, 300 - 20 * i)) for i, one in enumerate(files)]
    with Runtime.load(bundles["none"]) as plain, Runtime.load(tmp_path / "out") as embedded:
        assert not embedded.notes
        assert plain.task.agreement(embedded.predict_batch(frames), plain.predict_batch(frames)) >= 0.999


def test_compare_says_that_a_threshold_inside_lowers_ap(bundles, few):
    found = compare(bundles["none"], bundles["both"], eval=few, seconds=0.5)
    assert any("drops boxes below 0.3" in str(note) for note in found.notes)
