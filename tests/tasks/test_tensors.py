"""Outputs compared as they are: what counts as agreement, and what the task refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgeopt.errors import NotFoundError, UnsupportedError
from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.labels.classes import ClassLabels
from edgeopt.recipes.recipe import Evaluation, Postprocess, find_recipe
from edgeopt.tasks.tensors import TASK

IDS = TensorSpec("ids", "int64", (1, 4))
OUT = TensorSpec("y", "float32", (1, 3))
RECIPE = find_recipe("tensors")
LABELS = ClassLabels(("a.png",), classes=(1,), source=Path("labels.csv"))


def task(recipe=RECIPE, inputs=(IDS,)):
    return TASK(recipe, inputs, (OUT,), True)


def agreement(found, expected) -> float:
    return TASK(RECIPE, (IDS,), (), True).agreement([{"y": np.asarray(found)}], [{"y": np.asarray(expected)}])


def test_equal_outputs_agree_fully_and_opposite_ones_not_at_all():
    value = np.array([[1.0, -2.0, 3.0]], np.float32)
    assert agreement(value, value) == 1.0
    assert agreement(-value, value) == 0.0


def test_numbers_agree_by_their_noise_over_their_signal():
    assert agreement([3.0, 4.0], [5.0, 0.0]) == pytest.approx(1 - 20 / 25)


def test_another_scale_costs_agreement_though_a_cosine_does_not_see_it():
    assert agreement([[30.0]], [[20.0]]) == pytest.approx(1 - 100 / 600)


def test_silence_agrees_with_silence_only():
    assert agreement(np.zeros(3), np.zeros(3)) == 1.0
    assert agreement(np.full(3, 1e-9), np.zeros(3)) == 0.0
    assert agreement(np.zeros(3), np.ones(3)) == 0.0
    assert agreement(np.zeros((0, 3)), np.zeros((0, 3))) == 1.0


def test_nothing_makes_agreement_nan():
    nan, inf = np.nan, np.inf
    assert agreement([nan, 1.0], [1.0, 1.0]) == 0.0
    assert agreement([nan, 1.0], [nan, 1.0]) == 1.0
    assert agreement([-inf, 2.0, 1.0], [-inf, 2.0, 1.0]) == 1.0
    assert agreement([-inf, 1.0], [inf, 1.0]) == 0.0
    assert agreement([nan, nan], [nan, nan]) == 1.0
    assert agreement([1e300, -1e300], [1e300, -1e300]) == 1.0


def test_whole_numbers_agree_in_the_share_of_equal_elements():
    assert agreement(np.array([1, 2, 3, 9]), np.array([1, 2, 3, 4])) == 0.75
    assert agreement(np.array([True, False]), np.array([True, True])) == 0.5


def test_beside_real_outputs_whole_numbers_count_where_too_few_are_equal():
    real = np.arange(20.0)
    expected = {"y": real, "best": np.arange(20)}
    one_differs, three_differ = np.arange(20), np.arange(20)
    one_differs[:1], three_differ[:3] = 99, 99
    assert task().agreement([{"y": real, "best": one_differs}], [expected]) == 1.0
    assert task().agreement([{"y": real, "best": three_differ}], [expected]) == 0.85


def test_a_missing_output_or_another_shape_does_not_agree():
    assert task().agreement([{}], [{"y": np.ones(3)}]) == 0.0
    assert agreement(np.ones((1, 3)), np.ones((3, 1))) == 0.0


def test_the_worst_output_counts_and_inputs_are_averaged():
    good, bad = np.array([2.0, 0.0]), np.array([0.0, 2.0])
    reference = [{"a": good, "b": good}, {"a": good, "b": good}]
    assert task().agreement([{"a": good, "b": bad}, {"a": good, "b": good}], reference) == 0.5


def test_inputs_and_outputs_stay_what_they_are():
    ids = {"ids": np.arange(4).reshape(1, 4)}
    inputs, geometry = task().preprocess(ids)
    assert inputs["ids"] is ids["ids"]
    assert task().postprocess(inputs, geometry)["ids"] is ids["ids"]


def test_of_a_large_output_a_fixed_sample_is_compared_and_all_of_it_deployed():
    large = np.random.default_rng(0).normal(0, 1, (1, 4, 512, 512)).astype(np.float32)
    noisy = large + np.random.default_rng(1).normal(0, 0.1, large.shape).astype(np.float32)
    whole, found = (task().postprocess({"y": one}, None) for one in (large, noisy))
    assert whole["y"].size == found["y"].size < large.size
    assert task().agreement([found], [whole]) == pytest.approx(1 - 0.1**2, abs=5e-4)
    assert TASK(RECIPE, (IDS,), (OUT,), False).postprocess({"y": large})["y"] is large


def test_a_picture_is_refused_where_the_model_takes_none():
    with pytest.raises(UnsupportedError, match=r"a picture cannot become the model's inputs ids"):
        task().preprocess(np.zeros((4, 4, 3), np.uint8))


def test_a_picture_becomes_the_input_where_the_recipe_has_a_size():
    recipe = replace(RECIPE.with_size(8, 8), preprocess=replace(RECIPE.preprocess, scale=1 / 255))
    picture = TensorSpec("x", "float32", (1, 3, 8, 8))
    inputs, _ = task(recipe, (picture,)).preprocess(np.full((16, 16, 3), 255, np.uint8))
    np.testing.assert_allclose(inputs["x"], np.ones((1, 3, 8, 8)), rtol=1e-6)


def test_labels_are_refused_with_a_way_out():
    with pytest.raises(UnsupportedError, match="compares outputs only") as refused:
        task().score([{}], LABELS)
    assert all(one in refused.value.remedy for one in ("AP", "mIoU", "top1"))
    assert "psnr" not in refused.value.remedy
    with pytest.raises(UnsupportedError, match="compares outputs only"):
        task().score_resamples([{}], LABELS, np.ones((1, 1), np.int64))


def test_another_decoder_or_metric_is_refused():
    with pytest.raises(NotFoundError, match="decoder"):
        task(replace(RECIPE, postprocess=Postprocess("yolox")))
    with pytest.raises(NotFoundError, match="metric"):
        task(replace(RECIPE, evaluation=Evaluation("AP")))


def test_a_cosine_must_be_higher_than_matched_boxes_unless_the_recipe_says():
    assert RECIPE.least_agreement == 0.99
    assert find_recipe("yolox").least_agreement == 0.80
    assert replace(RECIPE, evaluation=replace(RECIPE.evaluation, least_agreement=0.9)).least_agreement == 0.9


def test_each_sample_is_judged_by_what_a_column_varies_over_all_of_them():
    random = np.random.default_rng(0)
    levels = random.random((16, 1, 1, 1))
    table = np.concatenate([random.random((16, 1, 30, 4)) * 300, levels + random.random((16, 1, 30, 1)) * 1e-3], axis=3)
    expected = [{"y": one.astype(np.float32)} for one in table]
    noisy = [{"y": one["y"] + random.normal(0, 0.003, one["y"].shape)} for one in expected]
    assert task().agreement(noisy, expected) > 0.999
    assert task().agreement_of_each(noisy, expected).min() > 0.99
    assert min(task().agreement([a], [b]) for a, b in zip(noisy, expected, strict=True)) < 0.5, "alone it seems lost"
    noisy[3]["y"][..., 4] += 1
    each = task().agreement_of_each(noisy, expected)
    assert each[3] < 0.5 < 0.99 < np.delete(each, 3).min()
