"""Each task says how much of a model's outputs is lost: nothing where equal, more where more is off, never NaN."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.recipe import read_recipe
from edgeopt.system.disk import assets
from edgeopt.tasks import make_task
from edgeopt.tasks._losses import relative_error
from edgeopt.tasks.detection.boxes import Detections, lost_share

RNG = np.random.default_rng(0)


def recipe(name):
    return read_recipe(Path(assets.folder("models")) / name / "recipe.toml")


def task(name, inputs, *outputs):
    specs = [TensorSpec(f"o{i}", "float32", one) for i, one in enumerate(outputs)]
    known = recipe(name)
    known = replace(known, input=replace(known.input, size=inputs[2:]))
    return make_task(known, [TensorSpec("x", "float32", inputs)], specs, evaluating=True)


def yolox_rows(boxes=40):
    rows = RNG.uniform(0.0, 0.02, (1, boxes, 85)).astype(np.float32)
    rows[0, :, :4] = RNG.uniform(-0.5, 0.5, (boxes, 4))
    rows[0, :6, 4], rows[0, :6, 7] = 0.9, 0.9
    return rows


CASES = {
    "classes": (
        task("imagenet", (1, 3, 224, 224), (1, 1000)),
        [RNG.normal(0, 3, (1, 1000)).astype(np.float32) for _ in range(4)],
    ),
    "boxes": (
        task("yolox", (1, 3, 416, 416), (1, 3549, 85)),
        [np.concatenate([yolox_rows(), np.zeros((1, 3509, 85), np.float32)], axis=1) for _ in range(4)],
    ),
    "tensors": (task("tensors", (1, 3), (1, 5)), [RNG.normal(0, 3, (1, 5)).astype(np.float32) for _ in range(4)]),
}
each = pytest.mark.parametrize("name", CASES)


def outputs(values):
    return [{"o0": one} for one in values]


def noised(values, by, seed=1):
    rng = np.random.default_rng(seed)
    return [(one + by * rng.normal(0, one.std(), one.shape)).astype(np.float32) for one in values]


@each
def test_equal_outputs_lose_nothing(name):
    judge, values = CASES[name]
    assert judge.loss(outputs(values), outputs(values)) == pytest.approx(0, abs=1e-9)


@each
def test_more_noise_loses_more_long_before_answers_change(name):
    judge, values = CASES[name]
    lost = [judge.loss(outputs(noised(values, by)), outputs(values)) for by in (0.001, 0.01, 0.1)]
    assert 0 < lost[0] < lost[1] < lost[2]
    assert lost[0] < 0.05


@each
def test_outputs_of_nothing_but_noise_lose_all(name):
    judge, values = CASES[name]
    blind = [RNG.normal(0, one.std(), one.shape).astype(np.float32) for one in values]
    assert judge.loss(outputs(blind), outputs(values)) > 0.8


@each
def test_what_is_not_a_number_is_lost_without_end(name):
    judge, values = CASES[name]
    broken = [one.copy() for one in values]
    broken[1][...] = np.nan
    assert judge.loss(outputs(broken), outputs(values)) == math.inf


def boxes(*rows):
    table = np.array(rows, np.float32).reshape(-1, 6)
    return Detections(table[:, :4], table[:, 4], table[:, 5].astype(np.int64))


def test_a_box_weighs_by_the_square_of_its_score():
    sure, unsure = (0, 0, 10, 10, 0.9, 1), (50, 50, 60, 60, 0.1, 1)
    moved_sure, moved_unsure = (100, 100, 110, 110, 0.9, 1), (0, 50, 10, 60, 0.1, 1)
    reference = boxes(sure, unsure)
    assert lost_share(reference, reference)[0] == 0
    lost, whole = lost_share(boxes(moved_sure, unsure), reference)
    assert lost == pytest.approx(0.81)
    assert whole == pytest.approx(0.82)
    assert lost_share(boxes(sure, moved_unsure), reference)[0] == pytest.approx(0.01)


def test_another_class_is_another_box():
    reference = boxes((0, 0, 10, 10, 0.9, 1))
    assert lost_share(boxes((0, 0, 10, 10, 0.9, 2)), reference)[0] == pytest.approx(0.81)


def test_sets_of_other_sizes_are_matched():
    reference = boxes((0, 0, 10, 10, 0.9, 1), (50, 50, 60, 60, 0.8, 1))
    lost, whole = lost_share(boxes((0, 0, 10, 10, 0.9, 1)), reference)
    assert 0 < lost < whole


def test_scores_that_became_a_constant_are_lost_beside_boxes_in_pixels():
    judge, rng = CASES["tensors"][0], np.random.default_rng(2)
    tables = [rng.uniform(0, 1, (1, 200, 6)).astype(np.float32) * [640, 640, 640, 640, 1, 1] for _ in range(4)]
    lost = [one.copy() for one in tables]
    for one in lost:
        one[..., 4] = 0.5
    assert relative_error(outputs(lost), outputs(tables)) < 1e-5, "beside the boxes it vanishes"
    assert judge.loss(outputs(lost), outputs(tables)) > 0.2
    assert judge.loss(outputs(tables), outputs(tables)) == 0
    rounded = [(one * (1 + rng.normal(0, 1e-4, one.shape))).astype(np.float32) for one in tables]
    assert judge.loss(outputs(rounded), outputs(tables)) < 1e-5


def test_columns_of_few_numbers_are_not_told_apart():
    few = [np.array([[1.0, 2.0]], np.float32)]
    moved = outputs([few[0] * 1.1])
    assert CASES["tensors"][0].loss(moved, outputs(few)) == relative_error(moved, outputs(few))
