"""A model that sees goes through optimize: its decoder as any, its encoder in INT8 where that keeps the answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from seeing_models import picture, write_exported

import edgeopt
from edgeopt.errors import EdgeoptError, NoteKind, UnavailableError, UnsupportedError
from edgeopt.optimization.generation.deploy import deploy_language_model
from edgeopt.optimization.generation.forms.image_encoder import ChosenEncoder, judge_encoder
from edgeopt.optimization.generation.optimize import optimize_language_model
from edgeopt.optimization.generation.options import LanguageOptions
from edgeopt.optimization.generation.summary import summarize_language
from edgeopt.optimization.run import Silence
from edgeopt.runtime.bundle import read_bundle
from edgeopt.runtime.decoding.binding import open_image_reader
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.runtime.decoding.selftest import check_logits
from edgeopt.runtime.devices.availability import find_device
from edgeopt.runtime.selftest import read_stored

TEXT = Path(__file__).parents[3] / "models" / "tiny_lm" / "held_out.txt"
BRIEF = LanguageOptions(
    prompt_tokens=8, output_tokens=4, threads=1, seconds=0.0, processes=2, eval=str(TEXT), time_limit_s=8
)


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    pytest.importorskip("jinja2")
    return write_exported(tmp_path_factory.mktemp("seeing"))


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for seed in range(9):
        cv2.imwrite(str(folder / f"{seed}.png"), picture(seed))
    return folder


@pytest.fixture(scope="module")
def report(file, photos, tmp_path_factory):
    from fixture_brief import briefly

    options = replace(BRIEF, pictures=str(photos))
    out = tmp_path_factory.mktemp("out") / "seeing"
    with briefly():
        return optimize_language_model(str(file), target="cpu", out=out, options=options, listener=Silence())


def test_the_bundle_holds_both_parts_and_answers_to_pictures(report, file):
    bundle = read_bundle(report.folder)
    (encoder,) = bundle.parts
    assert encoder.file == bundle.recipe.image.encoder == "image_encoder.onnx"
    assert report.asks == "--prompt TEXT --image PICTURE"
    (note,) = (note for note in report.notes if note.detail.startswith("the encoder of pictures"))
    is_chosen = note.kind == NoteKind.CHOICE
    assert encoder.precision == ("w8a8" if is_chosen else "fp32")
    assert is_chosen or "stays in float" in note.detail
    assert bool(report.image_encoder) is is_chosen
    with edgeopt.Runtime.load(report.folder) as runtime:
        answer = runtime.generate("What is this?", images=[picture(1)], most_tokens=4)
        assert answer.text()
        assert (answer.account.images, answer.account.encoded_images) == (1, 1)
        with pytest.raises(ValueError, match="a picture is a path"):
            runtime.generate("What is this?", images=[5])


def test_the_verdict_names_an_encoder_in_int8(report):
    told = summarize_language(replace(report, image_encoder="2.10x [2.00, 2.20]")).verdict
    assert "its encoder of pictures is in INT8, 2.10x [2.00, 2.20] as fast in turns" in told.sentence
    assert "INT8" not in summarize_language(replace(report, image_encoder="")).verdict.sentence


def test_tiles_calibrate_and_other_pictures_judge(report):
    place = report.folder / "image-encoder"
    tiles = sorted((place / "tiles").iterdir())
    assert len(tiles) == 30  # of six of nine pictures, five each
    assert cv2.imread(str(tiles[0])).shape == (64, 64, 3)


def changed(file: Path, place: Path, noise: float) -> Path:
    """Write the encoder with other weights."""
    proto = onnx.load(file.parent / "image_encoder.onnx")
    stored = next(one for one in proto.graph.initializer if one.name == "matrix")
    array = numpy_helper.to_array(stored)
    moved = array + noise * np.random.default_rng(0).standard_normal(array.shape).astype(np.float32)
    stored.CopyFrom(numpy_helper.from_array(moved, "matrix"))
    place.mkdir(exist_ok=True)
    onnx.save(proto, place / "other.onnx")
    return place / "other.onnx"


def test_answers_tell_what_an_encoder_loses(file, tmp_path):
    opened, recipe = open_language_model(file, 1)
    frames = [picture(seed) for seed in range(3)]
    with opened:
        same = judge_encoder(opened, recipe, changed(file, tmp_path, 0.0), frames, 8, 1)
        assert (same.rise.value, same.agreement) == (0.0, 1.0)
        other = judge_encoder(opened, recipe, changed(file, tmp_path, 1.0), frames, 8, 1)
        assert other.agreement < 1
        assert other.rise.value > 0


def test_the_chosen_encoder_is_the_one_in_the_bundle(report, file, tmp_path):
    _, recipe = (opened := open_language_model(file, 1))
    opened[0].close()
    chosen = ChosenEncoder(changed(file, tmp_path, 1.0), "w8a8")
    target = find_device("cpu")
    moved = replace(report, folder=tmp_path / "out")
    deploy_language_model(moved, target, recipe, chosen)
    with edgeopt.Runtime.load(tmp_path / "out") as runtime:
        assert runtime.bundle.parts[0].precision == "w8a8"
        reader = runtime.language_model.images
        rows = reader.read(reader.prompt("<image>", [picture(1)])).tokens[3].picture.rows
    with open_language_model(file, 1)[0] as given:
        before = given.images.read(given.seen("<image>", [picture(1)])).tokens[3].picture.rows
    assert rows.shape == before.shape
    assert np.abs(rows - before).max() > 0.1
    (tmp_path / "out" / "bundle" / "image_encoder.onnx").write_bytes(b"other")
    with pytest.raises(EdgeoptError, match=r"image_encoder\.onnx"):
        edgeopt.Runtime.load(tmp_path / "out")


def test_a_bundle_whose_encoder_computes_something_else_does_not_open(report, file, tmp_path):
    bundle = read_bundle(report.folder)
    with edgeopt.Runtime.load(report.folder) as runtime:
        model = runtime.language_model
        assert check_logits(read_stored(bundle), bundle.artefacts[0], model) == ()
        model.images.close()
        other = changed(file, tmp_path, 1.0)
        model.images = open_image_reader(other, bundle.recipe, model.tokenizer, 1)
        with pytest.raises(UnavailableError, match="its numbers are wrong on this device"):
            check_logits(read_stored(bundle), bundle.artefacts[0], model)


def test_it_stays_a_bundle_for_one_target(report, tmp_path):
    with pytest.raises(UnsupportedError, match="a language model that sees, which stays a bundle for one target"):
        edgeopt.combine_bundles([report.folder, report.folder], tmp_path / "both")


def test_what_pictures_are_asked_is_checked_before_anything_is_made(file, tmp_path, photos):
    few = tmp_path / "few"
    few.mkdir()
    with pytest.raises(EdgeoptError, match="holds 0 pictures: 8 calibrate and judge"):
        optimize_language_model(
            str(file), target="cpu", out=tmp_path / "a", options=replace(BRIEF, pictures=str(few)), listener=Silence()
        )
    options = replace(BRIEF, pictures=str(photos))
    with pytest.raises(UnsupportedError, match="--pictures applies to language models that see"):
        optimize_language_model("tiny_lm", target="cpu", out=tmp_path / "b", options=options, listener=Silence())
