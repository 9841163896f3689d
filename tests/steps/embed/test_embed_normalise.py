"""A picture that the app resized gives the tensor that `PictureInput` gives, and sizes stay fixed."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from edgeopt.errors import UnsupportedError
from edgeopt.graph.model import Model
from edgeopt.recipes.embedded import PICTURE, Embedded, picture_feed
from edgeopt.recipes.inputs.preprocess import Anchor, Colour, Input, Layout, PictureInput, Preprocess, Resize
from edgeopt.recipes.recipe import Recipe, find_recipe
from edgeopt.steps.embed_normalise import embed_normalise

SIZE = (24, 32)
KINDS = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "uint8": TensorProto.UINT8}
MODES = {
    "stretch": Preprocess(resize=Resize.STRETCH, scale=1 / 255),
    "letterbox": Preprocess(resize=Resize.LETTERBOX, anchor=Anchor.CENTRE, pad=7, mean=(5.0, 6.0, 7.0)),
    "crop": Preprocess(resize=Resize.CENTRE_CROP, crop_from=40, std=(2.0,)),
    "line": Preprocess(resize=Resize.LINE, scale=0.5),
}


def passing_through(wanted: Input, channels: int) -> Model:
    sizes = {"N": 1, "C": channels, "H": SIZE[0], "W": SIZE[1]}
    shape = [sizes[axis] for axis in wanted.layout]
    ends = [[helper.make_tensor_value_info(one, KINDS[wanted.dtype], shape)] for one in ("given", "tensor")]
    graph = helper.make_graph([helper.make_node("Identity", ["given"], ["tensor"])], "g", *ends)
    return Model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "through")


def bound(wanted: Input, preprocess: Preprocess) -> Recipe:
    return replace(find_recipe("imagenet"), input=wanted, preprocess=preprocess)


def both(wanted: Input, preprocess: Preprocess, frame: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    made = embed_normalise(
        passing_through(wanted, 1 if preprocess.colour is Colour.GREY else 3), bound(wanted, preprocess)
    )
    assert [(one.name, one.dtype, one.shape) for one in made.inputs] == [(PICTURE, "uint8", (*SIZE, 3))]
    tensor, where = PictureInput(wanted, preprocess, reuse=False)(frame)
    picture, same = picture_feed(wanted, preprocess, [Embedded.NORMALISE], reuse=False)(frame)
    assert same == where
    session = ort.InferenceSession(made.data, providers=["CPUExecutionProvider"])
    return session.run(None, {PICTURE: picture})[0], tensor


@pytest.mark.parametrize("mode", MODES)
def test_every_way_to_resize_leaves_the_tasks_numbers(mode):
    frame = np.random.default_rng(0).integers(0, 256, (50, 61, 3), dtype=np.uint8)
    found, tensor = both(Input(size=SIZE), MODES[mode], frame)
    np.testing.assert_allclose(found, tensor, atol=1e-4)


@pytest.mark.parametrize(("colour", "layout", "dtype"), [*product(Colour, Layout, KINDS)])
def test_colour_layout_and_type_are_the_recipes(colour, layout, dtype):
    means = (20.0,) if colour is Colour.GREY else (20.0, 30.0, 40.0)
    preprocess = Preprocess(colour=colour, mean=means, std=(2.0,), resize=Resize.STRETCH)
    frame = np.random.default_rng(0).integers(0, 256, (50, 61, 3), dtype=np.uint8)
    found, tensor = both(Input(size=SIZE, layout=layout, dtype=dtype), preprocess, frame)
    assert found.dtype == tensor.dtype
    off = np.abs(found.astype(np.float64) - tensor.astype(np.float64)).max()
    # OpenCV weighs colours to a grey in integers: it may be one step off; a half rounds the last bit otherwise
    assert off <= (1 if colour is Colour.GREY or dtype == "uint8" else 0.1 if dtype == "float16" else 1e-4)


def test_a_line_with_a_mean_is_refused():
    with pytest.raises(UnsupportedError, match="behind the mean"):
        both(Input(size=SIZE), replace(MODES["line"], mean=(127.5,)), np.zeros((50, 61, 3), np.uint8))
