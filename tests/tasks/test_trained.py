"""Trained networks, on pictures made here: INT8 by `optimize` keeps the metric, and a broken form is refused by it.

`benchmarks/trained/` trains them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import pytest
from figures import POINTS, SHAPES, write_rods, write_shapes
from fixture_broken import lost_weights
from rendered import ALPHABET, write_lines
from shapes import CLASSES, noisy, shaped, thing

from edgeopt import optimize

TRAINED = Path(__file__).parents[1] / "trained"
HEAD = """name = "made"
task = "{task}"
description = "trained for a minute"
license = "ours"
source = "benchmarks/trained"
{labels}
[preprocess]
scale = 0.00392156862745098
{how}
[postprocess]
decoder = "{decoder}"
{reads}
[evaluation]
metric = "{metric}"
"""


def recipe(folder: Path, task: str, decoder: str, metric: str, how="", labels="", reads="", more: str = "") -> None:
    text = HEAD.format(task=task, decoder=decoder, metric=metric, how=how, labels=labels, reads=reads)
    (folder / "recipe.toml").write_text(text + more)


def lines(folder: Path) -> dict[str, Any]:
    how = 'colour = "GREY"\nresize = "line"\nmean = [0.5]\nstd = [0.5]'
    (folder / "alphabet.txt").write_text("\n".join(ALPHABET) + "\n")
    recipe(folder, "ocr", "ctc", "character_accuracy", how, more='[alphabet]\nfile = "alphabet.txt"\n')
    write_lines(folder, 48)
    write_lines(folder / "calib", 24, first=1000)
    return {"eval": folder / "rec_gt.txt", "calib": folder / "calib" / "images"}


def masks(folder: Path) -> dict[str, Any]:
    recipe(folder, "segmentation", "argmax", "mIoU", labels='labels = "classes.txt"')
    (folder / "classes.txt").write_text("\n".join(CLASSES))
    for name, first, count in (("images", 0, 32), ("masks", 0, 32), ("calib", 1000, 16)):
        (folder / name).mkdir()
        for i in range(count):
            cv2.imwrite(str(folder / name / f"{i}.png"), shaped(first + i)[name == "masks"])
    return {"eval": folder / "masks", "calib": folder / "calib"}


def things(folder: Path) -> dict[str, Any]:
    recipe(folder, "embedding", "none", "recall1")
    rows = [(kind, i) for kind in range(16) for i in range(4)]
    for name, first in (("images", 0), ("calib", 1000)):
        (folder / name).mkdir()
        for kind, i in rows:
            cv2.imwrite(str(folder / name / f"{kind}_{i}.png"), thing(kind, first + i))
    (folder / "things.csv").write_text("".join(f"{kind}_{i}.png,{kind}\n" for kind, i in rows))
    return {"eval": folder / "things.csv", "calib": folder / "calib"}


def clean(folder: Path) -> dict[str, Any]:
    recipe(folder, "image", "none", "psnr", how="")
    (folder / "calib").mkdir()
    for i in range(16):
        cv2.imwrite(str(folder / "calib" / f"{i}.png"), noisy(i)[0])
    return {"calib": folder / "calib"}


def rods(folder: Path) -> dict[str, Any]:
    more = f"score_threshold = 0.001\n[keypoints]\nnames = {list(POINTS)}\nsigmas = [0.06, 0.06, 0.06]\n"
    recipe(folder, "keypoints", "heatmaps", "AP", reads='centres = "middle"', more=more)
    write_rods(folder / "calib", range(1000, 1016))
    return {"eval": write_rods(folder, range(48)), "calib": folder / "calib" / "images"}


def parts(folder: Path) -> dict[str, Any]:
    (folder / "classes.txt").write_text("\n".join(SHAPES))
    reads, labels = 'strides = [8]\nboxes = "pixels"', 'labels = "classes.txt"'
    recipe(folder, "instances", "yolov8_segment", "AP", labels=labels, reads=reads, more="score_threshold = 0.1\n")
    write_shapes(folder / "calib", range(1000, 1016))
    return {"eval": write_shapes(folder, range(24)), "calib": folder / "calib" / "images"}


TRIED: dict[str, tuple[Callable[[Path], dict[str, Any]], float]] = {
    "reader": (lines, 0.98),
    "segments": (masks, 0.90),
    "embedder": (things, 0.80),
    "denoiser": (clean, 0.0),
    "keypoints": (rods, 0.80),
    "instances": (parts, 0.60),
}
"""Network to what writes its data, and the least that it reaches in its metric; 0: no labels judge it."""


def run(name: str, folder: Path) -> Any:
    given = TRIED[name][0](folder)
    (folder / f"{name}.onnx").write_bytes((TRAINED / f"{name}.onnx").read_bytes())
    told = {"steps": ("simplify", "fuse", "quantize"), "threads": 1}
    return optimize(folder / f"{name}.onnx", out=folder / "out", **given, **told)


@pytest.mark.parametrize("name", TRIED)
def test_int8_of_a_trained_network_keeps_its_metric(name: str, few_forms: None, tmp_path: Path) -> None:
    report, least = run(name, tmp_path), TRIED[name][1]
    float32, integers = report.candidates[0], [one for one in report.candidates if "quantize" in one.name]
    assert integers
    if least:
        assert float32.score.value >= least
        assert max(one.agreement for one in integers) >= 0.9
        assert all(one.score.value >= float32.score.value - 0.01 for one in integers if one.word == "KEPT")
    else:
        assert max(one.agreement for one in integers) >= 0.99


@pytest.mark.parametrize("name", TRIED)
def test_a_broken_int8_form_is_refused_by_the_metric(name: str, one_form: None, tmp_path: Path) -> None:
    with lost_weights():
        report = run(name, tmp_path)
    integers = [one for one in report.candidates if "quantize" in one.name]
    assert integers
    assert "quantize" not in report.chosen
    for one in integers:
        assert "agrees with the original in" in one.refused, "labels are not opened for what differs so much"
