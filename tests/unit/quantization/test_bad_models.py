from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper
from small_nets import Net, answers, frames, mobile

from edgeopt.errors import UnsupportedError
from edgeopt.model import Model
from edgeopt.quantization.quantize import Form, is_quantizable, quantize
from edgeopt.target import Int8Rules


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_weight_that_is_not_finite_is_refused_by_name(bad: float) -> None:
    model = mobile()
    tensor = next(one for one in model.proto.graph.initializer if one.name == "w0")
    weight = numpy_helper.to_array(tensor).copy()
    weight[0, 0, 0, 0] = bad
    tensor.CopyFrom(numpy_helper.from_array(weight, "w0"))
    with pytest.raises(UnsupportedError, match="initializer 'w0' holds NaN or infinity"):
        quantize(Model(model.proto, "broken"), frames(model), Int8Rules())


@pytest.mark.parametrize("form", Form)
def test_weights_shared_by_two_layers_serve_both(form: Form) -> None:
    net = Net(channels=8)
    w = net.constant("shared", net.chance.normal(0, 0.3, (8, 8, 3, 3)).astype(np.float32))
    x = net.op("Relu", net.op("Conv", "x", w, pads=[1] * 4))
    x = net.op("Relu", net.op("Conv", x, w, pads=[1] * 4))
    model = net.model(net.conv(x, 8, 4))
    made = quantize(model, frames(model), Int8Rules(), form=form).model
    expected, actual = answers(model, model), answers(made, model)
    assert np.corrcoef(expected, actual)[0, 1] > 0.99


@pytest.mark.parametrize("form", Form)
def test_channels_of_zeros_with_a_bias_keep_it(form: Form) -> None:
    net = Net()
    x = net.op("Relu", net.conv("x", 3, 8, 3))
    net.weights["w0"][2:5] = 0
    net.weights["b0"][2:5] = 3.0
    model = net.model(net.op("Relu", net.conv(x, 8, 4)))
    made = quantize(model, frames(model), Int8Rules(), form=form).model
    np.testing.assert_allclose(answers(made, model), answers(model, model), atol=0.05 * answers(model, model).max())


@pytest.mark.parametrize("form", Form)
def test_a_convolution_with_dynamic_weights_stays_as_it_is(form: Form) -> None:
    net = Net(channels=4, size=8)
    dynamic = net.op("Relu", net.constant("w", net.chance.normal(size=(4, 4, 1, 1)).astype(np.float32)))
    x = net.op("Relu", net.op("Conv", "x", dynamic))
    model = net.model(net.conv(net.op("Relu", net.conv(x, 4, 8, 3)), 8, 4))
    made = quantize(model, frames(model), Int8Rules(), form=form).model
    assert made.op_counts["Conv"] >= 1
    assert np.corrcoef(answers(model, model, 1), answers(made, model, 1))[0, 1] > 0.99


@pytest.mark.parametrize("form", Form)
def test_subnormal_activations_do_not_break_the_model(form: Form) -> None:
    net = Net()
    x = net.op("Mul", net.op("Relu", net.conv("x", 3, 8, 3)), net.constant("tiny", np.float32(1e-39)))
    model = net.model(net.conv(x, 8, 4))
    made = quantize(model, frames(model), Int8Rules(), form=form).model
    assert np.isfinite(answers(made, model)).all()


def test_a_model_without_weighted_layers_has_nothing_to_quantize() -> None:
    net = Net()
    model = net.model(net.op("Relu", "x"))
    assert not is_quantizable(model, Int8Rules())
    assert is_quantizable(mobile(), Int8Rules())


@pytest.mark.parametrize("form", Form)
def test_a_tensor_that_is_output_and_input_of_layers_keeps_its_name_and_value(form: Form) -> None:
    net = Net()
    middle = net.op("Relu", net.conv("x", 3, 8, 3))
    model = net.model(middle, net.op("Relu", net.conv(middle, 8, 4, 3)))
    made = quantize(model, frames(model), Int8Rules(), form=form).model
    assert [one.name for one in made.outputs] == [one.name for one in model.outputs]
    assert np.corrcoef(answers(model, model), answers(made, model))[0, 1] > 0.995
