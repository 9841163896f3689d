"""Segmentation inside the model: the class of each pixel is the task's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeopt.graph.model import Model
from edgeopt.recipes.embedded import CLASS_MAP, Embedded
from edgeopt.recipes.inputs.preprocess import Anchor, Input, Layout, Preprocess, Resize
from edgeopt.recipes.recipe import Postprocess, Recipe, find_recipe
from edgeopt.steps.embed_postprocess import embed_postprocess
from edgeopt.steps.embed_preprocess import embed_preprocess
from edgeopt.tasks import make_task

SIZE = (32, 48)
FRAMES = ((45, 80), (70, 60), (32, 48))
WAYS = {
    "stretch": Preprocess(resize=Resize.STRETCH, scale=1 / 255),
    "letterbox": Preprocess(resize=Resize.LETTERBOX, scale=1 / 255),
    "letterbox in the middle": Preprocess(resize=Resize.LETTERBOX, anchor=Anchor.CENTRE, scale=1 / 255),
}


def model_of(classes: int, layout: Layout = Layout.NCHW) -> Model:
    """Return scores of classes, a quarter of the picture's size."""
    weights = np.random.default_rng(0).normal(size=(classes, 3, 4, 4)).astype(np.float32)
    nodes = [helper.make_node("Conv", ["planes", "weights"], ["scores"], strides=[4, 4])]
    picture, out, names = [1, 3, *SIZE], [1, classes, SIZE[0] // 4, SIZE[1] // 4], ("planes", "scores")
    if layout is Layout.NHWC:
        nodes.insert(0, helper.make_node("Transpose", ["x"], ["planes"], perm=[0, 3, 1, 2]))
        nodes.append(helper.make_node("Transpose", ["scores"], ["y"], perm=[0, 2, 3, 1]))
        picture, out, names = [1, *SIZE, 3], [1, *out[2:], classes], ("x", "y")
    ends = [
        [helper.make_tensor_value_info(*one)]
        for one in zip(names, [TensorProto.FLOAT] * 2, (picture, out), strict=True)
    ]
    graph = helper.make_graph(nodes, "g", *ends, [numpy_helper.from_array(weights, "weights")])
    return Model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "segments")


def bound(preprocess: Preprocess, layout: Layout = Layout.NCHW) -> Recipe:
    recipe = replace(find_recipe("imagenet"), task="segmentation", class_names=(), preprocess=preprocess)
    return replace(recipe, input=Input(size=SIZE, layout=layout), postprocess=Postprocess(decoder="argmax"))


def answers_of(model: Model, recipe: Recipe, frames: list[np.ndarray]) -> list[np.ndarray]:
    task = make_task(recipe, model.inputs, model.outputs, evaluating=False)
    session, found = ort.InferenceSession(model.data, providers=["CPUExecutionProvider"]), []
    for frame in frames:
        inputs, geometry = task.preprocess(frame)
        outputs = dict(zip([one.name for one in session.get_outputs()], session.run(None, dict(inputs)), strict=True))
        found.append(task.postprocess(outputs, geometry).classes)
    return found


def frames() -> list[np.ndarray]:
    random, found = np.random.default_rng(1), []
    for rows, columns in FRAMES:
        small = random.integers(0, 256, (rows // 5 + 1, columns // 5 + 1, 3), dtype=np.uint8)
        found.append(np.ascontiguousarray(np.kron(small, np.ones((5, 5, 1), np.uint8))[:rows, :columns]))
    return found


@pytest.mark.parametrize("layout", [Layout.NCHW, Layout.NHWC])
@pytest.mark.parametrize("classes", [1, 5])
@pytest.mark.parametrize("way", WAYS)
def test_a_map_of_the_frame_is_the_tasks(way, classes, layout):
    model, recipe = model_of(classes, layout), bound(WAYS[way], layout)
    inside = embed_postprocess(embed_preprocess(model, recipe), recipe)
    assert [(one.name, one.dtype) for one in inside.outputs] == [(CLASS_MAP, "uint16")]
    parts = recipe.with_embedded(Embedded.PREPROCESS, Embedded.POSTPROCESS)
    for wanted, found in zip(answers_of(model, recipe, frames()), answers_of(inside, parts, frames()), strict=True):
        assert found.shape == wanted.shape
        assert found.dtype == wanted.dtype
        assert np.mean(found == wanted) > 0.99  # two classes that lie within a step of 255 may change places
        assert len(np.unique(wanted)) > 1


@pytest.mark.parametrize("way", WAYS)
def test_alone_it_gives_a_map_of_the_models_input(way):
    model, recipe = model_of(5), bound(WAYS[way])
    inside = embed_postprocess(model, recipe)
    parts = recipe.with_embedded(Embedded.POSTPROCESS)
    for wanted, found in zip(answers_of(model, recipe, frames()), answers_of(inside, parts, frames()), strict=True):
        assert found.shape == wanted.shape
        assert np.mean(found == wanted) > 0.9  # the outline is coarser


def test_damaged_scores_are_no_class():
    model, recipe = model_of(5), bound(WAYS["stretch"])
    inside = embed_postprocess(model, recipe)
    session = ort.InferenceSession(inside.data, providers=["CPUExecutionProvider"])
    found = session.run(None, {inside.inputs[0].name: np.full((1, 3, *SIZE), np.nan, np.float32)})[0]
    assert found.shape == SIZE
    assert np.all(found == 2**16 - 1)
