"""Networks with values that a grid does not like: all zero, all the same, below the normal numbers, huge."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from small_nets import HERE, Net, answers, frames, mobile, sqnr_db

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.steps.quantize.api import Form, quantize


def dead_activation(net: Net) -> str:
    """All zero, whatever the picture."""
    x = net.op("Relu", net.op("Add", net.conv("x", 3, 8, 3), net.constant("far", np.float32(-1e6))))
    return net.op("Relu", net.conv(x, 8, 8))


def one_value(net: Net) -> str:
    """A tensor that is 2.5 everywhere, so that the next differs at its border only."""
    x = net.conv("x", 3, 8, 3)
    net.weights["w0"][:], net.weights["b0"][:] = 0, 2.5
    return net.op("Relu", net.conv(net.op("Relu", x), 8, 8, 3))


def one_value_below_zero(net: Net) -> str:
    x = net.conv("x", 3, 8, 3)
    net.weights["w0"][:], net.weights["b0"][:] = 0, -2.5
    return net.op("Add", net.conv(x, 8, 8, 3), net.conv("x", 3, 8))


def a_constant_channel_each(net: Net) -> str:
    """Channels of one value, no two alike."""
    x = net.conv("x", 3, 8, 3)
    net.weights["w0"][:], net.weights["b0"][:] = 0, np.linspace(-3, 4, 8)
    return net.op("Relu", net.conv(net.op("LeakyRelu", x), 8, 8, 3))


def channels_of_zeros(net: Net) -> str:
    x = net.op("Relu", net.conv("x", 3, 8, 3))
    net.weights["w0"][2:5] = net.weights["b0"][2:5] = 0
    return net.op("Relu", net.conv(x, 8, 8))


def channels_of_zeros_with_a_bias(net: Net) -> str:
    x = net.op("Relu", net.conv("x", 3, 8, 3))
    net.weights["w0"][2:5], net.weights["b0"][2:5] = 0, 3.0
    return net.op("Relu", net.conv(x, 8, 8))


def a_layer_of_zeros(net: Net) -> str:
    x = net.op("Relu", net.conv("x", 3, 8, 3))
    net.weights["w0"][:] = net.weights["b0"][:] = 0
    return net.op("Relu", net.conv(x, 8, 8))


def weights_below_the_normal_numbers(net: Net) -> str:
    x = net.op("Relu", net.conv("x", 3, 8, 3))
    net.weights["w0"][1:3] *= np.float32(1e-40)
    return net.op("Relu", net.conv(x, 8, 8))


def activations_below_the_normal_numbers(net: Net) -> str:
    x = net.op("Mul", net.op("Relu", net.conv("x", 3, 8, 3)), net.constant("tiny", np.float32(1e-39)))
    return net.op("Relu", net.conv(x, 8, 8))


def tiny_and_large_again(net: Net) -> str:
    """Values that no grid holds, made large again by the next layer."""
    x = net.op("Relu", net.conv("x", 3, 8, 3))
    net.weights["w0"] *= np.float32(1e-25)
    net.weights["b0"] *= np.float32(1e-25)
    number = len(net.nodes)
    x = net.op("Relu", net.conv(x, 8, 8))
    net.weights[f"w{number}"] *= np.float32(1e25)
    return net.op("Relu", net.conv(x, 8, 8))


def huge(net: Net) -> str:
    x = net.op("Relu", net.conv("x", 3, 8, 3))
    net.weights["w0"] *= np.float32(1e30)
    number = len(net.nodes)
    x = net.op("Relu", net.conv(x, 8, 8))
    net.weights[f"w{number}"] *= np.float32(1e-30)
    return net.op("Relu", net.conv(x, 8, 8))


def shared_weights(net: Net) -> str:
    w = net.constant("shared", net.chance.normal(0, 0.3, (8, 8, 3, 3)).astype(np.float32))
    x = net.op("Relu", net.conv("x", 3, 8))
    for _ in range(2):
        x = net.op("Relu", net.op("Conv", x, w, pads=[1] * 4))
    return x


def weights_that_are_added_too(net: Net) -> str:
    w = net.constant("shared", net.chance.normal(0, 0.3, (8, 8, 1, 1)).astype(np.float32))
    x = net.op("Relu", net.op("Conv", net.op("Relu", net.conv("x", 3, 8)), w))
    mean = net.op("ReduceMean", w, axes=[1, 2, 3], keepdims=1)
    row = net.op("Reshape", mean, net.constant("row", np.array([1, 8, 1, 1])))
    return net.op("Relu", net.conv(net.op("Add", x, row), 8, 8))


def dynamic_weights(net: Net) -> str:
    w = net.op("Relu", net.constant("w", net.chance.normal(size=(8, 8, 1, 1)).astype(np.float32)))
    x = net.op("Relu", net.op("Conv", net.op("Relu", net.conv("x", 3, 8)), w))
    return net.op("Relu", net.conv(x, 8, 8, 3))


ODD: dict[str, Callable[[Net], str]] = {
    one.__name__: one
    for one in (
        dead_activation,
        one_value,
        one_value_below_zero,
        a_constant_channel_each,
        channels_of_zeros,
        channels_of_zeros_with_a_bias,
        a_layer_of_zeros,
        weights_below_the_normal_numbers,
        activations_below_the_normal_numbers,
        tiny_and_large_again,
        huge,
        shared_weights,
        weights_that_are_added_too,
        dynamic_weights,
    )
}


@pytest.mark.parametrize("form", Form)
@pytest.mark.parametrize("name", ODD)
def test_an_odd_network_answers_as_in_float(name: str, form: Form) -> None:
    net = Net()
    model = net.model(net.conv(ODD[name](net), 8, 4, 3))
    made = quantize(model, frames(model), HERE, form=form).model
    expected, actual = answers(model, model), answers(made, model)
    assert np.isfinite(expected).all()
    assert np.ptp(expected) > 0
    np.testing.assert_allclose(actual, expected, rtol=0, atol=0.08 * np.abs(expected).max())
    assert sqnr_db(made, model) > 25


@pytest.mark.parametrize("form", Form)
@pytest.mark.parametrize("colour", [0.0, 255.0])
def test_pictures_of_one_colour_are_answered_as_in_float(colour: float, form: Form) -> None:
    model = mobile()
    pictures = [{"x": np.full((1, 3, 32, 32), colour, np.float32)}] * 2
    outcome = quantize(model, pictures, HERE, form=form)
    sessions = [EXECUTOR.open(one.data, SessionOptions()) for one in (model, outcome.model)]
    (expected,), (actual,) = ([*session.run(pictures[0]).values()] for session in sessions)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=0.08 * np.abs(expected).max())
    assert any("the 2 calibration images are alike" in note.detail for note in outcome.notes)
