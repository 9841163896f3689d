"""Normalisation inside the first convolution: the same numbers, and nothing left in front that moves exactly."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeopt.graph.model import Model
from edgeopt.recipes.embedded import FRAME
from edgeopt.recipes.inputs.preprocess import Colour, Input, Layout, PictureInput, Preprocess, Resize
from edgeopt.recipes.recipe import Recipe, find_recipe
from edgeopt.steps.embed_preprocess import embed_preprocess

SIZE = (16, 20)
MEANS = {"mean": (123.7, 116.3, 103.5), "std": (58.4, 57.1, 57.4)}
NUMBERS = {"none": {}, "scale": {"scale": 1 / 255}, "means": MEANS, "all": {**MEANS, "mean": (0.485, 0.456, 0.406)}}


def convolution(
    *, pads: int = 0, channels: int = 3, layout: Layout = Layout.NCHW, form: str = "float", is_shared: bool = False
) -> Model:
    """Return a model of one convolution behind its picture; `form`: float, no_bias, grouped or qdq."""
    random, first, nodes = np.random.default_rng(0), "picture", []
    weights = random.normal(size=(4, channels, 3, 3)).astype(np.float32)
    stored = {"weights": weights, "bias": random.normal(size=4).astype(np.float32)}
    if layout is Layout.NHWC:
        nodes.append(helper.make_node("Transpose", [first], ["planes"], perm=[0, 3, 1, 2]))
        first = "planes"
    reads = "weights"
    if form == "qdq":
        scales = np.abs(weights).max(axis=(1, 2, 3)) / 127
        stored["weights"] = np.rint(weights / scales.reshape(-1, 1, 1, 1)).astype(np.int8)
        stored |= {"scales": scales.astype(np.float32), "zeros": np.zeros(4, np.int8)}
        stored |= {"step": np.array(0.03, np.float32), "zero": np.array(110, np.uint8)}
        nodes += [
            helper.make_node("QuantizeLinear", [first, "step", "zero"], ["integers"]),
            helper.make_node("DequantizeLinear", ["integers", "step", "zero"], ["again"]),
            helper.make_node("DequantizeLinear", ["weights", "scales", "zeros"], ["in_float"], axis=0),
        ]
        first, reads = "again", "in_float"
    inputs = [first, reads] if form == "no_bias" else [first, reads, "bias"]
    if form == "grouped":
        stored["weights"] = random.normal(size=(3, 1, 3, 3)).astype(np.float32)
        stored["bias"] = stored["bias"][:3]
    groups = 3 if form == "grouped" else 1
    nodes.append(helper.make_node("Conv", inputs, ["out"], name="first", pads=[pads] * 4, group=groups))
    outputs = ["out"]
    if is_shared:
        nodes.append(helper.make_node("Conv", [first, "weights"], ["other"], name="second"))
        outputs.append("other")
    shape = [1, channels, *SIZE] if layout is Layout.NCHW else [1, *SIZE, channels]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("picture", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(one, TensorProto.FLOAT, None) for one in outputs],
        [numpy_helper.from_array(value, name) for name, value in stored.items()],
    )
    return Model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "first")


def bound(layout: Layout = Layout.NCHW, **preprocess: object) -> Recipe:
    return replace(
        find_recipe("imagenet"),
        input=Input(size=SIZE, layout=layout),
        preprocess=Preprocess(resize=Resize.STRETCH, **preprocess),
    )


def both(model: Model, recipe: Recipe) -> tuple[list[np.ndarray], list[np.ndarray], Counter[str]]:
    """Return the outputs of Python's way and of the embedded one, and the ops in front of the convolution."""
    frame = np.random.default_rng(1).integers(0, 256, (*SIZE, 3), dtype=np.uint8)
    tensor, _ = PictureInput(recipe.input, recipe.preprocess, reuse=False)(frame)
    made = embed_preprocess(model, recipe)
    alone, inside = (ort.InferenceSession(one.data, providers=["CPUExecutionProvider"]) for one in (model, made))
    behind = [one.op_type for one in made.proto.graph.node]
    behind = behind[behind.index("Split") : behind.index("Conv")]
    behind = behind[behind.index("Cast") + 1 :]  # pixels are uint8 from here on
    return alone.run(None, {"picture": tensor}), inside.run(None, {FRAME: frame}), Counter(behind)


