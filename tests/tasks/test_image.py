"""Depth, image to image: likeness to the original's picture keeps a right INT8 form and refuses a broken one."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path

import cv2
import fixture_models
import numpy as np
import pytest
from click.testing import CliRunner
from painted import depth, painted

from edgeopt import optimize
from edgeopt.cli import cli
from edgeopt.errors import UnsupportedError
from edgeopt.graph.model import save_model
from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.inputs.preprocess import Anchor, Input, Preprocess, Resize
from edgeopt.recipes.recipe import Evaluation, Postprocess, Recipe
from edgeopt.tasks import make_task
from edgeopt.tasks.image import Image

RECIPE = """
name = "far"
task = "image"
description = "how far"
license = "ours"
source = "ours"
[preprocess]
scale = 0.00392156862745098
[postprocess]
decoder = "none"
[evaluation]
metric = "psnr"
"""
BOUND = Recipe(
    "far",
    "image",
    "",
    "",
    "",
    Postprocess("none"),
    Evaluation("psnr"),
    Input("x", (64, 64)),
    Preprocess(scale=1 / 255),
)


def task(recipe: Recipe = BOUND, shape=(1, 1, 64, 64), dtype: str = "float32", metric: str = "psnr"):
    recipe = replace(recipe, evaluation=Evaluation(metric))
    return make_task(
        recipe, [TensorSpec("x", "float32", (1, 3, 64, 64))], [TensorSpec("y", dtype, shape)], evaluating=True
    )


def answered(model, made):

    found = []
    for i in range(4):
        inputs, geometry = made.preprocess(painted(i)[0])
        found.append(made.postprocess(fixture_models.run(model, inputs), geometry))
    return found


def test_int8_is_judged_by_its_likeness(brief: None, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for i in range(12):
        cv2.imwrite(str(tmp_path / "images" / f"{i:02}.png"), painted(i)[0])
    (tmp_path / "recipe.toml").write_text(RECIPE)
    save_model(depth(), tmp_path / "far.onnx")
    given = {"calib": tmp_path / "images", "out": tmp_path / "out"}
    report = optimize(tmp_path / "far.onnx", **given, threads=1, time_limit_s=20)
    int8 = [one.agreement for one in report.candidates if one.name.startswith("quantize")]
    assert max(int8) > 0.99
    command = ["run", str(report.folder), str(tmp_path / "images"), "--limit", "1"]
    told = CliRunner().invoke(cli, command)
    assert told.exit_code == 0, told.output
    assert "00.png: 64x64 from 0." in told.stdout
    shown = json.loads(CliRunner().invoke(cli, [*command, "--json"]).stdout)
    png = cv2.imdecode(np.frombuffer(base64.b64decode(shown["png"]), np.uint8), cv2.IMREAD_UNCHANGED)
    assert (png.dtype, png.shape, int(png.max())) == (np.uint16, (64, 64), 65535)
    assert CliRunner().invoke(cli, [*command, "--save", str(tmp_path / "drawn")]).exit_code == 0


@pytest.mark.parametrize("metric", ["psnr", "ssim", "agreement"])
@pytest.mark.parametrize("broken", [{"gain": 0.1}, {"halved": True}], ids=["a scale too small", "half of a layer"])
def test_a_broken_form_is_not_like_the_original(metric: str, broken) -> None:
    made = task(metric=metric)
    dense, right, wrong = (answered(one, made) for one in (depth(), depth(gain=1.001), depth(**broken)))
    assert made.agreement(dense, dense) == pytest.approx(1.0)
    kept = [made.agreement(one, dense) >= BOUND.least_agreement for one in (right, wrong)]
    assert kept == [True, False]


def test_nearness_is_that_of_the_signal_to_noise_ratio() -> None:
    made = task()
    base = np.random.default_rng(0).uniform(size=(1, 1, 64, 64)).astype(np.float32)
    _, geometry = made.preprocess({"x": 0})
    first = made.postprocess({"y": base}, geometry)
    near = made.postprocess({"y": base + np.float32(0.01)}, geometry)
    assert -20 * np.log10(1 - made.agreement([near], [first])) == pytest.approx(40, abs=0.05)


def test_the_border_of_a_letterbox_is_cut_and_a_larger_output_stays_large() -> None:
    boxed = replace(BOUND, preprocess=Preprocess(resize=Resize.LETTERBOX, anchor=Anchor.CENTRE))
    made = task(boxed, (1, 3, 128, 128))
    _, geometry = made.preprocess(painted(0)[0])
    answer = made.postprocess({"y": np.zeros((1, 3, 128, 128), np.float32)}, geometry)
    assert answer.values.shape == (96, 128, 3)
    assert made.draw(painted(0)[0], answer).shape[0] == 320


@pytest.mark.parametrize(("height", "width"), [(37, 500), (500, 37), (1, 300), (300, 1)])
def test_of_a_thin_picture_one_row_or_column_of_a_coarse_map_stays(height: int, width: int) -> None:
    boxed = replace(BOUND, preprocess=Preprocess(resize=Resize.LETTERBOX, anchor=Anchor.CENTRE))
    made = task(boxed, (1, 1, 8, 8))
    frame = np.zeros((height, width, 3), np.uint8)
    _, geometry = made.preprocess(frame)
    answer = made.postprocess({"y": np.zeros((1, 1, 8, 8), np.float32)}, geometry)
    assert answer.values.shape == ((1, 8) if width > height else (8, 1))
    assert "from 0 to 0" in made.as_text(answer)


def test_nan_and_what_is_no_picture() -> None:
    made = task()
    answer = made.postprocess({"y": np.full((1, 1, 64, 64), np.nan, np.float32)}, made.preprocess({"x": 0})[1])
    assert (made.count(answer), made.as_text(answer), made.as_json(answer)["png"]) == (0, "nothing", None)
    assert (
        made.agreement(
            [answer], [made.postprocess({"y": fixture_models.numbers(1, 1, 64, 64)}, made.preprocess({"x": 0})[1])]
        )
        == 0
    )
    for shape, dtype in (((1, 19, 64, 64), "float32"), ((1, 10), "float32"), ((1, 1, 64, 64), "int64")):
        with pytest.raises(UnsupportedError, match="an image is floats"):
            task(BOUND, shape, dtype)


@pytest.mark.parametrize("metric", ["psnr", "ssim", "agreement"])
def test_a_channel_of_small_numbers_beside_a_large_one_counts_and_an_empty_one_does_not(metric: str) -> None:
    made, random = task(shape=(1, 3, 64, 64), metric=metric), np.random.default_rng(0)
    sizes = np.array([100, 0.5, 0], np.float32)
    expected = [Image(random.random((64, 64, 3)).astype(np.float32) * sizes) for _ in range(3)]
    found = [Image(one.values + np.float32(1e-4)) for one in expected]
    assert made.agreement(found, expected) > 0.99
    assert made.agreement_of_each(found, expected).min() > 0.99
    for one in found:
        one.values[..., 1] = 0.25
    assert made.agreement(found, expected) < 0.8
    assert made.agreement_of_each(found, expected).max() < 0.8
