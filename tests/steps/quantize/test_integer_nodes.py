"""Which nodes join the integers, and which layers a form counts among them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from small_nets import Net, answers, frames

from edgeopt.graph.model import Model
from edgeopt.steps.quantize.api import Form, quantize
from edgeopt.system.declared.target import Int8Rules


def quantized(model: Model, form: Form) -> Model:
    return quantize(model, frames(model), Int8Rules(), form=form).model


@pytest.mark.parametrize("form", Form)
def test_sizes_that_are_computed_between_layers_get_no_grid(form: Form) -> None:
    net = Net()
    x = net.op("Relu", net.conv(net.op("Relu", net.conv("x", 3, 16, 3)), 16, 16))
    shape, axes = net.op("Shape", x), net.constant("axes", np.array([0]))
    sizes = [net.op("Gather", shape, net.constant(f"at{i}", np.array(i))) for i in range(4)]
    rows = net.op("Reshape", x, net.op("Concat", *(net.op("Unsqueeze", one, axes) for one in sizes), axis=0))
    model = net.model(net.conv(rows, 16, 8))
    assert np.corrcoef(answers(model, model), answers(quantized(model, form), model))[0, 1] > 0.99


@pytest.mark.parametrize("form", Form)
def test_a_resize_that_makes_values_beyond_the_border_gets_no_grid_of_what_it_reads(form: Form) -> None:
    net = Net()
    x = net.op("Relu", net.conv("x", 3, 16, 3))
    crop = net.constant("crop", np.array([0, 0, 0, 0, 1, 1, 2, 2], np.float32))
    scales = net.constant("scales", np.array([1, 1, 2, 2], np.float32))
    how = {"mode": "nearest", "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": -9.0}
    x = net.op("Resize", x, crop, scales, **how)
    model = net.model(net.conv(net.op("Relu", net.conv(x, 16, 16, 3)), 16, 8))
    assert np.corrcoef(answers(model, model), answers(quantized(model, form), model))[0, 1] > 0.99


def series(seed: int = 0) -> Model:
    """A network of one-dimensional convolutions."""
    chance, nodes = np.random.default_rng(seed), "x = Squeeze(picture, axis)"
    shapes = {"a": (16, 3, 3), "b": (16, 16, 3), "c": (8, 16, 3)}
    weights = {name: chance.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    for source, name, made in (("x", "a", "p"), ("r", "b", "q"), ("s", "c", "y")):
        after = {"p": " r = Relu(p)", "q": " s = Relu(q)"}.get(made, "")
        nodes += f" {made} = Conv<pads = [1, 1]>({source}, {name}){after}"
    text = (
        f'<ir_version: 8, opset_import: ["": 17]> series (float[1,3,1,64] picture) => (float[1,8,64] y) {{ {nodes} }}'
    )
    proto = onnx.parser.parse_model(text)
    stored = {**weights, "axis": np.array([2])}
    proto.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in stored.items())
    return Model(onnx.shape_inference.infer_shapes(proto), "series")


@pytest.mark.parametrize("form", Form)
def test_layers_without_integers_in_a_form_are_not_counted_as_such(form: Form) -> None:
    model = series()
    chance = np.random.default_rng(1)
    pictures = [{"picture": chance.normal(0, 1, (1, 3, 1, 64)).astype(np.float32)} for _ in range(4)]
    outcome = quantize(model, pictures, Int8Rules(), form=form)
    said = [note.detail for note in outcome.notes]
    on_integers = form in (Form.QDQ, Form.INPUTS)
    assert f"INT8 covers {3 if on_integers else 0} of 3 weighted layers" in said
    assert any("3 layers stay in float: the form" in one for one in said) == (not on_integers)
    assert ("DequantizeLinear" in outcome.model.op_counts) == on_integers