def snr_db(wanted: np.ndarray, found: np.ndarray) -> float:
    noise = float(np.square(wanted.astype(np.float64) - found).mean())
    return float("inf") if noise == 0 else 10 * np.log10(float(np.square(wanted, dtype=np.float64).mean()) / noise)


@pytest.mark.parametrize("colour", [Colour.RGB, Colour.BGR])
@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize("form", ["float", "no_bias"])
def test_without_a_border_all_of_it_lies_in_the_weights(form, numbers, colour):
    wanted, found, ops = both(convolution(form=form), bound(colour=colour, **NUMBERS[numbers]))
    assert snr_db(wanted[0], found[0]) > 100
    assert ops == {"Reshape": 1, "Transpose": 1, "Cast": 1}


def test_with_a_border_a_mean_stays_in_front_and_the_rest_moves():
    wanted, found, ops = both(convolution(pads=1), bound(**MEANS))
    assert snr_db(wanted[0], found[0]) > 100
    assert ops == {"Reshape": 1, "Transpose": 1, "Cast": 1, "Add": 1}
    wanted, found, ops = both(convolution(pads=1), bound(scale=1 / 255))
    assert snr_db(wanted[0], found[0]) > 100
    assert ops == {"Reshape": 1, "Transpose": 1, "Cast": 1}


def test_a_model_that_turns_pictures_itself_is_given_no_second_transpose():
    model = convolution(layout=Layout.NHWC)
    wanted, found, ops = both(model, bound(layout=Layout.NHWC, **MEANS))
    assert snr_db(wanted[0], found[0]) > 100
    assert ops == {"Reshape": 1, "Cast": 1, "Transpose": 1}


def test_a_grey_picture_has_one_channel_to_scale():
    recipe = bound(colour=Colour.GREY, mean=(100.0,), std=(50.0,))
    wanted, found, ops = both(convolution(channels=1), recipe)
    assert snr_db(wanted[0], found[0]) > 40  # OpenCV weighs the three in integers: a grey may be one step off
    assert not ops["Mul"]


@pytest.mark.parametrize("options", [{"form": "grouped"}, {"is_shared": True}])
def test_what_other_layers_read_too_stays_and_is_normalised_in_front(options):
    model = convolution(**options)
    wanted, found, ops = both(model, bound(**MEANS))
    assert all(snr_db(a, b) > 100 for a, b in zip(wanted, found, strict=True))
    assert (ops["Gather"], ops["Mul"], ops["Add"]) == (1, 1, 1)


def test_weights_that_another_layer_shares_are_changed_for_the_first_alone():
    model = convolution()
    graph = model.proto.graph
    graph.node.append(helper.make_node("Conv", ["again", "weights"], ["more"], name="second"))
    graph.node.append(helper.make_node("Slice", ["out", "zero", "three", "one"], ["again"]))
    graph.initializer.extend(
        numpy_helper.from_array(np.array([value], np.int64), name)
        for name, value in {"zero": 0, "three": 3, "one": 1}.items()
    )
    graph.node.insert(1, graph.node.pop(2))
    graph.output.append(helper.make_tensor_value_info("more", TensorProto.FLOAT, None))
    wanted, found, _ = both(model, bound(**MEANS))
    assert all(snr_db(a, b) > 90 for a, b in zip(wanted, found, strict=True))


def test_integer_layers_keep_their_weights_and_channels_change_places():
    model = convolution(form="qdq", pads=1)
    wanted, found, ops = both(model, bound(**MEANS))
    assert (ops["Gather"], ops["Mul"], ops["Add"]) == (0, 1, 1)
    # a picture's value on the edge of two integers may fall to either side
    assert snr_db(wanted[0], found[0]) > 40
    before = {one.name: numpy_helper.to_array(one) for one in model.proto.graph.initializer}
    made = {
        one.name: numpy_helper.to_array(one) for one in embed_preprocess(model, bound(**MEANS)).proto.graph.initializer
    }
    np.testing.assert_array_equal(made["preprocess/weight"], before["weights"][:, ::-1])
    np.testing.assert_array_equal(made["scales"], before["scales"])


def test_one_scale_for_all_channels_moves_into_the_step_of_the_integers():
    model = convolution(form="qdq")
    wanted, found, ops = both(model, bound(scale=1 / 64))
    assert not {*ops} & {"Gather", "Mul", "Add"}
    assert snr_db(wanted[0], found[0]) > 40
