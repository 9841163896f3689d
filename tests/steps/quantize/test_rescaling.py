from __future__ import annotations

import numpy as np
import onnx
import pytest
from small_nets import Net, frames, mobile, sqnr_db

from edgeopt.graph.model import Model
from edgeopt.steps.quantize.api import Form, open_graph
from edgeopt.steps.quantize.calibration.findings import study
from edgeopt.steps.quantize.inspection.engine_fusion import read_fusion
from edgeopt.steps.quantize.repairs.rescaling import channel_scales, is_rescalable, rescale
from edgeopt.steps.quantize.search.make import make_variant
from edgeopt.steps.quantize.search.search import search_int8
from edgeopt.steps.quantize.search.variant import first_variant
from edgeopt.system.declared.target import Int8Rules

RULES = Int8Rules()
SPREAD = np.geomspace(0.3, 300, 32, dtype=np.float32).reshape(-1, 1, 1, 1)


def wild(*, depthwise: bool = True, silu: bool = True) -> tuple[Model, str, str]:
    """A network with a tensor of channels 1:1000 behind SiLU; the names of the sum and of the activation."""
    net = Net()
    stem = net.silu(net.conv("x", 3, 32, 3))
    number = len(net.nodes)
    bad = net.conv(stem, 32, 32, 3)
    for name in (f"w{number}", f"b{number}"):
        net.weights[name] = (
            net.weights[name] * SPREAD.reshape(-1, *[1] * (net.weights[name].ndim - 1)) * np.float32(0.1)
        )
    active = net.silu(bad) if silu else net.op("Relu", bad)
    number = len(net.nodes)
    read = net.conv(active, 32, 32, 3, depthwise=depthwise)
    shape = (-1, 1, 1, 1) if depthwise else (1, -1, 1, 1)
    net.weights[f"w{number}"] = net.weights[f"w{number}"] / SPREAD.reshape(shape)
    last = net.silu(net.conv(net.silu(read), 32, 32))
    return net.model(net.conv(last, 32, 8), name="wild"), bad, active


def rescaled(model: Model, *names: str) -> Model:
    graph = open_graph(model)
    seen = study(model, graph, frames(model), RULES).calibration.observations
    assert rescale(graph, seen, names) == len(names)
    made = graph.to_model()
    onnx.checker.check_model(made.proto)
    return made


@pytest.mark.parametrize("depthwise", [True, False])
def test_a_rescaled_model_gives_the_same_answer_and_its_channels_are_alike(depthwise: bool) -> None:
    model, bad, active = wild(depthwise=depthwise)
    made = rescaled(model, bad, active)
    assert sqnr_db(made, model) > 90
    before, after = (study(one, open_graph(one), frames(one), RULES) for one in (model, made))
    assert before.scores_db[bad] < 10
    assert after.scores_db[bad] > 20
    product = next(node for node in made.proto.graph.node if node.name.endswith("_rescaled"))
    assert after.scores_db[product.output[0]] > before.scores_db[active] + 10
    assert made.op_counts["Mul"] == model.op_counts["Mul"] + 2


@pytest.mark.parametrize("form", [Form.QDQ, Form.NHWC])
def test_layers_around_a_bad_tensor_run_on_integers_once_it_is_rescaled(form: Form) -> None:
    model, bad, active = wild()
    made = rescaled(model, bad, active)
    lowered = []
    for one in (model, made):
        findings = study(one, open_graph(one), frames(one), RULES)
        lowered.append(make_variant(one, findings, RULES, first_variant(form))[0].model)
    island, whole = lowered
    assert sqnr_db(whole, model) > 18
    assert read_fusion(whole).unfused == ()
    assert _integer_layers(whole) >= _integer_layers(island) + 2
    assert "Conv" not in read_fusion(whole).op_counts


def _integer_layers(model: Model) -> int:
    counts = read_fusion(model).op_counts
    return counts.get("QLinearConv", 0) + counts.get("MatMulIntegerToFloat", 0)


def test_what_is_read_by_anything_but_convolutions_or_is_an_answer_is_left_alone() -> None:
    model, bad, active = wild()
    graph = open_graph(model)
    assert is_rescalable(graph, active)
    assert is_rescalable(graph, bad)  # two nodes read it, but a convolution makes it
    sigmoid = next(node.output[0] for node in model.proto.graph.node if node.op_type == "Sigmoid")
    assert not is_rescalable(graph, sigmoid)
    assert not is_rescalable(graph, model.outputs[0].name)
    assert not is_rescalable(graph, "nothing of this name")
    assert rescale(graph, {}, [bad, active]) == 0
    assert graph.to_model().op_counts == model.op_counts


@pytest.mark.parametrize("width", [32, 24])
def test_a_tensor_that_products_read_along_its_width_is_left_alone(width: int) -> None:
    net = Net(size=width)
    x = net.conv("x", 3, 32)
    w = net.constant("w", net.chance.normal(0, 0.2, (width, width)).astype(np.float32))
    model = net.model(net.conv(net.op("Relu", net.op("MatMul", x, w)), 32, 8))
    graph = open_graph(model)
    assert not is_rescalable(graph, x)
    assert rescale(graph, study(model, graph, frames(model), RULES).calibration.observations, [x]) == 0


def test_channels_that_say_nothing_keep_their_scale() -> None:
    scale = channel_scales(np.array([0.0, 4.0, 1.0]))
    np.testing.assert_allclose(scale, [1.0, 2.0, 0.5])
    assert channel_scales(np.zeros(3)).tolist() == [1.0, 1.0, 1.0]


def test_the_search_rescales_before_it_settles_for_a_float_island() -> None:
    model, bad, active = wild()

    def agreement(one: Model) -> float:
        return min(max(sqnr_db(one, model) / 20, 0.0), 1.0)

    found = search_int8(
        model, frames(model), RULES, agreement=agreement, speed=lambda one: 1 + _integer_layers(one) / 10
    )
    assert "2 tensors rescaled" in found.attempts[0].name
    assert {bad, active} & found.scores_db.keys()
    untouched = search_int8(mobile(), frames(mobile()), RULES, agreement=lambda one: 0.99, speed=lambda one: 1.2)
    assert not any("rescaled" in one.name for one in untouched.attempts)
