from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import onnx
import pytest
from small_nets import (
    ALL,
    HERE,
    Net,
    detector,
    frames,
    largest_pair,
    mobile,
    residual,
    squeeze_excite,
    vision_transformer,
)

from edgeopt.errors import Note
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.model import Model
from edgeopt.steps.quantize.api import Form, open_graph, quantize
from edgeopt.steps.quantize.calibration.findings import study
from edgeopt.steps.quantize.grids.ranges import Method
from edgeopt.steps.quantize.inspection.engine_fusion import Fusion, Stretch, fusion_notes, read_fusion
from edgeopt.steps.quantize.patterns import key
from edgeopt.steps.quantize.search.make import make_variant
from edgeopt.steps.quantize.search.variant import first_variant
from edgeopt.system.declared.target import Granularity, Int8Rules, Target, find_target
from edgeopt.system.toml import parse_table


def outputs(model: Model, source: Model) -> list[np.ndarray]:
    session = EXECUTOR.open(model.data, SessionOptions())
    return [np.concatenate([v.ravel() for v in session.run(frame).values()]) for frame in frames(source, 3, seed=7)]


def sqnr_db(model: Model, source: Model) -> float:
    expected, actual = np.stack(outputs(source, source)), np.stack(outputs(model, source))
    return float(10 * np.log10(np.square(expected).sum() / max(np.square(expected - actual).sum(), 1e-12)))


@pytest.mark.parametrize("form", [form for form in Form if form is not Form.DYNAMIC])  # that leaves convolutions
@pytest.mark.parametrize("name", ALL)
def test_every_family_keeps_its_answer_in_both_forms(name: str, form: Form) -> None:
    model = ALL[name]()
    outcome = quantize(model, frames(model), HERE, form=form)
    onnx.checker.check_model(outcome.model.proto)
    assert outcome.model.op_counts != model.op_counts
    assert sqnr_db(outcome.model, model) > 18
    assert [one.name for one in outcome.model.outputs] == [one.name for one in model.outputs]


@pytest.mark.parametrize("name", ["residual", "mobile", "detector"])
def test_no_layer_with_integer_weights_is_left_in_float_by_the_engine(name: str) -> None:
    model = ALL[name]()
    fusion = read_fusion(quantize(model, frames(model), HERE).model)
    assert fusion.unfused == ()
    assert fusion.op_counts["QLinearConv"] >= 3
    assert not any("INT8 weights" in note.detail for note in fusion.notes)
    assert f"QLinearConv {fusion.op_counts['QLinearConv']}" in fusion.notes[0].detail


def test_an_unfused_pair_is_reported_with_its_node() -> None:
    model = residual()
    graph = quantize(model, frames(model), HERE).model.proto
    crippled = onnx.ModelProto()
    crippled.CopyFrom(graph)
    conv = next(node for node in crippled.graph.node if node.op_type == "Conv")
    quantized = next(node for node in crippled.graph.node if node.op_type == "Relu" and node.input[0] == conv.output[0])
    crippled.graph.output.append(onnx.helper.make_tensor_value_info(quantized.input[0], onnx.TensorProto.FLOAT, None))
    fusion = read_fusion(Model(crippled, "crippled"))
    assert len(fusion.unfused) == 1
    warning = next(note for note in fusion.notes if note.kind == "warning")
    assert warning.detail == "1 layer with INT8 weights still run in float"
    assert fusion.unfused[0] in warning.hint


