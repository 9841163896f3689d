"""Segmentation: scored on masks, told, drawn; a right INT8 form keeps its score and a broken one does not."""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from click.testing import CliRunner
from painted import CLASSES, paint, painted, segmenter
from pycocotools import mask as coco_masks

from edgeopt import compare, optimize
from edgeopt.cli import cli
from edgeopt.errors import InvalidFileError, UnsupportedError
from edgeopt.graph.model import save_model
from edgeopt.graph.tensors import TensorSpec
from edgeopt.measurement.accuracy.evaluate import open_labelled, why_no_proof
from edgeopt.measurement.accuracy.judgement import is_within
from edgeopt.recipes.inputs.preprocess import Anchor, Input, Preprocess, Resize
from edgeopt.recipes.labels.masks import MaskLabels, read_mask
from edgeopt.recipes.recipe import Evaluation, Postprocess, Recipe, Scores
from edgeopt.recipes.scoring.run_lengths import run_lengths
from edgeopt.tasks import make_task
from edgeopt.tasks.segmentation import Segments

RECIPE = """
name = "shapes"
task = "segmentation"
description = "discs and squares"
license = "ours"
source = "ours"
labels = "classes.txt"
[preprocess]
scale = 0.00392156862745098
resize = "letterbox"
[postprocess]
decoder = "argmax"
background = true
[evaluation]
metric = "mIoU"
"""
BOUND = Recipe("shapes", "segmentation", "", "", "", Postprocess("argmax"), Evaluation("mIoU"), Input("x", (64, 64)))


def task(recipe: Recipe = BOUND, shape=(1, 3, 32, 32), dtype: str = "float32"):
    specs = [TensorSpec("x", "float32", (1, 3, *recipe.input.size))], [TensorSpec("y", dtype, shape)]
    return make_task(recipe, *specs, evaluating=True)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shapes")
    paint(folder, 16)
    (folder / "calib").mkdir()
    for i in range(100, 112):
        cv2.imwrite(str(folder / "calib" / f"{i}.png"), painted(i)[0])
    (folder / "recipe.toml").write_text(RECIPE)
    (folder / "classes.txt").write_text("\n".join(CLASSES))
    save_model(segmenter(), folder / "shapes.onnx")
    return folder


def test_int8_is_judged_by_the_overlap_with_the_masks(brief: None, place: Path) -> None:
    given = {"eval": place / "masks", "calib": place / "calib"}
    report = optimize(place / "shapes.onnx", out=place / "out", **given, threads=1, time_limit_s=30)
    first, *others = report.candidates
    assert first.score.metric == "mIoU"
    assert first.score.value > 0.85
    int8 = [one for one in others if one.name.startswith("quantize")]
    assert int8
    assert max(one.agreement for one in int8) > 0.9
    assert all(one.score.value > first.score.value - 0.01 for one in int8 if one.word == "KEPT")
    command = ["run", str(report.folder), str(place / "images"), "--limit", "1"]
    told = CliRunner().invoke(cli, command)
    assert told.exit_code == 0, told.output
    assert "00.jpg: disc " in told.stdout or "00.jpg: square " in told.stdout
    shown = json.loads(CliRunner().invoke(cli, [*command, "--json"]).stdout)
    assert {one["class"] for one in shown["segments"]} == {"disc", "square"}
    assert CliRunner().invoke(cli, [*command, "--save", str(place / "drawn")]).exit_code == 0
    assert cv2.imread(str(place / "drawn" / "00.png")) is not None


@pytest.mark.parametrize("broken", [{"gain": 0.05}, {"halved": True}], ids=["a scale too small", "half of a layer"])
def test_a_broken_form_loses_more_than_is_allowed(place: Path, broken) -> None:
    save_model(segmenter(**broken), place / "broken.onnx")
    save_model(segmenter(gain=1.001), place / "right.onnx")
    names = [str(place / one) for one in ("shapes.onnx", "right.onnx", "broken.onnx")]
    found = compare(*names, eval=place / "masks", seconds=0.2, threads=1)
    _, right, wrong = (row.quality.loss for row in found.rows)
    kept = [is_within(one.value, BOUND.evaluation.max_drop) for one in (right, wrong)]
    assert kept == [True, False]
    assert wrong.value > 0.1


