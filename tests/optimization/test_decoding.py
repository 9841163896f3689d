"""The step `decode`: tried where frames begin at large JPEG files, kept where it is faster, judged and told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from click.testing import CliRunner

import edgeopt
from edgeopt import Runtime
from edgeopt.cli import cli
from edgeopt.errors import EdgeoptError, InvalidFileError, NoteKind, UnsupportedError
from edgeopt.graph.tensors import ReducedPicture
from edgeopt.measurement.statistics.ratio import Change, Ratio
from edgeopt.optimization.options import Options
from edgeopt.optimization.plan import make_plan
from edgeopt.optimization.report.result import read_report
from edgeopt.optimization.report.verdict import judge
from edgeopt.optimization.result import ModelReport
from edgeopt.recipes.inputs import pictures
from edgeopt.recipes.inputs.preprocess import Decode
from edgeopt.recipes.recipe import find_recipe
from edgeopt.runtime.bundle import read_bundle
from edgeopt.steps.decode import reduce_decoding
from edgeopt.system.declared.target import find_target

DIGITS = Path(__file__).parents[2] / "models" / "digits_detector"
SKIP = ("fuse", "prune", "quantize", "convert", "embed-preprocess", "embed-postprocess")
LARGER = 4


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Labels of a few scenes, four times as large a side, beside the pictures as JPEG files."""
    folder, whole = tmp_path_factory.mktemp("large"), json.loads((DIGITS / "eval" / "instances.json").read_text())
    kept = whole["images"][:16]
    (folder / "images").mkdir()
    for image in kept:
        frame = cv2.imread(str(DIGITS / "eval" / "images" / image["file_name"]))
        frame = cv2.resize(frame, None, fx=LARGER, fy=LARGER, interpolation=cv2.INTER_CUBIC)
        cv2.imwrite(str(folder / "images" / image["file_name"]), frame, [cv2.IMWRITE_JPEG_QUALITY, 95])
        image["height"], image["width"] = frame.shape[:2]
    ids = {image["id"] for image in kept}
    boxes = [box for box in whole["annotations"] if box["image_id"] in ids]
    for box in boxes:
        box["bbox"], box["area"] = [LARGER * side for side in box["bbox"]], LARGER**2 * box["area"]
    (folder / "labels.json").write_text(json.dumps({**whole, "images": kept, "annotations": boxes}))
    return folder


def optimized(large: Path, out: Path, **wishes):
    wished = {"threads": 1, "skip": SKIP, "eval": str(large / "labels.json"), "calib": str(large / "images"), **wishes}
    return edgeopt.optimize("digits_detector", out=out, **wished)


@pytest.fixture(scope="module")
def asked(large, tmp_path_factory):
    from fixture_brief import briefly

    with briefly():
        return optimized(large, tmp_path_factory.mktemp("asked") / "out", steps=("simplify", "decode"), skip=())


def test_what_was_asked_for_is_in_the_bundle_and_judged(asked, large):
    report, bundle = asked, read_bundle(asked.folder)
    assert report.inside is None
    assert report.reduced is not None
    assert report.reduced.parts == ("decode",)
    assert report.reduced.agreement > 0.9
    assert bundle.recipe.preprocess.decode is Decode.REDUCED
    assert bundle.expected["accuracy"] == report.reduced.score.value
    assert bundle.expected["proof"] == report.reduced.judgement.proof
    assert not report.is_as_given
    assert read_report(report.folder, ModelReport).reduced == report.reduced
    facts = {value.label: value.text for value in judge(report).facts}
    assert "gain nothing" in facts["decoding"]
    assert "JPEG files decoded at a part of their size" in report.reason