def test_a_float_operator_between_two_grids_and_a_tensor_rounded_for_nothing_are_named() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> net (float[1,4] x) => (float[1,4] y, float[1,4] z)
    <float s = {0.1}, uint8 o = {128}> {
        a = QuantizeLinear (x, s, o) b = DequantizeLinear (a, s, o) c = Erf (b)
        d = QuantizeLinear (c, s, o) y = DequantizeLinear (d, s, o)
        e = Erf (x) f = QuantizeLinear (e, s, o) z = DequantizeLinear (f, s, o)
    }"""
    proto = onnx.parser.parse_model(text)
    for i, node in enumerate(proto.graph.node):
        node.name = f"{node.op_type}_{i}"
    fusion = read_fusion(Model(proto, "net"))
    assert [(one.nodes, one.is_defect) for one in fusion.between] == [(("Erf_2",), False)]
    assert "Erf_2" in " ".join(str(note) for note in fusion.notes if note.kind == "info")
    assert "QuantizeLinear_6" in fusion.rounded
    warning = next(note for note in fusion.notes if note.kind == "warning")
    assert "with nothing between" in warning.detail
    assert warning.names == fusion.rounded
    assert fusion.unfused == ()


def test_operators_that_stay_in_float_between_integers_are_named_however_many_they_are() -> None:
    model = squeeze_excite()
    fusion = read_fusion(quantize(model, frames(model), HERE).model)
    named = [op for one in fusion.between for op in one.ops if op not in ("Transpose", "GlobalAveragePool")]
    assert sorted(named) == [*["HardSigmoid"] * 3, *["Mul"] * 3]  # all that the engine has left in float
    assert not any(one.is_defect for one in fusion.between)
    note = next(note for note in fusion.notes if "in float in" in note.detail)
    assert note.kind == "info"
    assert note.names == tuple(name for one in fusion.between for name in one.nodes)
    assert "node_hardsigmoid_6" in note.names
    assert all(name for name in note.names)  # of operators without a name, what they stand behind


def test_every_pair_of_a_transformer_that_is_left_is_accounted_for() -> None:
    model = vision_transformer()
    fusion = read_fusion(quantize(model, frames(model), HERE).model)
    ops = [op for one in fusion.between for op in one.ops]
    assert ops.count("LayerNormalization") == 4
    assert ops.count("Softmax") == 2
    assert not {"QuantizeLinear", "DequantizeLinear", "QLinearMatMul"} & set(ops)
    biases = [one.nodes for one in fusion.between if one.is_defect]  # an Add with an integer kernel, alone in its pair
    warnings = [note for note in fusion.notes if note.kind == "warning" and "integer kernel" in note.detail]
    assert [note.names for note in warnings] == ([tuple(name for one in biases for name in one)] if biases else [])


def test_an_operator_with_an_integer_kernel_between_its_pairs_is_a_defect() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> net (float[1,4] x, float[1,4] v) => (float[1,4] y)
    <float s = {0.1}, uint8 o = {128}, float r = {0.2}, float[4] b = {1, 2, 3, 4}> {
        a = QuantizeLinear (x, s, o) c = DequantizeLinear (a, s, o) d = Add (c, b)
        e = QuantizeLinear (d, r, o) f = DequantizeLinear (e, r, o) y = Erf (f)
    }"""
    proto = onnx.parser.parse_model(text)
    for i, node in enumerate(proto.graph.node):
        node.name = f"{node.op_type}_{i}"
    fusion = read_fusion(Model(proto, "net"))
    assert [(one.nodes, one.is_defect) for one in fusion.between] == [(("Add_2",), True)]
    warning = next(note for note in fusion.notes if "integer kernel" in note.detail)
    assert (warning.kind, warning.names) == ("warning", ("Add_2",))
    assert str(warning) == "1 operator with an integer kernel still in float between Q and DQ (Add_2: Add)"


def test_a_layer_that_was_left_in_float_is_no_defect() -> None:
    net, x = Net(), "x"
    for fan in (3, 16, 16, 16):
        x = net.op("Relu", net.conv(x, fan, 16, 3))
    model = net.model(net.conv(x, 16, 8))
    seen = list(frames(model))
    findings = study(model, open_graph(model), seen, HERE)
    middle = key(open_graph(model).nodes("Conv")[2])
    variant = replace(first_variant(Form.NHWC), front=frozenset({middle}))
    fusion = read_fusion(make_variant(model, findings, HERE, variant)[0].model)
    assert any("Conv" in op for one in fusion.between for op in one.ops)
    assert not any(one.is_defect for one in fusion.between)
    assert fusion.unfused == ()


