"""A frame goes through all stages, each timed by its name; a stage that fails is named."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from fixture_bundles import reseal
from fixture_pipelines import ScriptedClock, boxes, changed, classifier, described, detector, opened, shop

from edgeopt.errors import EdgeoptError, InvalidFileError
from edgeopt.runtime.pipelines import Pipeline
from edgeopt.runtime.pipelines import bundle as pipeline_bundle
from edgeopt.runtime.pipelines.bundle import FILE, read_pipeline, write_pipeline
from edgeopt.runtime.runtime import Runtime

FRAME = np.zeros((8, 8, 3), np.uint8)
MS = 1_000_000


def find(crops, classes):
    return [int(one.indices[0]) for one in classes]


def test_every_stage_is_answered_timed_and_counted(tmp_path, monkeypatch):
    clock = ScriptedClock()

    def slow(crops, classes):
        clock.advance(21 * MS)
        return find(crops, classes)

    with opened(shop(tmp_path, times_ns=(4 * MS, 3 * MS)), {"lookup": slow}, clock, monkeypatch) as pipeline:
        answer = pipeline.predict(FRAME)
        times = {name: took / MS for name, took in zip(pipeline.stages, answer.times_ns, strict=True) if took}
        assert times == {"detect.execute": 4, "recognise.execute": 6, "lookup": 21}
        assert answer.runs == {"detect": 1, "recognise": 2}
        assert list(answer.stages) == ["detect", "crop", "recognise", "lookup"]
        assert sorted(answer.last) == [1, 2]
        found = pipeline.stats()
        assert found.frame.p50_ms == sum(times.values()) == 31
        assert found.stages["lookup"].p50_ms == 21
        assert (found.fed, found.served, found.missed) == (1, 1, 0)
        clock.advance(1)
        pipeline._calls["lookup"] = lambda crops, classes: clock.advance(40 * MS)
        pipeline.predict(FRAME)
        assert pipeline.stats().missed == 1


def test_a_frame_without_boxes_runs_the_models_behind_not_at_all(tmp_path, monkeypatch):
    bundle = shop(tmp_path, [boxes(), boxes((0, 0, 4, 4, 0.9))], times_ns=(MS, MS))
    given = []
    with opened(bundle, {"lookup": lambda *found: given.append(found)}, ScriptedClock(), monkeypatch) as pipeline:
        answers = [pipeline.predict(FRAME), pipeline.predict(FRAME)]
        empty = next(one for one in answers if not one.runs["recognise"])
        assert empty.stages["recognise"] == []
        assert len(empty.stages["crop"]) == 0
        assert dict(zip(pipeline.stages, empty.times_ns, strict=True))["recognise.execute"] == -1
        assert pipeline.stats().stages["recognise.execute"].frames == 1
        assert len(given) == 2


def test_more_boxes_than_the_most_are_counted(tmp_path, monkeypatch):
    many = boxes(*((0, 0, 4, 4, 0.9 - 0.1 * i) for i in range(5)))
    with opened(shop(tmp_path, [many]), {"lookup": find}, ScriptedClock(), monkeypatch) as pipeline:
        answer = pipeline.predict(FRAME)
        assert (answer.runs["recognise"], answer.stages["crop"].left_out) == (3, 2)


def test_a_stage_that_fails_is_named_and_the_next_frame_runs(tmp_path):
    turns = iter([ZeroDivisionError("division by zero"), EdgeoptError("no base", remedy="start it"), None])

    def lookup(crops, classes):
        if error := next(turns):
            raise error
        return "found"

    with Pipeline.load(shop(tmp_path).folder, stages={"lookup": lookup}) as pipeline:
        with pytest.raises(EdgeoptError, match="stage lookup failed: ZeroDivisionError: division by zero") as caught:
            pipeline.predict(FRAME)
        assert caught.value.remedy == "mend shop:find"
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        with pytest.raises(EdgeoptError, match="stage lookup: no base\n  -> start it"):
            pipeline.predict(FRAME)
        assert pipeline.predict(FRAME).last == "found"
        found = pipeline.stats()
        assert (found.fed, found.served, found.failed) == (3, 1, 2)
        with pytest.raises(ValueError, match="a frame is an array"):
            pipeline.predict(None)
        with pytest.raises(EdgeoptError, match="stage detect failed: ValueError: a frame is"):
            pipeline.predict(np.zeros((8, 8, 4), np.uint8))


def test_threads_share_one_pipeline(tmp_path):
    with (
        Pipeline.load(shop(tmp_path).folder, stages={"lookup": lambda crops, _: len(crops)}) as pipeline,
        ThreadPoolExecutor(4) as pool,
    ):
        assert set(pool.map(lambda _: pipeline.predict(FRAME).last, range(40))) == {2}
        assert pipeline.stats().served == 40


@pytest.mark.parametrize(
    ("given", "problem", "remedy"),
    [
        ({}, "stage lookup of pipeline shop calls shop:find, a function of your app", "stages={'lookup': find}"),
        ({"lookup": 3}, "stage lookup calls shop:find, and int is no function", "pass the function itself"),
        ({"lokup": find}, "no stage that calls the app named 'lokup'", "did you mean 'lookup'?"),
        ({"lookup": find, "detect": find}, "no stage that calls the app named 'detect'", "choose from: lookup"),
    ],
)
def test_functions_are_given_by_the_name_of_their_stage(tmp_path, given, problem, remedy):
    with pytest.raises(EdgeoptError) as caught:
        Pipeline.load(shop(tmp_path).folder, stages=given)
    assert problem in caught.value.problem
    assert remedy in caught.value.remedy


def test_a_crop_of_a_model_without_boxes_is_refused_before_the_first_frame(tmp_path):
    bundles = {name: classifier(tmp_path / name, [1]) for name in ("detect", "recognise")}
    made = write_pipeline(tmp_path / "bundle", described(), bundles, {}, {})
    with pytest.raises(InvalidFileError, match="crops detect, which gives no boxes: its task is classification"):
        Pipeline.load(made.folder, stages={"lookup": find})


def test_a_call_may_give_what_a_model_or_a_crop_takes(tmp_path):
    values = changed("crop", crop="track")
    values["stage"].insert(1, {"name": "track", "call": "app:track"})
    bundles = {
        "detect": detector(tmp_path / "d", [boxes((0, 0, 4, 4, 0.9))]),
        "recognise": classifier(tmp_path / "c", [1]),
    }
    made = write_pipeline(tmp_path / "bundle", described(values), bundles, {}, {})
    with Pipeline.load(made.folder, stages={"lookup": find, "track": lambda found: found}) as pipeline:
        assert pipeline.predict(FRAME).last == [1]
    with (
        Pipeline.load(made.folder, stages={"lookup": find, "track": lambda found: None}) as pipeline,
        pytest.raises(EdgeoptError, match="stage crop: stage track gives no boxes: NoneType"),
    ):
        pipeline.predict(FRAME)


def test_a_detector_on_crops_is_cropped_in_the_frame(tmp_path):
    stages = [
        {"name": "cars", "model": "a.onnx"},
        {"name": "car", "crop": "cars"},
        {"name": "plates", "model": "b.onnx"},
        {"name": "plate", "crop": "plates"},
        {"name": "read", "model": "c.onnx"},
    ]
    bundles = {
        "cars": detector(tmp_path / "a", [boxes((0, 0, 4, 4, 0.9), (4, 4, 8, 8, 0.8))]),
        "plates": detector(tmp_path / "b", [boxes((2, 2, 6, 6, 0.9))]),  # in a crop of 4 by 4 scaled to 8 by 8
        "read": classifier(tmp_path / "c", [3]),
    }
    made = write_pipeline(tmp_path / "bundle", described({"name": "p", "stage": stages}), bundles, {}, {})
    with Pipeline.load(made.folder) as pipeline:
        answer = pipeline.predict(FRAME)
        assert answer.runs == {"cars": 1, "plates": 2, "read": 2}
        assert answer.stages["plate"].boxes.tolist() == [[1, 1, 3, 3], [5, 5, 7, 7]]
        assert answer.stages["plate"].parents.tolist() == [0, 1]
        assert [int(one.indices[0]) for one in answer.last] == [3, 3]


@pytest.mark.parametrize(
    ("made_of", "runs"),
    [
        (lambda frame: frame[:4], 1),
        (lambda frame: [frame, frame[:4], frame], 3),
        (lambda frame: {"x": np.zeros((1, 3, 8, 8), np.float32)}, 1),
        (lambda frame: (), 0),
    ],
)
def test_features_of_the_app_go_into_a_model(tmp_path, made_of, runs):
    stages = [{"name": "features", "call": "app:make"}, {"name": "score", "model": "a.onnx"}]
    bundles = {"score": classifier(tmp_path / "a", [3])}
    made = write_pipeline(tmp_path / "bundle", described({"name": "p", "stage": stages}), bundles, {}, {})
    with Pipeline.load(made.folder, stages={"features": made_of}) as pipeline:
        answer = pipeline.predict(FRAME)
        assert answer.runs["score"] == runs
        assert isinstance(answer.last, list) == (runs != 1)
    with (
        Pipeline.load(made.folder, stages={"features": lambda frame: "a text"}) as pipeline,
        pytest.raises(EdgeoptError, match="stage score failed: ValueError: a frame is an array"),
    ):
        pipeline.predict(FRAME)


def test_a_bundle_holds_names_of_functions_and_never_code_or_paths(tmp_path):
    bundle = shop(tmp_path)
    said = json.loads((bundle.folder / FILE).read_text("utf-8"))
    assert [one["model"] for one in said["pipeline"]["stage"]] == ["detect", "", "recognise", ""]
    assert said["pipeline"]["stage"][3]["call"] == "shop:find"
    assert {one.name for one in bundle.folder.rglob("*") if one.is_file()} == {FILE, "manifest.json", "model.onnx"}
    for folder in (tmp_path, bundle.folder):
        with pytest.raises(InvalidFileError, match="is the bundle of a pipeline, not of one model"):
            Runtime.load(folder)
    again = read_pipeline(tmp_path)  # the folder that holds it will do
    assert [one.takes for one in again.description.stages] == [one.takes for one in described().stages]


def spoil_manifest(folder, monkeypatch):
    text = (folder / FILE).read_text("utf-8")
    (folder / FILE).write_text(text.replace("shop:find", "shop:take"), "utf-8")


def swap_models(folder, monkeypatch):
    shutil.copytree(folder / "recognise", folder / "detect", dirs_exist_ok=True)


def spoil_weights(folder, monkeypatch):
    file = folder / "detect" / "model.onnx"
    file.write_bytes(file.read_bytes()[:-1] + b" ")


def lead_out(folder, monkeypatch):
    shutil.move(folder / "detect", folder.parent / "elsewhere")
    (folder / "detect").symlink_to(folder.parent / "elsewhere")


def name_another_stage(folder, monkeypatch):
    monkeypatch.setattr("fixture_bundles.MANIFEST", FILE)
    monkeypatch.setattr("fixture_bundles.bundle", pipeline_bundle)
    reseal(folder, lambda said: said["models"].update(other=said["models"].pop("detect")))


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (spoil_manifest, "differs from its own hash"),
        (swap_models, "differs from its hash in pipeline.json"),
        (spoil_weights, "stage detect: .*differs from its hash"),
        (lead_out, "is a link out of the bundle"),
        (name_another_stage, "has models recognise, other, its stages others"),
        (lambda folder, _: shutil.rmtree(folder), "is no bundle of a pipeline"),
    ],
)
def test_a_changed_bundle_is_refused(tmp_path, monkeypatch, spoil, problem):
    folder = shop(tmp_path).folder
    spoil(folder, monkeypatch)
    with pytest.raises(EdgeoptError, match=problem):
        Pipeline.load(folder, stages={"lookup": find})


@pytest.mark.parametrize("place", ["plugin.so", "detect/plugin.so", "other/manifest.json", "detect/engines/a.engine"])
def test_a_file_that_no_manifest_names_is_refused(tmp_path, place):
    folder = shop(tmp_path).folder
    assert read_pipeline(folder).description.models
    (folder / place).parent.mkdir(parents=True, exist_ok=True)
    (folder / place).write_bytes(b"code")
    with pytest.raises(InvalidFileError, match=r"in the bundle .* is not named in its pipeline\.json"):
        read_pipeline(folder)


def test_a_pipeline_written_over_another_leaves_none_of_its_models(tmp_path):
    bundles = {"detect": detector(tmp_path / "made", [boxes()])}
    for name in ("before", "detect"):
        values = {"name": "p", "stage": [{"name": name, "model": "x"}]}
        write_pipeline(tmp_path / "bundle", described(values), {name: bundles["detect"]}, {}, {})
        read_pipeline(tmp_path / "bundle")
    assert {one.name for one in (tmp_path / "bundle").iterdir()} == {FILE, "detect"}