def test_the_budget_is_judged_by_frames_as_the_bundle_decodes_them(asked):
    latency = asked.reduced.latency
    assert latency is not None
    assert asked.latency is latency
    assert asked.verdict in (latency.verdict, asked.noise)
    assert latency.frame.p50_ms == asked.reduced.frame_p50_ms == read_bundle(asked.folder).expected["frame_p50_ms"]
    budget = next(value for value in judge(asked).facts if value.label == "budget")
    assert budget.text.endswith(f"{latency.detail}, with JPEG files decoded as the bundle does")
    failed = replace(asked, reduced=replace(asked.reduced, latency=replace(latency, verdict="FAIL", detail="late")))
    assert (failed.verdict, failed.best.latency) == ("FAIL", asked.best.latency)
    assert "late" in failed.verdict_line
    older = replace(asked, reduced=replace(asked.reduced, latency=None))
    assert older.latency is asked.best.latency
    assert older.timed_otherwise == "with pictures decoded whole"


@pytest.mark.parametrize(
    "command",
    [
        "bench BUNDLE --source IMAGES --seconds 0.2 --threads 1",
        "compare BUNDLE BUNDLE --source IMAGES --seconds 0.2 --threads 1",
        "check BUNDLE --baseline BASELINE --update --source IMAGES --seconds 0.2 --threads 1",
        "run BUNDLE IMAGES",
    ],
)
def test_every_command_decodes_files_as_the_bundle_says(asked, large, tmp_path, monkeypatch, command):
    factors, decode = list[int](), pictures.decode_sample

    def seen(*arguments, **more):
        sample = decode(*arguments, **more)
        factors.append(sample.factor if isinstance(sample, ReducedPicture) else 1)
        return sample

    monkeypatch.setattr(pictures, "decode_sample", seen)
    places = {"BUNDLE": str(asked.folder / "bundle"), "IMAGES": str(large / "images")}
    places["BASELINE"] = str(tmp_path / "baseline.json")
    shown = CliRunner().invoke(cli, [places.get(word, word) for word in command.split()])
    assert not shown.exception or isinstance(shown.exception, SystemExit), shown.output
    assert shown.exit_code in (0, 2, 3, 4), shown.output
    assert len(factors) >= 16
    assert set(factors) == {LARGER}


def test_answers_are_in_pixels_of_the_whole_picture(asked, large):
    whole = replace(read_bundle(asked.folder).recipe, preprocess=find_recipe("digits_detector").preprocess)
    with Runtime.load(asked.folder) as runtime:
        assert runtime.bundle.recipe != whole
        for file in sorted((large / "images").iterdir())[:6]:
            sample, frame = runtime.read_picture(file), cv2.imread(str(file))
            assert isinstance(sample, ReducedPicture)
            assert sample.factor == LARGER
            assert (sample.height, sample.width) == frame.shape[:2]
            reduced, usual = runtime.predict(sample), runtime.predict(frame)
            assert runtime.task.agreement([reduced], [usual]) > 0.8
            assert reduced.boxes[:, 2].max() > frame.shape[1] / LARGER
            assert runtime.draw(sample, reduced).shape == frame.shape
            assert runtime.read_picture(file.read_bytes()).pixels.tobytes() == sample.pixels.tobytes()
        for wrong in (b"no picture", large / "labels.json"):
            with pytest.raises(InvalidFileError):
                runtime.read_picture(wrong)
        png = bytes(cv2.imencode(".png", frame)[1])
        np.testing.assert_array_equal(runtime.read_picture(png), frame)


def test_a_stream_and_run_decode_so_and_show_whole_frames(asked, large):
    with Runtime.load(asked.folder) as runtime, edgeopt.Stream(runtime, str(large / "images"), budget_ms=1e4) as stream:
        results = [*stream]
        expected = [runtime.predict(runtime.read_picture(file)) for file in sorted((large / "images").iterdir())]
    assert len(results) == 16
    for result, answer in zip(results, expected, strict=True):
        assert isinstance(result.frame, np.ndarray)
        assert max(result.frame.shape) > 600
        np.testing.assert_array_equal(result.answer.boxes, answer.boxes)
    compared = edgeopt.compare(str(asked.folder), str(asked.folder), source=large / "images", seconds=0.5, threads=1)
    assert compared