@pytest.mark.parametrize("resize", [Resize.STRETCH, Resize.LETTERBOX])
@pytest.mark.parametrize("stride", [1, 4])
def test_a_map_at_any_stride_comes_back_to_its_place_in_the_frame(resize: Resize, stride: int) -> None:
    recipe = replace(BOUND, preprocess=Preprocess(resize=resize, anchor=Anchor.CENTRE))
    made = task(recipe, (1, 3, 64 // stride, 64 // stride))
    _, mask = painted(3, 120, 200)
    grey = np.repeat((mask * 100)[..., None], 3, axis=2)
    tensor, geometry = made.preprocess(grey)
    small = tensor["x"][0, 0].reshape(64 // stride, stride, 64 // stride, stride).mean(axis=(1, 3))
    scores = -np.abs(small - np.array([0, 100, 200], np.float32)[:, None, None])[None]
    found = made.postprocess({"y": scores.astype(np.float32)}, geometry).classes
    assert found.shape == mask.shape
    blurred = cv2.erode((mask > 0).astype(np.uint8), np.ones((5, 5))) > 0 if stride == 1 else mask > 9
    assert (found[blurred] == mask[blurred]).all()
    assert (found == mask).mean() > (0.97 if stride == 1 else 0.9)


def test_logits_are_scaled_as_torch_does() -> None:
    scores = np.random.default_rng(0).normal(size=(1, 3, 8, 8)).astype(np.float32)
    found = task(shape=(1, 3, 8, 8)).postprocess({"y": scores}, task().preprocess({"x": 0})[1]).classes
    places = np.clip((np.arange(64) + 0.5) / 8 - 0.5, 0, 7)
    low, part = np.floor(places).astype(int), places - np.floor(places)
    high = np.minimum(low + 1, 7)
    rows = scores[0][:, low] * (1 - part)[:, None] + scores[0][:, high] * part[:, None]
    wanted = rows[..., low] * (1 - part) + rows[..., high] * part
    assert np.mean(found != wanted.argmax(axis=0)) < 1e-3


def test_one_channel_is_yes_or_no_and_a_class_map_is_taken_as_it_is() -> None:
    _, geometry = task().preprocess({"x": 0})
    plane = np.zeros((1, 1, 64, 64), np.float32)
    plane[..., :10, :] = 0.4
    assert task(shape=plane.shape).postprocess({"y": plane}, geometry).classes.sum() == 640
    sure = replace(BOUND, postprocess=Postprocess("argmax", scores=Scores.PROBABILITIES))
    assert task(sure, plane.shape).postprocess({"y": plane}, geometry).classes.sum() == 0
    drawn = replace(BOUND, postprocess=Postprocess("class_map"))
    for shape in ((1, 64, 64), (1, 1, 64, 64), (1, 64, 64, 1)):
        ids = np.full(shape, 7, np.int64)
        assert (task(drawn, shape, "int64").postprocess({"y": ids}, geometry).classes == 7).all()


def test_nan_is_nothing() -> None:
    made = task()
    answer = made.postprocess({"y": np.full((1, 3, 32, 32), np.nan, np.float32)}, made.preprocess({"x": 0})[1])
    assert made.count(answer) == 0
    assert made.as_text(answer) == "nothing"
    assert made.as_json(answer) == {"segments": []}


def test_run_lengths_are_those_of_coco() -> None:
    for mask in (painted(1)[1] == 1, np.ones((3, 4), bool), np.zeros((3, 4), bool)):
        told = run_lengths(mask)
        assert (coco_masks.decode(coco_masks.frPyObjects(told, *told["size"])) == mask).all()


def test_answers_to_pictures_of_two_sizes_are_told_apart() -> None:
    made = task()
    sizes = [np.zeros((48, 64), np.uint16), np.ones((64, 48), np.uint16)]
    wide, high = (Segments(one) for one in sizes)
    assert made.agreement([high, wide], [wide, high]) < 0.5
    assert why_no_proof(made, [wide, high], 0.9) == ""


def test_agreement_and_loss_fall_with_what_is_lost() -> None:
    made, chance = task(), np.random.default_rng(0)
    whole = [{"y": chance.normal(size=(1, 3, 32, 32)).astype(np.float32) * 4} for _ in range(3)]
    answers = [made.postprocess(one, made.preprocess({"x": 0})[1]) for one in whole]
    assert (made.agreement(answers, answers), made.loss(whole, whole)) == (1.0, 0.0)
    previous = 0.0
    for noise in (0.1, 1.0, 4.0):
        near = [{"y": one["y"] + noise * chance.normal(size=(1, 3, 32, 32)).astype(np.float32)} for one in whole]
        lost = made.loss(near, whole)
        assert lost > previous
        previous = lost
        assert made.agreement([made.postprocess(one, made.preprocess({"x": 0})[1]) for one in near], answers) < 1
    assert made.loss([{"y": one["y"] * np.float32(np.nan)} for one in whole], whole) == np.inf


def test_what_does_not_fit_is_refused() -> None:
    for shape, dtype, told in (((1, 3), "float32", "classes x height"), ((1, 3, 32, 32), "int64", "class_map")):
        with pytest.raises(UnsupportedError, match=told):
            task(BOUND, shape, dtype)
    with pytest.raises(UnsupportedError, match="has 3 classes, recipe 'shapes' names 2"):
        task(replace(BOUND, class_names=("a", "b")))
    with pytest.raises(UnsupportedError, match="cuts frames"):
        task(replace(BOUND, preprocess=Preprocess(resize=Resize.CENTRE_CROP)))


def chunk(kind: bytes, body: bytes) -> bytes:
    """Return a part of a PNG."""
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def grey_png(values: np.ndarray, bits: int) -> bytes:
    """Return a grey PNG of fewer than 8 bits, as Pillow writes masks of two classes."""
    height, width = values.shape
    spread = (values[..., None] >> np.arange(bits)[::-1]) & 1
    packed = np.packbits(spread.reshape(height, width * bits).astype(np.uint8), axis=1)
    rows = b"".join(b"\0" + row.tobytes() for row in packed)
    parts = (b"IHDR", struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0)), (b"IDAT", zlib.compress(rows))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*one) for one in (*parts, (b"IEND", b"")))


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_grey_masks_of_few_bits_hold_classes_not_shades(tmp_path: Path, bits: int) -> None:
    classes = np.random.default_rng(bits).integers(0, 2**bits, (5, 13))
    (tmp_path / "few.png").write_bytes(grey_png(classes, bits))
    assert (read_mask(tmp_path / "few.png") == classes).all()


