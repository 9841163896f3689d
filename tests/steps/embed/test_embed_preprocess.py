"""Embedded preprocessing gives the tensor that `PictureInput` gives, but for the last step of an interpolated pixel."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from edgeopt.errors import UnsupportedError
from edgeopt.graph.model import Model
from edgeopt.measurement.opening.given import open_given
from edgeopt.recipes.embedded import BOXES, FRAME, FRAME_OFFSET, FRAME_SCALE
from edgeopt.recipes.inputs.preprocess import Anchor, Colour, Input, Layout, PictureInput, Preprocess, Resize
from edgeopt.recipes.recipe import Recipe, find_recipe
from edgeopt.steps.embed_postprocess import embed_postprocess
from edgeopt.steps.embed_preprocess import embed_preprocess

SIZE = (48, 64)
FRAMES = ((48, 64), (90, 121), (37, 200), (20, 24), (200, 31))
KINDS = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "uint8": TensorProto.UINT8,
    "int8": TensorProto.INT8,
}


def passing_through(wanted: Input, channels: int, *, opset: int = 17, name: str = "tensor") -> Model:
    planar = wanted.layout is Layout.NCHW
    shape = (1, channels, *wanted.size) if planar else (1, *wanted.size, channels)
    ends = [[helper.make_tensor_value_info(one, KINDS[wanted.dtype], shape)] for one in ("picture", name)]
    graph = helper.make_graph([helper.make_node("Identity", ["picture"], [name])], "g", *ends)
    return Model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), "through")


def bound(wanted: Input, preprocess: Preprocess, name: str = "yolox") -> Recipe:
    return replace(find_recipe(name), input=wanted, preprocess=preprocess)


def picture(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def run(model: Model, frame: np.ndarray) -> dict[str, np.ndarray]:
    session = ort.InferenceSession(model.data, providers=["CPUExecutionProvider"])
    return dict(zip([one.name for one in session.get_outputs()], session.run(None, {FRAME: frame}), strict=True))


MODES = {
    "stretch": Preprocess(resize=Resize.STRETCH),
    "letterbox": Preprocess(resize=Resize.LETTERBOX, pad=7),
    "letterbox in the middle": Preprocess(resize=Resize.LETTERBOX, anchor=Anchor.CENTRE),
    "line": Preprocess(resize=Resize.LINE),
    "crop": Preprocess(resize=Resize.CENTRE_CROP),
    "crop from a size": Preprocess(resize=Resize.CENTRE_CROP, crop_from=70),
}


@pytest.mark.parametrize("mode", MODES)
def test_every_way_to_resize_gives_the_tasks_pixels(mode):
    wanted = Input(size=SIZE)
    model = embed_preprocess(passing_through(wanted, 3), bound(wanted, MODES[mode]))
    for sides in FRAMES:
        frame = picture(*sides)
        tensor, geometry = PictureInput(wanted, MODES[mode], reuse=False)(frame)
        found = run(model, frame)
        assert np.abs(found["tensor"] - tensor).max() <= 1
        np.testing.assert_allclose(found[FRAME_SCALE], [geometry.scale_x, geometry.scale_y], rtol=1e-6)
        np.testing.assert_array_equal(found[FRAME_OFFSET], [geometry.offset_x, geometry.offset_y])


@pytest.mark.parametrize("sides", [(90, 121), (480, 640), (37, 200)])
def test_few_pixels_are_rounded_otherwise_and_none_of_them_one_way(sides):
    wanted = Input(size=SIZE)
    frame = picture(*sides)
    tensor, _ = PictureInput(wanted, MODES["stretch"], reuse=False)(frame)
    found = run(embed_preprocess(passing_through(wanted, 3), bound(wanted, MODES["stretch"])), frame)["tensor"]
    off = found - tensor
    assert np.mean(off != 0) < 0.2  # 0.004 beside OpenCV's x86 code; what cuts in place of rounding is above 0.35
    assert abs(off.mean()) < 0.1


@pytest.mark.parametrize(("colour", "layout", "dtype"), [*product(Colour, Layout, KINDS)])
def test_colour_layout_and_type_are_the_recipes(colour, layout, dtype):
    channels = 1 if colour is Colour.GREY else 3
    means = (20.0,) if channels == 1 else (20.0, 30.0, 40.0)
    preprocess = Preprocess(colour=colour, mean=means, std=(2.0,), scale=0.5, resize=Resize.STRETCH)
    wanted = Input(size=SIZE, layout=layout, dtype=dtype)
    frame = picture(*SIZE)  # nothing is interpolated: what is left must be equal
    tensor, _ = PictureInput(wanted, preprocess, reuse=False)(frame)
    found = run(embed_preprocess(passing_through(wanted, channels), bound(wanted, preprocess)), frame)["tensor"]
    assert found.dtype == tensor.dtype
    tolerance = 0.25 if colour is Colour.GREY else 0.02 if dtype == "float16" else 1e-5
    if dtype in ("uint8", "int8"):
        tolerance = 1
    assert np.abs(found.astype(np.float64) - tensor.astype(np.float64)).max() <= tolerance


@settings(max_examples=60, deadline=None)
@given(height=st.integers(1, 700), width=st.integers(1, 700), mode=st.sampled_from(sorted(MODES)))
def test_a_frame_of_any_size_lies_where_the_task_puts_it(height, width, mode):
    wanted = Input(size=(13, 17))
    frame = np.zeros((height, width, 3), np.uint8)
    _, geometry = PictureInput(wanted, MODES[mode], reuse=False)(frame)
    found = run(embed_preprocess(passing_through(wanted, 3), bound(wanted, MODES[mode])), frame)
    np.testing.assert_allclose(found[FRAME_SCALE], [geometry.scale_x, geometry.scale_y], rtol=1e-6)
    np.testing.assert_array_equal(found[FRAME_OFFSET], [geometry.offset_x, geometry.offset_y])


@pytest.mark.parametrize("opset", [7, 11, 13, 18, 21])
def test_older_models_come_into_opset_13_and_newer_ones_stay(opset):
    wanted = Input(size=SIZE)
    made = embed_preprocess(passing_through(wanted, 3, opset=opset), bound(wanted, MODES["stretch"]))
    assert made.opset == max(opset, 13)
    assert run(made, picture(*SIZE))["tensor"].shape == (1, 3, *SIZE)


def test_a_model_that_uses_one_of_our_names_keeps_its_tensor_apart():
    wanted = Input(size=SIZE)
    made = embed_preprocess(passing_through(wanted, 3, name=BOXES), bound(wanted, MODES["stretch"]))
    assert [one.name for one in made.inputs] == [FRAME]
    assert f"model/{BOXES}" in run(made, picture(*SIZE))


def test_a_classifier_gives_no_geometry():
    wanted = Input(size=SIZE)
    made = embed_preprocess(passing_through(wanted, 3), bound(wanted, MODES["crop"], "imagenet"))
    assert [one.name for one in made.outputs] == ["tensor"]


def test_a_recipe_of_tensors_is_refused():
    wanted = Input(size=SIZE)
    with pytest.raises(UnsupportedError, match="takes tensors"):
        embed_preprocess(passing_through(wanted, 3), bound(replace(wanted, size=()), MODES["stretch"], "tensors"))


def test_what_stands_between_the_parts_stays_byte_by_byte_but_for_the_first_convolution():
    given = open_given("digits_detector", "cpu", None)
    made = embed_postprocess(embed_preprocess(given.model, given.recipe), given.recipe)
    before, after = given.model.proto.graph, made.proto.graph
    first = next(one for one in before.node if one.input[0] == given.model.inputs[0].name)
    kept = {one.name: one.SerializeToString() for one in before.node if one is not first}
    assert {one.name: one.SerializeToString() for one in after.node if one.name in kept} == kept
    weights = {one.name: one.raw_data for one in after.initializer}
    changed = {one.name for one in before.initializer if weights.get(one.name) != one.raw_data}
    assert changed == {first.input[1]}
    assert len(weights["preprocess/weight"]) == len(
        numpy_helper.to_array(next(one for one in before.initializer if one.name == first.input[1])).tobytes()
    )
