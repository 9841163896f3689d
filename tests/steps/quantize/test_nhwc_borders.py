"""Where the NHWC form changes layout and numbers: before what ONNX Runtime would move, and once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from small_nets import Net, frames

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.model import Model
from edgeopt.steps.quantize.api import Form, open_graph
from edgeopt.steps.quantize.calibration.findings import study
from edgeopt.steps.quantize.patterns import key
from edgeopt.steps.quantize.search.make import make_variant
from edgeopt.steps.quantize.search.variant import first_variant
from edgeopt.system.declared.target import Int8Rules


def quantized(source: Model, in_float: int = 0) -> Model:
    """The NHWC form, the first layers in float."""
    findings = study(source, open_graph(source), frames(source, 8), Int8Rules())
    layers = [key(node) for node in open_graph(source).nodes("Conv")][:in_float]
    variant = replace(first_variant(Form.NHWC), front=frozenset(layers))
    return make_variant(source, findings, Int8Rules(), variant)[0].model


def agrees(model: Model, source: Model) -> bool:
    one = next(iter(frames(source, 1, seed=5)))
    expected, actual = (next(iter(EXECUTOR.open(m.data, SessionOptions()).run(one).values())) for m in (source, model))
    error = np.sqrt(np.mean((actual - expected) ** 2) / np.mean(expected**2))
    return bool(error < 0.1)


def engine_ops(model: Model, place: Path) -> list[onnx.NodeProto]:
    file = place / "optimized.onnx"
    EXECUTOR.open(model.data, SessionOptions(save_optimized_to=str(file))).close()
    return list(onnx.load(file).graph.node)


def test_behind_a_float_convolution_the_layout_changes_before_its_silu(tmp_path) -> None:
    net = Net()
    x = net.silu(net.conv("x", 3, 32, 3))
    x = net.silu(net.conv(x, 32, 32, 3))
    source = net.model(net.conv(x, 32, 16))
    made = quantized(source, in_float=1)
    assert agrees(made, source)
    before = {name: node for node in made.proto.graph.node for name in node.output}
    gelu = next(node for node in made.proto.graph.node if node.op_type == "QuickGelu")
    assert before[gelu.input[0]].op_type == "Transpose"
    assert before[before[gelu.input[0]].input[0]].op_type == "Conv"
    assert not [node for node in engine_ops(made, tmp_path) if node.op_type == "Transpose" and "quick" in node.input[0]]


def test_where_another_float_layer_reads_it_too_the_silu_stays_where_it_was() -> None:
    net = Net()
    x = net.silu(net.conv("x", 3, 32, 3))
    kept = net.conv(x, 32, 16)
    source = net.model(net.op("Add", kept, net.conv(net.silu(net.conv(x, 32, 32, 3)), 32, 16)))
    made = quantized(source, in_float=2)
    assert agrees(made, source)
    assert made.op_counts["Sigmoid"] == 1  # float SiLU, in the layout of the float layers


def test_what_only_a_concat_reads_is_resized_on_the_concats_grid() -> None:
    net = Net()
    deep = net.silu(net.conv(net.silu(net.conv("x", 3, 32, 3, stride=2)), 32, 32))
    scales = net.constant("scales", np.array([1, 1, 2, 2], np.float32))
    how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    large = net.op("Resize", deep, "", scales, **how)
    skip = net.silu(net.conv("x", 3, 32, 3))
    joined = net.op("Concat", large, skip, axis=1)
    source = net.model(net.conv(net.silu(net.conv(joined, 64, 32)), 32, 16))
    made = quantized(source)
    assert agrees(made, source)
    nodes = {name: node for node in made.proto.graph.node for name in node.output}
    concat = next(node for node in made.proto.graph.node if node.op_type == "Concat")
    assert {nodes[name].op_type for name in concat.input} == {"Reshape", "QuantizeLinear"}  # the Resize as a Tile


def test_one_change_of_layout_serves_several_float_convolutions(tmp_path) -> None:
    net = Net()
    x = net.silu(net.conv(net.silu(net.conv("x", 3, 32, 3)), 32, 32))
    branches = [net.silu(net.conv(x, 32, 32, 3, depthwise=True)) for _ in range(2)]
    source = net.model(net.conv(net.op("Add", *branches), 32, 16))
    layers = [key(node) for node in open_graph(source).nodes("Conv")]
    findings = study(source, open_graph(source), frames(source, 8), Int8Rules())
    variant = replace(first_variant(Form.NHWC), front=frozenset(layers[2:4]))
    made = make_variant(source, findings, Int8Rules(), variant)[0].model
    assert agrees(made, source)
    pool = next(node for node in made.proto.graph.node if node.op_type == "MaxPool")
    assert [node.op_type for node in made.proto.graph.node if pool.output[0] in node.input] == ["Conv", "Conv"]
    before = {name: node.op_type for node in engine_ops(made, tmp_path) for name in node.output}
    folded = [node for node in engine_ops(made, tmp_path) if node.op_type == "MaxPool"]
    assert [before[node.input[0]] for node in folded] in (["ReorderInput"], ["Transpose"])  # by the processor


def test_a_sigmoid_that_is_the_answer_reads_integer_layers() -> None:
    net = Net()
    x = net.op("Relu", net.conv(net.op("Relu", net.conv("x", 3, 32, 3)), 32, 32, 3))
    source = net.model(net.op("Sigmoid", net.conv(x, 32, 16)))
    made = quantized(source)
    assert agrees(made, source)
    assert (made.op_counts["QLinearConv"], made.op_counts.get("Conv", 0)) == (3, 0)


def test_a_sigmoid_that_is_answer_and_gate_at_once_is_made_of_the_same_sums() -> None:
    net = Net()
    sums = net.conv(net.op("Relu", net.conv("x", 3, 32, 3)), 32, 32, 3)
    gate = net.op("Sigmoid", sums)
    source = net.model(gate, net.conv(net.op("Mul", sums, gate), 32, 16))
    made = quantized(source)
    assert agrees(made, source)
    assert (made.op_counts["Sigmoid"], made.op_counts.get("Conv", 0)) == (1, 0)


def test_an_activation_of_another_domain_stays_in_it() -> None:
    net = Net()
    x = net.op("Tanh", net.conv("x", 3, 32, 3))
    source = net.model(net.conv(net.op("Relu", net.conv(x, 32, 32, 3)), 32, 16))
    tanh = next(node for node in source.proto.graph.node if node.op_type == "Tanh")
    tanh.op_type, tanh.domain = "Gelu", "com.microsoft"
    source.proto.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    made = quantized(source)
    assert agrees(made, source)
    assert [node.domain for node in made.proto.graph.node if node.op_type == "Gelu"] == ["com.microsoft"]
    assert (made.op_counts["QLinearConv"], made.op_counts.get("Conv", 0)) == (3, 0)  # behind it shapes are not known


def test_a_convolution_reads_what_a_matrix_product_makes() -> None:
    net = Net()
    x = net.op("Relu", net.conv("x", 3, 32, 3))
    columns = net.constant("columns", net.chance.normal(0, 0.2, (32, 32)).astype(np.float32))
    x = net.conv(net.op("MatMul", x, columns), 32, 32, 3)
    source = net.model(net.conv(net.op("Relu", x), 32, 16))
    made = quantized(source)
    assert agrees(made, source)
    assert (made.op_counts["MatMulIntegerToFloat"], made.op_counts["QLinearConv"]) == (1, 3)