def palette_png(indices: np.ndarray) -> bytes:
    """Return a PNG with VOC's palette, as Pillow and the field's tools write it."""
    height, width = indices.shape
    colours = bytes([0, 0, 0, 128, 0, 0, 0, 128, 0]) + bytes(range(253)) * 3
    rows = b"".join(b"\0" + row.tobytes() for row in indices)
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    parts = chunk(b"IHDR", head), chunk(b"PLTE", colours), chunk(b"tRNS", b"\0"), chunk(b"IDAT", zlib.compress(rows))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts) + chunk(b"IEND", b"")


def test_masks_of_a_palette_are_read_by_their_numbers(tmp_path: Path) -> None:
    mask = painted(0)[1]
    mask[0] = 255
    (tmp_path / "voc.png").write_bytes(palette_png(mask))
    assert (read_mask(tmp_path / "voc.png") == mask).all()


@pytest.mark.parametrize("where", [("images/val", "masks/val"), ("JPEGImages", "SegmentationClass"), ("val", "masks")])
def test_pictures_are_found_where_the_field_puts_them(tmp_path: Path, where: tuple[str, str]) -> None:
    paint(tmp_path / "made", 3)
    for one, to in zip(("images", "masks"), where, strict=True):
        (tmp_path / to).parent.mkdir(exist_ok=True)
        (tmp_path / "made" / one).rename(tmp_path / to)
    path = tmp_path / where[1]
    if where[0] == "val":
        (tmp_path / "val").rename(tmp_path / "images")
    labelled = open_labelled(path)
    assert labelled.frames.names == ("00.jpg", "01.jpg", "02.jpg")
    assert isinstance(labelled.labels, MaskLabels)
    assert labelled.labels.select([1]).paths == (path / "01.png",)


@pytest.mark.parametrize(
    ("mask", "told"),
    [
        (np.zeros((5, 5), np.uint8), "5x5, its picture 00.jpg 80x60"),
        (np.where(painted(0)[1] == 1, 255, 0).astype(np.uint8), "0 and 255 only"),
        (painted(0)[0], "colours, not classes"),
        (None, "does not decode"),
    ],
)
def test_wrong_masks_are_refused_before_work_begins(tmp_path: Path, mask, told: str) -> None:
    paint(tmp_path, 1)
    file = tmp_path / "masks" / "00.png"
    file.write_bytes(b"\x89PNG\r\n\x1a\nno") if mask is None else cv2.imwrite(str(file), mask)
    with pytest.raises(InvalidFileError, match=told):
        open_labelled(tmp_path / "masks")


def test_a_class_that_the_model_lacks_is_refused(tmp_path: Path) -> None:
    paint(tmp_path, 1)
    cv2.imwrite(str(tmp_path / "masks" / "00.png"), painted(0)[1] + 4)
    labelled = open_labelled(tmp_path / "masks")
    made = task()
    answer = made.postprocess({"y": np.zeros((1, 3, 32, 32), np.float32)}, made.preprocess(painted(0)[0])[1])
    with pytest.raises(InvalidFileError, match=r"00.png has class 4, beyond the model's 3 classes"):
        made.score([answer], labelled.labels)
