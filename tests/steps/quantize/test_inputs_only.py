"""The form for OpenVINO: pairs on what weighted layers read, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest
from small_nets import ALL, Net, detector, frames, mobile, residual, sqnr_db

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.model import Model
from edgeopt.steps.quantize.api import Form, quantize
from edgeopt.system.declared.target import Granularity, Int8Rules


def in_inputs(model: Model, **rules: object) -> Model:
    return quantize(model, frames(model), Int8Rules(**rules), form=Form.INPUTS).model


@pytest.mark.parametrize("name", ALL)
def test_every_pair_feeds_weighted_layers_only_or_what_moves_values_to_them(name: str) -> None:
    graph = in_inputs(ALL[name]()).proto.graph
    weighted = {node.output[0]: node for node in graph.node if node.op_type in ("Conv", "Gemm", "MatMul")}
    activations = [node for node in graph.node if node.op_type == "QuantizeLinear"]
    assert activations
    real = {
        other.output[0]
        for node in activations
        for other in graph.node
        if other.input and other.input[0] == node.output[0]
    }
    for node in graph.node:
        for i, value in enumerate(node.input):
            if value in real and node.op_type not in ("MaxPool", "Concat", "Resize"):
                assert (node.output[0] in weighted, i) == (True, 0), f"{node.op_type} reads a pair"


def behind(model: Model) -> list[tuple[str, str]]:
    """Return what each activation's DequantizeLinear is read by, and what makes what its QuantizeLinear reads."""
    nodes = model.proto.graph.node
    made = {one: node.op_type for node in nodes for one in node.output}
    pairs = [
        (node, other)
        for node in nodes
        for other in nodes
        if node.op_type == "QuantizeLinear" and node.output[0] in other.input
    ]
    return sorted(
        (made.get(first.input[0], "input"), node.op_type)
        for first, second in pairs
        for node in nodes
        if second.output[0] in node.input
    )


def test_pairs_go_in_front_of_what_only_moves_values() -> None:
    net = Net()
    x = net.op("Relu", net.conv("x", 3, 8, 3))
    sides = [net.op("Relu", net.conv(x, 8, 8)), net.op("HardSigmoid", net.conv(x, 8, 8, 3))]
    pooled = net.op("MaxPool", net.op("Concat", *sides, axis=1), kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2])
    scales = net.constant("scales", np.array([1, 1, 2, 2], np.float32))
    larger = net.op("Resize", pooled, "", scales, mode="nearest")
    model = net.model(net.conv(larger, 16, 4))
    made = in_inputs(model)
    assert behind(made) == [
        ("HardSigmoid", "Concat"),
        ("Relu", "Concat"),
        ("Relu", "Conv"),
        ("Relu", "Conv"),
        ("input", "Conv"),
    ]
    assert sqnr_db(made, model) > 25


@pytest.mark.parametrize("op", ["output", "reader", "linear"])
def test_a_pair_stays_behind_what_else_is_read_or_makes_values(op: str) -> None:
    net = Net()
    x = net.op("Relu", net.conv("x", 3, 8, 3))
    if op == "linear":
        scales = net.constant("scales", np.array([1, 1, 2, 2], np.float32))
        moved = net.op("Resize", x, "", scales, mode="linear")
    else:
        moved = net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    last = net.conv(moved, 8, 4)
    others = {"output": [moved], "reader": [net.op("Sigmoid", x)], "linear": []}[op]
    made = in_inputs(net.model(last, *others))
    assert ("Resize" if op == "linear" else "MaxPool", "Conv") in behind(made)


def test_a_tensor_that_several_layers_read_gets_one_pair() -> None:
    net = Net()
    x = net.op("Relu", net.conv("x", 3, 8, 3))
    both = net.op("Relu", net.op("Concat", net.conv(x, 8, 4), net.conv(x, 8, 6, 3), axis=1))
    counts = in_inputs(net.model(net.conv(both, 10, 5))).op_counts
    assert counts["QuantizeLinear"] == 3  # the picture, x and both
    assert counts["DequantizeLinear"] == 3 + 4


def test_weights_are_stored_as_integers_with_a_scale_a_channel_and_biases_stay_real() -> None:
    graph = in_inputs(residual()).proto.graph
    stored = {one.name: one for one in graph.initializer}
    producers = {node.output[0]: node for node in graph.node}
    for node in graph.node:
        if node.op_type == "Conv":
            weight = producers[node.input[1]]
            assert (weight.op_type, stored[weight.input[0]].data_type) == ("DequantizeLinear", 3)
            assert list(stored[weight.input[1]].dims) == [stored[weight.input[0]].dims[0]]
            assert stored[node.input[2]].data_type == 1


def test_one_scale_for_all_channels_where_the_rules_say_so() -> None:
    graph = in_inputs(mobile(), weight_granularity=Granularity.PER_TENSOR).proto.graph
    stored = {one.name: one for one in graph.initializer}
    scales = [stored[node.input[1]] for node in graph.node if node.op_type == "DequantizeLinear"]
    assert all(not list(one.dims) for one in scales)


def test_a_layer_whose_input_no_grid_can_hold_stays_float_and_the_one_that_makes_it_does_not() -> None:
    net = Net()
    made = net.conv("x", 3, 8, 3)
    spread = net.constant("spread", np.logspace(-4, 3, 8, dtype=np.float32).reshape(1, 8, 1, 1))
    model = net.model(net.conv(net.op("Relu", net.conv(net.op("Mul", made, spread), 8, 8)), 8, 4))
    graph = in_inputs(model).proto.graph
    producers = {node.output[0]: node.op_type for node in graph.node}
    weights = [producers.get(node.input[1]) for node in graph.node if node.op_type == "Conv"]
    assert weights == ["DequantizeLinear", None, "DequantizeLinear"]


def test_the_answer_stays_close_on_an_engine_that_fuses_none_of_it() -> None:
    model = detector()
    after = in_inputs(model)
    for frame in frames(model, 2, seed=5):
        expected, actual = (EXECUTOR.open(one.data, SessionOptions()).run(frame) for one in (model, after))
        for name, value in expected.items():
            assert np.corrcoef(value.ravel(), actual[name].ravel())[0, 1] > 0.99
