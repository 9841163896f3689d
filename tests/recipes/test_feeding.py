"""Tensors of an .npz as a model takes them, and what is no proof of agreement."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edgeopt.errors import EdgeoptError, InvalidFileError, UnsupportedError
from edgeopt.graph.tensors import TensorSpec
from edgeopt.measurement.accuracy.evaluate import model_inputs, require_metric, why_no_proof
from edgeopt.recipes.inputs.feeding import fed, synthetic
from edgeopt.recipes.inputs.frames import Frames, open_frames
from edgeopt.recipes.recipe import find_recipe
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.tasks.detection import TASK as DETECTION
from edgeopt.tasks.detection.boxes import Detections
from edgeopt.tasks.tensors import TASK

IDS, MASK = TensorSpec("ids", "int64", ("batch", "seq")), TensorSpec("mask", "int64", ("batch", "seq"))
OUT = TensorSpec("y", "float32", ("batch", "seq", 8))
IMAGE = TensorSpec("x", "float32", (1, 3, 8, 8))


def given(tmp_path, inputs=(IDS, MASK), **arrays) -> Frames:
    np.savez(tmp_path / "inputs.npz", **arrays)
    frames = open_frames(tmp_path / "inputs.npz")
    recipe = choose_recipe("tensors", None, inputs, (OUT,), {}, frames.shapes).recipe
    return fed(frames, recipe, inputs)


def test_free_dimensions_are_those_of_the_arrays_and_the_batch_is_one(tmp_path):
    frames = given(tmp_path, ids=np.arange(10).reshape(2, 5), mask=np.ones((2, 5), np.int64))
    assert frames.shapes == {"ids": (1, 5), "mask": (1, 5)}
    assert frames.read(1)["ids"].tolist() == [[5, 6, 7, 8, 9]]
    assert frames.spread(1).read(0)["ids"].tolist() == [[0, 1, 2, 3, 4]]


def test_what_stays_the_same_number_is_cast_and_told(tmp_path):
    frames = given(tmp_path, ids=np.arange(10, dtype=np.int32).reshape(2, 5), mask=np.ones((2, 5), bool))
    assert {str(one.dtype) for one in frames.read(0).values()} == {"int64"}
    assert "ids int32 as int64, mask bool as int64" in frames.notes[-1].detail


def test_real_numbers_are_rounded_but_never_to_infinity(tmp_path):
    half = TensorSpec("x", "float16", (None, 4))
    assert given(tmp_path, (half,), x=np.full((2, 4), 0.1)).read(0)["x"].dtype == np.float16
    with pytest.raises(InvalidFileError, match="float16 does not reach 1e\\+06"):
        given(tmp_path, (half,), x=np.full((2, 4), 1e6))


def test_numbers_that_would_change_are_refused(tmp_path):
    with pytest.raises(InvalidFileError, match=r"ids is float64, the model takes int64: numbers would change"):
        given(tmp_path, ids=np.full((2, 5), 0.5), mask=np.ones((2, 5), np.int64))


def test_a_missing_array_and_an_unknown_one_are_named(tmp_path):
    with pytest.raises(InvalidFileError, match="lacks mask int64 batchxseq and holds masks"):
        given(tmp_path, ids=np.ones((2, 5), np.int64), masks=np.ones((2, 5), np.int64))


def test_another_rank_is_refused_with_the_shape_to_store(tmp_path):
    with pytest.raises(InvalidFileError, match="a sample of ids is int64 1x5x1x1") as refused:
        given(tmp_path, ids=np.ones((2, 5, 1, 1), np.int64), mask=np.ones((2, 5), np.int64))
    assert "(samples, seq)" in refused.value.remedy
    with pytest.raises(InvalidFileError, match="a sample of x is float32 1x3x9x9") as refused:
        given(tmp_path, (IMAGE,), x=np.ones((2, 3, 9, 9), np.float32))
    assert "(samples, 3, 8, 8)" in refused.value.remedy


def test_one_dimension_has_one_size(tmp_path):
    with pytest.raises(InvalidFileError, match="seq is 5 in ids and 6 in mask"):
        given(tmp_path, ids=np.ones((2, 5), np.int64), mask=np.ones((2, 6), np.int64))


def test_samples_may_have_an_axis_of_their_own_before_the_models_shape(tmp_path):
    state, scalar = TensorSpec("state", "float32", (2, 1, 4)), TensorSpec("rate", "int64", ())
    arrays = {"state": np.arange(24, dtype=np.float32).reshape(3, 2, 1, 4), "rate": np.array([8, 16, 32])}
    frames = given(tmp_path, (state, scalar), **arrays)
    assert frames.read(2)["state"].tolist() == [[[16, 17, 18, 19]], [[20, 21, 22, 23]]]
    assert frames.read(2)["rate"].tolist() == 32


def test_tensors_of_a_detector_are_its_inputs_and_its_boxes_are_the_inputs_own():
    recipe = find_recipe("yolox").with_size(64, 64)
    task = DETECTION(recipe, (IMAGE,), (TensorSpec("y", "float32", (1, 84, 85)),), True)
    tensor = {"x": np.zeros((1, 3, 64, 64), np.float32)}
    inputs, geometry = task.preprocess(tensor)
    assert inputs is tensor
    assert geometry.to_frame(np.array([[-3, 1, 20, 99]], np.float32)).tolist() == [[0, 1, 20, 64]]


def test_pictures_for_a_recipe_that_says_nothing_of_them_are_told(tmp_path):
    recipe = find_recipe("tensors").with_size(8, 8)
    pictures = synthetic(recipe, (IMAGE,))
    assert "RGB, 0 to 255" in fed(pictures, recipe, (IMAGE,)).notes[0].detail
    scaled = replace(recipe, preprocess=replace(recipe.preprocess, scale=1 / 255))
    assert fed(pictures, scaled, (IMAGE,)) is pictures


def test_synthetic_tensors_fit_every_input_and_are_the_same_each_time():
    inputs = (TensorSpec("ids", "int64", (1, 5)), TensorSpec("x", "float16", (2, 3)), TensorSpec("on", "bool", ()))
    recipe = find_recipe("tensors")
    task = TASK(recipe, inputs, (OUT,), True)
    first, again = (next(iter(model_inputs(task, synthetic(recipe, inputs)))) for _ in range(2))
    assert {name: (str(one.dtype), one.shape) for name, one in first.items()} == {
        "ids": ("int64", (1, 5)),
        "x": ("float16", (2, 3)),
        "on": ("bool", ()),
    }
    assert all(np.array_equal(first[name], again[name]) for name in first)
    with pytest.raises(UnsupportedError, match="dimension 1 of input ids"):
        synthetic(recipe, (IDS,))


def test_large_made_up_samples_repeat_and_those_beyond_memory_are_one_error(monkeypatch):
    recipe, spec = find_recipe("tensors"), TensorSpec("x", "float32", (1, 1000))
    monkeypatch.setattr("edgeopt.recipes.inputs.made_up._MOST_BYTES", 12_000)
    frames = synthetic(recipe, (spec,))
    assert len(frames) == 16
    assert frames.read(0) is frames.read(3)
    assert not np.array_equal(frames.read(0)["x"], frames.read(1)["x"])
    with pytest.raises(EdgeoptError, match=r"1 made-up sample of .* do not fit"):
        synthetic(recipe, (replace(spec, shape=(1, 1 << 50)),))


def test_labels_for_a_recipe_without_a_metric_are_refused_before_work_begins():
    with pytest.raises(UnsupportedError, match="knows no metric on labels"):
        require_metric(find_recipe("tensors"), "labels.csv")
    require_metric(find_recipe("tensors"), "")
    require_metric(find_recipe("yolox"), "labels.csv")


def boxes(*scores: float, left: float = 0.0) -> Detections:
    corners = np.tile(np.array([left, 0, left + 10, 10], np.float32), (len(scores), 1))
    return Detections(corners, np.array(scores, np.float32), np.zeros(len(scores), np.int64))


def test_a_detector_that_finds_nothing_proves_nothing():
    recipe = find_recipe("yolox").with_size(64, 64)
    task = DETECTION(recipe, (IMAGE,), (TensorSpec("y", "float32", (1, 84, 85)),), True)
    assert task.agreement([boxes(), boxes()], [boxes(), boxes()]) == 1.0
    assert "finds nothing on 2 pictures" in why_no_proof(task, [boxes(), boxes()], 0.8)
    assert "finds nothing on 1 picture" in why_no_proof(task, [boxes()], 0.8)
    assert why_no_proof(task, [boxes(0.9), boxes(0.9, left=30)], 0.8) == ""
    assert "alike (agreement 1.000" in why_no_proof(task, [boxes(0.9), boxes(0.9)], 0.8)


def test_outputs_that_hardly_depend_on_the_input_prove_nothing():
    task = TASK(find_recipe("tensors"), (IDS,), (OUT,), True)
    chance = np.random.default_rng(0)
    constant = [{"y": 5 + chance.normal(0, 0.1, 50)} for _ in range(4)]
    assert "answers all of 4 pictures alike" in why_no_proof(task, constant, 0.99)
    assert why_no_proof(task, [{"y": chance.normal(0, 1, 50)} for _ in range(4)], 0.99) == ""
    assert why_no_proof(task, [], 0.99) == ""