def test_a_long_list_is_shortened_where_it_is_printed_and_whole_in_the_result() -> None:
    stretches = tuple(Stretch((f"erf_{i}", f"mul_{i}"), ("Erf", "Mul"), False) for i in range(9))
    note = Fusion({}, (), stretches).notes[-1]
    assert note.detail == "18 operators in float in 9 places between integers"
    assert note.hint.endswith("erf_3: Erf, Mul and 5 more")
    assert len(note.names) == 18
    assert parse_table(Note, json.loads(json.dumps(asdict(note))), "note") == note


def test_other_engines_are_not_asked_what_onnx_runtime_makes_of_a_model() -> None:
    target = Target("npu", "npu", "qnn", "", ("QNN",), ("w8a8",))
    assert fusion_notes(residual(), target) == ()
    here = Target("cpu", "cpu", "onnxruntime", "", ("CPUExecutionProvider",), ("w8a8",))
    assert fusion_notes(residual(), here)[0].detail == "ONNX Runtime runs it as QuantizeLinear 0, DequantizeLinear 0"


def test_layers_that_run_on_integers_on_arm_alone_are_told_so_wherever_the_model_is_made() -> None:
    model = detector()
    arm = find_target("cpu-arm64")
    made = quantize(model, frames(model), arm.rules_here, form=Form.QDQ).model
    counted, *others = fusion_notes(made, arm)
    assert "QLinearConv" in counted.detail
    assert not any("INT8 weights still run in float" in note.detail for note in others)


def test_the_nhwc_form_of_a_detector_uses_integer_kernels_and_copies() -> None:
    model = detector()
    counts = quantize(model, frames(model), HERE, form=Form.NHWC).model.op_counts
    assert counts["QLinearConv"] == 6
    assert counts["MatMulIntegerToFloat"] == 4
    assert counts["NhwcMaxPool"] == 2
    assert counts["Tile"] == 1
    assert "Resize" not in counts
    assert "MaxPool" not in counts


def test_pools_of_growing_windows_run_one_on_the_other() -> None:
    model = detector()
    made = quantize(model, frames(model), HERE, form=Form.NHWC).model.proto.graph.node
    first, second = (node for node in made if node.op_type == "NhwcMaxPool")
    assert second.input[0] == first.output[0]
    kernels = [next(list(a.ints) for a in node.attribute if a.name == "kernel_shape") for node in (first, second)]
    assert kernels == [[3, 3], [3, 3]]


def test_prediction_layers_of_a_detector_make_real_numbers_in_both_forms() -> None:
    model = detector()
    qdq = quantize(model, frames(model), HERE)
    assert any("the outputs of 4 prediction layers stay in float" in note.detail for note in qdq.notes)
    assert qdq.changes["weighted nodes on integers"] == 6


@pytest.mark.parametrize("method", Method)
def test_every_range_method_gives_a_usable_model(method: Method) -> None:
    model = residual()
    assert sqnr_db(quantize(model, frames(model), HERE, method=method).model, model) > 12


@pytest.mark.parametrize(
    "rules",
    [
        Int8Rules(reduce_range=True),
        Int8Rules(activation_dtype="int8"),
        Int8Rules(activation_dtype="int8", symmetric_activations=True),
        Int8Rules(weight_granularity=Granularity.PER_TENSOR),
        Int8Rules(ops=("Conv",)),
    ],
    ids=["reduce_range", "s8s8", "symmetric", "per_tensor", "conv_only"],
)
def test_the_rules_of_a_target_are_followed(rules: Int8Rules) -> None:
    model = mobile()
    made = quantize(model, frames(model), rules).model
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in made.proto.graph.initializer}
    weights = [value for name, value in stored.items() if name.endswith("_quantized") and value.dtype == np.int8]
    assert weights
    assert max(np.abs(one).max() for one in weights) <= 127
    full = [np.moveaxis(one, 1, -1) for one in weights if one.ndim == 4 and one.shape[1] > 1]
    assert (max(map(largest_pair, full)) <= 128) == rules.reduce_range
    zeros = {str(value.dtype) for name, value in stored.items() if name.endswith("_zero_point") and value.ndim == 0}
    assert rules.activation_dtype in zeros
    assert sqnr_db(made, model) > 10
