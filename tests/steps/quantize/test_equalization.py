from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from small_nets import Net, answers, frames

from edgeopt.graph.model import Model
from edgeopt.steps.quantize.api import open_graph, quantize
from edgeopt.steps.quantize.calibration.findings import study
from edgeopt.steps.quantize.repairs.equalization import equalize, factors
from edgeopt.system.declared.target import Int8Rules


def unequal(activation: str, *, depthwise: bool = False) -> Model:
    """Two convolutions whose channels between differ by three orders of magnitude."""
    net = Net()
    x = net.conv("x", 3, 16, 3)
    net.weights["w0"] *= np.logspace(0, -3, 16).reshape(-1, 1, 1, 1).astype(np.float32)
    net.weights["b0"] *= np.logspace(0, -3, 16).astype(np.float32)
    x = net.op(activation, x)
    second = net.conv(x, 16, 16, 3, depthwise=depthwise)
    name = f"w{len(net.nodes) - 1}"
    rise = np.logspace(0, 3, 16).astype(np.float32)
    net.weights[name] *= rise.reshape(-1, 1, 1, 1) if depthwise else rise.reshape(1, -1, 1, 1)
    return net.model(net.op("Relu", second))


@pytest.mark.parametrize("depthwise", [False, True])
@pytest.mark.parametrize("activation", ["Relu", "LeakyRelu", "Identity"])
def test_equalizing_leaves_the_answer_as_it_was(activation: str, depthwise: bool) -> None:
    model = unequal(activation, depthwise=depthwise)
    graph = open_graph(model)
    seen = study(model, graph, frames(model), Int8Rules()).calibration.observations
    assert equalize(graph, seen) == (0 if activation == "Identity" else 1)
    np.testing.assert_allclose(answers(graph.to_model(), model), answers(model, model), rtol=1e-3, atol=1e-3)


def test_equalizing_makes_integers_lose_less() -> None:
    model = unequal("Relu")
    graph = open_graph(model)
    equalize(graph, study(model, graph, frames(model), Int8Rules()).calibration.observations)
    expected = answers(model, model)

    def loss(one: Model) -> float:
        made = quantize(one, frames(one), Int8Rules(), least_db=-200).model
        return float(np.square(answers(made, model) - expected).sum())

    assert loss(graph.to_model()) < loss(model) / 10


@pytest.mark.parametrize("activation", ["Sigmoid", "HardSwish"])
def test_activations_that_do_not_scale_are_left_alone(activation: str) -> None:
    model = unequal(activation)
    graph = open_graph(model)
    assert equalize(graph, study(model, graph, frames(model), Int8Rules()).calibration.observations) == 0


def test_a_tensor_read_twice_is_left_alone() -> None:
    net = Net()
    x = net.op("Relu", net.conv("x", 3, 8))
    model = net.model(net.conv(x, 8, 4), net.conv(x, 8, 4))
    graph = open_graph(model)
    assert equalize(graph, study(model, graph, frames(model), Int8Rules()).calibration.observations) == 0


@given(hnp.arrays(np.float64, 8, elements=st.floats(0, 1e6)), hnp.arrays(np.float64, 8, elements=st.floats(0, 1e6)))
def test_factors_are_bounded_and_silent_channels_keep_theirs(activation: np.ndarray, reading: np.ndarray) -> None:
    made = factors(activation, reading)
    assert ((made >= 1 / 64.001) & (made <= 64.001)).all()
    assert (made[(activation == 0) | (reading == 0)] == 1).all()
