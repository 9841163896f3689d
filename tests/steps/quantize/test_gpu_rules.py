"""TensorRT's INT8 rules: symmetric grids, real biases, narrow convolutions in float, sums inside the kernel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper
from small_nets import Net, frames

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.drift import measure_drift
from edgeopt.graph.model import Model
from edgeopt.steps.quantize.api import quantize
from edgeopt.system.declared.target import Int8Rules, Target, read_target
from edgeopt.system.disk import assets

TARGET = read_target(assets.folder("targets") / "nvidia-tensorrt.toml")
assert isinstance(TARGET, Target)
RULES = TARGET.int8


def block(*, both: bool = False) -> Model:
    """A narrow stem, a wide convolution, then a residual sum whose shortcut is a convolution too if `both`."""
    net = Net(size=16)
    stem = net.op("Relu", net.conv("x", 3, 24, 3))
    first = net.op("Relu", net.conv(stem, 24, 32, 3))
    branch = net.conv(net.op("Relu", net.conv(first, 32, 32, 3)), 32, 32, 3)
    shortcut = net.conv(first, 32, 32) if both else first
    total = net.op("Relu", net.op("Add", branch, shortcut))
    return net.model(net.op("Relu", net.conv(total, 32, 32, 1)), name="block")


def made(model: Model, rules: Int8Rules = RULES) -> Model:
    return quantize(model, frames(model), rules).model


def producers(model: Model) -> dict[str, onnx.NodeProto]:
    return {name: node for node in model.proto.graph.node for name in node.output}


def sources_of(model: Model, op: str) -> list[list[str]]:
    """Return the ops that make the inputs of each node of one op; the empty word for constants."""
    made_by = producers(model)
    nodes = [node for node in model.proto.graph.node if node.op_type == op]
    return [[made_by[name].op_type if name in made_by else "" for name in node.input] for node in nodes]


def test_every_grid_is_symmetric_int8():
    model = made(block())
    points = [one for one in model.proto.graph.initializer if one.name.endswith("zero_point")]
    assert len(points) > 6
    assert {onnx.TensorProto.DataType.Name(one.data_type) for one in points} == {"INT8"}
    assert all(not numpy_helper.to_array(one).any() for one in points)


def test_no_32_bit_integer_is_left_for_the_parser():
    assert not [one for one in made(block()).proto.graph.initializer if one.data_type == onnx.TensorProto.INT32]
    plain = made(block(), replace(RULES, float_bias=False))
    assert [one for one in plain.proto.graph.initializer if one.data_type == onnx.TensorProto.INT32]


def weight_sources(model: Model) -> list[str]:
    return [one[1] for one in sources_of(model, "Conv")]


def test_a_convolution_with_few_channels_stays_float():
    assert weight_sources(made(block())) == ["", *["DequantizeLinear"] * 4]
    assert weight_sources(made(block(), replace(RULES, narrow_channels=0))) == ["DequantizeLinear"] * 5


def test_channels_are_counted_over_all_groups():
    net = Net(size=16, channels=16)
    wide = net.op("Relu", net.conv("x", 16, 16, 3, depthwise=True))
    narrow = net.model(net.op("Relu", net.conv(wide, 16, 15)), name="narrow")
    assert weight_sources(made(narrow)) == ["DequantizeLinear", ""]


def test_the_convolution_before_a_sum_hands_over_real_numbers_and_the_shortcut_integers():
    assert sources_of(made(block()), "Add") == [["Conv", "DequantizeLinear"]]
    assert sources_of(made(block(), replace(RULES, fused_sums=False)), "Add") == [["DequantizeLinear"] * 2]


def test_of_two_convolutions_before_a_sum_only_one_hands_over_real_numbers():
    assert sources_of(made(block(both=True)), "Add") == [["Conv", "DequantizeLinear"]]


@pytest.mark.parametrize("both", [False, True])
def test_the_quantized_block_still_answers_like_the_float_one(both):
    model = block(both=both)
    before, after = (EXECUTOR.open(one.data, SessionOptions()) for one in (model, made(model)))
    worst = min(measure_drift(before.run(one), after.run(one)).cosine for one in list(frames(model))[:4])
    assert worst > 0.98


def test_a_corrected_bias_is_written_though_it_stays_real():
    model = block()
    before, after = (bias_of_each(one) for one in (model, made(model)))
    moved = {name: np.abs(after[name] - before[name]).max() for name in before}
    assert moved.pop("node_conv_0") == 0  # the stem is not quantized, so there is nothing to correct
    assert all(0 < one < 0.1 for one in moved.values())


def bias_of_each(model: Model) -> dict[str, NDArray[np.float32]]:
    constants = {one.name: numpy_helper.to_array(one) for one in model.proto.graph.initializer}
    return {node.name: constants[node.input[2]] for node in model.proto.graph.node if node.op_type == "Conv"}
