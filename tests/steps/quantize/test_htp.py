"""INT8 and INT16 by Qualcomm's rules: every tensor on a grid, fixed encodings, one grid where values only move."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import numpy_helper, parser

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.drift import measure_drift
from edgeopt.graph.files.validity import require_valid
from edgeopt.graph.model import Model
from edgeopt.steps.quantize.formats.htp import place_htp, study_htp, wide_nodes
from edgeopt.steps.quantize.search.htp import search_htp
from edgeopt.system.declared.target import find_target

V73 = find_target("qualcomm-htp-v73")
NARROW, WIDE = frozenset(), None
WIDTHS = pytest.mark.parametrize(("wide", "dtype"), [(NARROW, "uint8"), (WIDE, "uint16")], ids=["U8", "U16"])


def parse(text, *, opset=21, **constants):
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>\n{text}')
    proto.graph.initializer.extend(numpy_helper.from_array(one, name) for name, one in constants.items())
    model = Model(proto, proto.graph.name)
    require_valid(model.proto, proto.graph.name)
    return model


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def net(opset=21):
    """Convolution, limiter, pooling, concatenation, gate, matrix product, softmax."""
    return parse(
        """net (float[1,3,16,16] x) => (float[1,5] y) {
            c = Conv <pads = [1,1,1,1]> (x, w, b)
            r = Relu(c)
            p = MaxPool <kernel_shape = [2,2], strides = [2,2]> (r)
            d = Conv(p, v)
            g = Sigmoid(d)
            s = Mul(d, g)
            t = Tanh(d)
            j = Concat <axis = 1> (s, t)
            a = GlobalAveragePool(j)
            f = Flatten(a)
            m = MatMul(f, u)
            n = Add(m, o)
            y = Softmax(n)
        }""",
        opset=opset,
        w=numbers(8, 3, 3, 3) / 5,
        b=numbers(8, seed=1),
        v=numbers(6, 8, 1, 1, seed=2) / 3,
        u=numbers(12, 5, seed=3),
        o=numbers(5, seed=4),
    )


def frames(count=8):
    random = np.random.default_rng(5)
    return [{"x": random.normal(size=(1, 3, 16, 16)).astype(np.float32)} for _ in range(count)]


def run(model, inputs):
    return EXECUTOR.open(model.data, SessionOptions()).run(inputs)


def constants(model):
    return {one.name: numpy_helper.to_array(one) for one in model.proto.graph.initializer}


def grid_before(model, name):
    """Scale and zero point with which the tensor `name` was quantized."""
    node = next(n for n in model.proto.graph.node if n.op_type == "QuantizeLinear" and n.input[0] == name)
    found = constants(model)
    return float(found[node.input[1]]), int(found[node.input[2]]), str(found[node.input[2]].dtype)


@pytest.fixture(scope="module")
def findings():
    return study_htp(net(), frames(), V73)


@WIDTHS
def test_no_node_computes_with_real_numbers_that_are_on_no_grid(findings, wide, dtype):
    made = place_htp(net(), findings, V73, wide).model
    makers = {name: node.op_type for node in made.proto.graph.node for name in node.output}
    for node in made.proto.graph.node:
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            assert {makers.get(name, "input") for name in node.input} == {"DequantizeLinear"}, node.op_type


@WIDTHS
def test_all_activations_have_the_width_asked_for(findings, wide, dtype):
    made = place_htp(net(), findings, V73, wide).model
    stored = constants(made)
    used = [str(stored[n.input[2]].dtype) for n in made.proto.graph.node if n.op_type == "QuantizeLinear"]
    assert set(used) == {dtype}


@WIDTHS
def test_the_function_survives(findings, wide, dtype):
    made = place_htp(net(), findings, V73, wide).model
    require_valid(made.proto, "made")
    frame = frames(9)[-1]
    drift = measure_drift(run(net(), frame), run(made, frame))
    assert drift.sqnr_db > (28 if wide is None else 20)  # weights have 8 bits in both


@pytest.mark.parametrize(
    ("tensor", "grids"),
    [
        ("g", {"uint8": (2**-8, 0), "uint16": (2**-16, 0)}),
        ("t", {"uint8": (2**-7, 128), "uint16": (2**-15, 32768)}),
        ("y", {"uint8": (2**-8, 0), "uint16": (2**-16, 0)}),
    ],
)
@WIDTHS
def test_sigmoid_tanh_and_softmax_have_their_fixed_encodings(findings, wide, dtype, tensor, grids):
    made = place_htp(net(), findings, V73, wide).model
    name = tensor if tensor != "y" else next(n.output[0] for n in made.proto.graph.node if n.op_type == "Softmax")
    assert grid_before(made, name) == (*grids[dtype], dtype)


@WIDTHS
def test_values_that_only_move_keep_their_grid(findings, wide, dtype):
    made = place_htp(net(), findings, V73, wide).model
    moved = {n.op_type: (n.input[0], n.output[0]) for n in made.proto.graph.node if n.op_type in ("MaxPool", "Flatten")}
    sources = {n.output[0]: n.input[0] for n in made.proto.graph.node if n.op_type == "DequantizeLinear"}
    for before, after in moved.values():
        quantized = next(n for n in made.proto.graph.node if n.output[0] == sources[before])
        assert grid_before(made, after) == grid_before(made, quantized.input[0])


def test_weights_of_convolutions_have_a_scale_per_channel_and_those_of_matrices_one():
    made = place_htp(net(), study_htp(net(), frames(), V73), V73).model
    found = constants(made)
    assert found["w_quantized"].dtype == np.int8
    assert found["w_scale"].shape == (8,)
    assert (found["w_zero_point"] == 0).all()
    assert found["u_quantized"].dtype == np.uint8
    assert found["u_scale"].shape == ()
    assert found["w_bias_quantized"].dtype == np.int32


def test_a_relu_that_saturation_replaces_disappears(findings):
    outcome = place_htp(net(), findings, V73)
    assert outcome.changes["limiters absorbed"] == 1
    assert "Relu" not in outcome.model.op_counts


def test_between_two_widths_a_tensor_is_converted_once(findings):
    made = place_htp(net(), findings, V73, frozenset({"d", "g", "s"})).model
    stored = constants(made)
    kinds = {n.output[0]: str(stored[n.input[2]].dtype) for n in made.proto.graph.node if n.op_type == "QuantizeLinear"}
    assert set(kinds.values()) == {"uint8", "uint16"}
    real = {n.output[0] for n in made.proto.graph.node if n.op_type == "DequantizeLinear"}
    converted = [n for n in made.proto.graph.node if n.op_type == "QuantizeLinear" and n.input[0] in real]
    assert len(converted) == 3  # p into d's width; d and s back for t and j
    frame = frames(9)[-1]
    assert measure_drift(run(net(), frame), run(made, frame)).sqnr_db > 20


def test_before_opset_21_sixteen_bits_are_written_in_microsofts_domain():
    model = net(opset=17)
    made = place_htp(model, study_htp(model, frames(), V73), V73, WIDE).model
    domains = {n.domain for n in made.proto.graph.node if n.op_type == "QuantizeLinear"}
    assert domains == {"com.microsoft"}
    frame = frames(9)[-1]
    assert measure_drift(run(model, frame), run(made, frame)).sqnr_db > 28


def test_ops_that_are_never_quantized_keep_real_tensors():
    target = replace(V73, never_quantized=("Softmax", "MatMul"))
    made = place_htp(net(), study_htp(net(), frames(), target), target).model
    softmax = next(n for n in made.proto.graph.node if n.op_type == "Softmax")
    assert list(softmax.output) == ["y"]
    matmul = next(n for n in made.proto.graph.node if n.op_type == "MatMul")
    assert matmul.input[1] == "u"


def test_an_op_that_wants_one_grid_gets_one():
    target = replace(V73, unified_scales=("Concat",))
    made = place_htp(net(), study_htp(net(), frames(), target), target).model
    (joined,) = [n for n in made.proto.graph.node if n.op_type == "Concat"]
    stored, makers = constants(made), {n.output[0]: n for n in made.proto.graph.node}
    grids = {float(stored[makers[name].input[1]]) for name in joined.input}
    assert len(grids) == 1


def test_a_tensor_that_is_nearly_zero_gets_a_scale_that_the_device_can_hold():
    model = parse("quiet (float[1,4] x) => (float[1,4] y) { a = Mul(x, tiny) y = Mul(a, a) }", tiny=np.float32([1e-9]))
    inputs = [{"x": numbers(1, 4, seed=i)} for i in range(4)]
    made = place_htp(model, study_htp(model, inputs, V73), V73).model
    assert min(float(one) for name, one in constants(made).items() if name.endswith("scale")) >= 1e-4 / 256


def test_the_float_model_is_left_alone(findings):
    before = net()
    data = before.proto.SerializeToString(deterministic=True)
    place_htp(before, findings, V73)
    assert before.proto.SerializeToString(deterministic=True) == data


def test_tensors_that_8_bits_spoil_get_16():
    model = parse(
        """uneven (float[1,4,8,8] x) => (float[1,4,8,8] y) {
            a = Mul(x, scale)
            b = Conv(a, w)
            c = Conv(b, v)
            y = Conv(c, v)
        }""",
        scale=np.array([1000, 1, 0.5, 0.1], np.float32).reshape(1, 4, 1, 1),
        w=numbers(4, 4, 1, 1) * np.array([0.001, 1, 1, 1], np.float32).reshape(1, 4, 1, 1),
        v=numbers(4, 4, 1, 1, seed=1),
    )
    inputs = [{"x": numbers(1, 4, 8, 8, seed=i)} for i in range(4)]
    found = study_htp(model, inputs, V73)
    assert found.scores_db["a"] < 10 < found.scores_db["c"]
    assert {"a", "b"} <= wide_nodes(model, found, V73, 10.0)
    assert "c" not in wide_nodes(model, found, V73, 10.0)


def test_the_cheapest_form_that_agrees_leads_and_the_dearer_ones_follow():
    asked = []
    forms = search_htp(net(), frames(), V73, agreement=lambda model: asked.append(model.name) or 0.99)
    assert [one.precision for one in forms] == ["w8a8", "w8a16", "fp16"]
    assert len(asked) == 2


def test_where_8_bits_never_agree_16_lead():
    def agreement(model):
        stored = constants(model)
        narrow = any(
            stored[n.input[2]].dtype == np.uint8 for n in model.proto.graph.node if n.op_type == "QuantizeLinear"
        )
        return 0.2 if narrow else 0.95

    forms = search_htp(net(), frames(), V73, agreement=agreement)
    assert [one.name for one in forms] == ["w8a16", "fp16"]


def test_where_nothing_agrees_the_best_leads():
    target = find_target("qualcomm-htp-v68")
    values = iter((0.1, 0.4, 0.3, 0.2, 0.35))
    forms = search_htp(net(), frames(), target, agreement=lambda model: next(values))
    assert [one.agreement for one in forms] == [0.4, 0.35, 0.3, 0.2, 0.1]


def test_an_output_keeps_its_name_and_type(findings):
    made = place_htp(net(), findings, V73).model
    assert [(one.name, one.dtype, one.shape) for one in made.outputs] == [("y", "float32", (1, 5))]
    require_valid(made.proto, "made")