def test_it_is_tried_and_kept_where_it_is_faster(large, tmp_path, brief, monkeypatch):
    """Which of the two it is, the machine says; of pictures of sixteen times the pixels most of a frame is decoding."""
    monkeypatch.setattr("edgeopt.optimization.deployment.embedding.TRIAL_SECONDS", 0.3)
    report = optimized(large, tmp_path / "out")
    told = [note for note in report.notes if "JPEG files decoded at a part" in note.detail]
    if report.reduced is None:
        assert told
        assert "default,decode" in str(told[0]) or "not tried" in told[0].detail
    else:
        assert report.reduced.speed.verdict is Change.FASTER
        assert report.reduced.total is None or report.best.name != "baseline"
        assert any("100% of the pictures" in note.detail for note in report.notes)
    again = optimized(large, tmp_path / "again", replay=str(report.folder))
    assert (again.reduced is None) == (report.reduced is None)


def test_small_pictures_and_arrays_are_not_tried(tmp_path, brief, monkeypatch):
    monkeypatch.setattr("edgeopt.optimization.deployment.embedding.TRIAL_SECONDS", 0.3)
    report = edgeopt.optimize("digits_detector", out=tmp_path / "out", skip=SKIP, threads=1)
    assert report.reduced is None
    assert not [note for note in report.notes if "JPEG" in note.detail]
    steps = ("simplify", "decode")
    told = edgeopt.optimize("digits_detector", out=tmp_path / "asked", steps=steps, threads=1)
    assert told.reduced is None
    assert [note.kind for note in told.notes if "holds no JPEG" in note.detail] == [NoteKind.WARNING]
    assert read_bundle(told.folder).recipe.preprocess.decode is Decode.FULL


def test_the_sentence_tells_both_speeds(asked):
    def ratio(speedup: float) -> Ratio:
        return Ratio(speedup, speedup - 0.01, speedup + 0.01, Change.FASTER, processes=5)

    best = replace(asked.candidates[-1], speed=ratio(2.0))
    candidates = (*asked.candidates[:-1], best)
    reduced = replace(asked.reduced, speed=ratio(1.1), total=ratio(2.2))
    report = replace(asked, candidates=candidates, chosen=best.name, reduced=reduced)
    sentence = judge(report).sentence
    assert "2.20x [2.19, 2.21] as fast as the original on JPEG files (2.00x" in sentence
    assert "decoded whole" in sentence


def test_the_plan_names_it_and_refuses_what_contradicts():
    recipe, target = find_recipe("yolox").with_size(416, 416), find_target("cpu-x86-vnni")
    assert "decode" in make_plan(recipe, target, Options(calib="synthetic"), 1).tried
    assert "decode" not in make_plan(recipe, target, Options(calib="synthetic", skip=("decode",)), 1).tried
    assert "decode" not in make_plan(recipe, target, Options(calib="synthetic", steps=("fuse",)), 1).tried
    assert "decode" in make_plan(recipe, target, Options(calib="synthetic", steps=("fuse", "decode")), 1).steps
    with pytest.raises(EdgeoptError, match="whole frames"):
        make_plan(recipe, target, Options(calib="synthetic", steps=("decode", "embed-preprocess")), 1)
    said = reduce_decoding(recipe)
    with pytest.raises(UnsupportedError, match="says so already"):
        make_plan(said, target, Options(calib="synthetic", steps=("decode",)), 1)
    with pytest.raises(UnsupportedError, match="decoded smaller"):
        make_plan(said, target, Options(calib="synthetic", steps=("embed-preprocess",)), 1)
    assert "decode" not in make_plan(said, target, Options(calib="synthetic"), 1).tried
    with pytest.raises(UnsupportedError, match="takes arrays"):
        make_plan(find_recipe("tensors"), target, Options(calib="synthetic", steps=("decode",)), 1)
