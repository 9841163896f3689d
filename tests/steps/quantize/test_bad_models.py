from __future__ import annotations

import numpy as np
import pytest
from encoders import encoder
from onnx import helper, numpy_helper
from small_nets import HERE, Net, answers, frames, mobile, sqnr_db

from edgeopt.errors import UnsupportedError
from edgeopt.graph.model import Model
from edgeopt.steps.quantize.api import Form, is_quantizable, quantize


@pytest.mark.parametrize(("bad", "words"), [([np.nan], "NaN"), ([np.inf], "infinity"), ([np.inf, -np.inf], "infinity")])
@pytest.mark.parametrize("in_a_node", [False, True])
def test_a_weight_that_is_not_finite_is_refused_by_name(bad: list[float], words: str, in_a_node: bool) -> None:
    model = mobile()
    graph = model.proto.graph
    tensor = next(one for one in graph.initializer if one.name == "w0")
    weight = numpy_helper.to_array(tensor).copy()
    weight.reshape(-1)[: len(bad)] = bad
    tensor.CopyFrom(numpy_helper.from_array(weight, "w0"))
    if in_a_node:
        graph.node.insert(0, helper.make_node("Constant", [], ["w0"], value=tensor))
        graph.initializer.remove(tensor)
    with pytest.raises(UnsupportedError, match=f"constant 'w0' holds {words}\n"):
        quantize(Model(model.proto, "broken"), frames(model), HERE)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_limit_that_is_no_number_is_no_weight(bad: float) -> None:
    net = Net()
    x = net.op("Clip", net.conv("x", 3, 8, 3), "", net.constant("most", np.float32(bad)))
    model = net.model(net.conv(x, 8, 4))
    made = quantize(model, frames(model), HERE).model
    if np.isinf(bad):
        assert sqnr_db(made, model) > 25
    assert list(np.isnan(answers(made, model))) == list(np.isnan(answers(model, model)))


@pytest.mark.parametrize("form", Form)
def test_a_mask_may_hold_minus_infinity(form: Form) -> None:
    model = encoder(causal=True)
    made = quantize(model, frames(model, seed=9), HERE, form=form).model  # the very inputs that are compared
    assert sqnr_db(made, model) > 12


@pytest.mark.parametrize("form", Form)
@pytest.mark.parametrize("endless", [-np.inf, np.nan])
def test_what_is_infinite_or_nan_stays_real_with_the_layers_around_it(form: Form, endless: float) -> None:
    """A mask that the model computes, padding for one, is in no constant: calibration meets it."""
    net = Net()
    first = net.op("Relu", net.conv("x", 3, 8, 3))
    bright = net.op("ReduceMean", "x", axes=[1], keepdims=1)
    is_padding = net.op("Greater", bright, net.constant("limit", np.float32(0.5)))
    masked = net.op("Where", is_padding, net.constant("endless", np.float32(endless)), first)
    small = net.op("Where", net.op("Greater", masked, net.constant("zero", np.float32(0))), masked, first)
    last = net.conv(net.op("Relu", net.conv(small, 8, 8, 3)), 8, 4, 3)
    model = net.model(last, masked, net.op("Add", masked, first))
    made = quantize(model, frames(model), HERE, form=form)
    (note,) = [one for one in made.notes if "without a grid" in one.detail]
    word = "NaN" if np.isnan(endless) else "infinite"
    assert f"{word} for calibration image 1" in note.detail
    assert masked in note.names
    found, expected = answers(made.model, model), answers(model, model)
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(expected))


def test_a_bias_of_infinity_is_refused_by_name() -> None:
    model = mobile()
    bias = next(one for one in model.proto.graph.node if one.op_type == "Conv" and len(one.input) == 3).input[2]
    tensor = next(one for one in model.proto.graph.initializer if one.name == bias)
    numbers = numpy_helper.to_array(tensor).copy()
    numbers[0] = np.inf
    tensor.CopyFrom(numpy_helper.from_array(numbers, bias))
    with pytest.raises(UnsupportedError, match=f"constant '{bias}' holds infinity\n"):
        quantize(Model(model.proto, "broken"), frames(model), HERE)


def test_a_model_without_weighted_layers_has_nothing_to_quantize() -> None:
    net = Net()
    model = net.model(net.op("Relu", "x"))
    assert not is_quantizable(model, HERE)
    assert is_quantizable(mobile(), HERE)


@pytest.mark.parametrize("form", Form)
def test_a_tensor_that_is_output_and_input_of_layers_keeps_its_name_and_value(form: Form) -> None:
    net = Net()
    middle = net.op("Relu", net.conv("x", 3, 8, 3))
    model = net.model(middle, net.op("Relu", net.conv(middle, 8, 4, 3)))
    made = quantize(model, frames(model), HERE, form=form).model
    assert [one.name for one in made.outputs] == [one.name for one in model.outputs]
    assert np.corrcoef(answers(model, model), answers(made, model))[0, 1] > 0.995
