"""LiteRT against ONNX Runtime without optimizations: every op that is written for it, its integers, what it refuses."""

# ruff: noqa: E501 - a model a line

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
from encoders import encoder
from engine_ops import (
    AGAIN,
    FOUND_GRIDS,
    MORE,
    OPS,
    PICTURE,
    POOLED,
    TRAINING,
    TWICE,
    constants,
    drawn,
    inputs_of,
    model_of,
    opset_model,
    quantized,
    right,
    right_by_rows,
    with_found_grids,
)
from npu_models import numbers, parse

from edgeopt.errors import EdgeoptError, InvalidFileError, UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.executors.litert import EXECUTOR, tflite_file
from edgeopt.executors.litert.file import operators_of
from edgeopt.graph.model import Model, save_model
from edgeopt.graph.tensors import Tensors
from edgeopt.inspection.inspect import inspect as inspect_model
from edgeopt.optimization.optimize import optimize
from edgeopt.steps.quantize.api import Form
from edgeopt.steps.quantize.search.attempt import SearchResult
from edgeopt.steps.quantize.search.search import search_int8
from edgeopt.system.declared.target import find_target

_REASON = EXECUTOR.why_unavailable()
pytestmark = pytest.mark.skipif(_REASON is not None, reason=str(_REASON))

CPU = SessionOptions(("CPU",), 1)
LACKS = {"elu", "selu", "erf", "sum of one number"}
"""Nets that LiteRT does not take, and ncnn does."""


@pytest.mark.parametrize("name", [*(OPS.keys() - LACKS), *MORE])
def test_every_op_computes_what_onnx_says(name):
    model = opset_model(MORE.get(name) or OPS[name])
    inputs = drawn(model)
    expected, actual = right(model, inputs), EXECUTOR.open(model.data, CPU).run(inputs)
    assert list(actual) == [output.name for output in model.outputs]
    for output, value in expected.items():
        assert actual[output].dtype == value.dtype
        np.testing.assert_allclose(actual[output], value, rtol=2e-4, atol=2e-4)


BETWEEN = ["", 'padding_mode = "border"', "align_corners = 1", 'padding_mode = "border", align_corners = 1']


@pytest.mark.parametrize("how", BETWEEN)
def test_numbers_between_pixels_are_read_at_computed_places_beyond_the_edges_too(how):
    text = f"(float[2,6,9,10] x, float[2,5,7,2] z) => (float[2,6,5,7] y) {{ y = GridSample<{how}>(x, z) }}"
    model = opset_model(text.replace("<>", ""))
    inputs = drawn(model)
    assert (np.abs(inputs["z"]) > 1).any()
    actual = EXECUTOR.open(model.data, CPU).run(inputs)["y"]
    np.testing.assert_allclose(actual, right(model, inputs)["y"], rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("name", ["convolution", "flat", "heads joined and turned", "an input that is an output"])
def test_files_for_apps_take_pictures_with_their_channels_last(name):
    model = opset_model(MORE.get(name) or OPS[name])
    inputs = drawn(model)
    session = EXECUTOR.open(EXECUTOR.own_files(model.data)["model.tflite"], CPU)
    actual = session.run({key: np.moveaxis(value, 1, -1) for key, value in inputs.items()})
    for output, value in right(model, inputs).items():
        np.testing.assert_allclose(actual[output], value, rtol=2e-4, atol=2e-4)


def test_a_transpose_is_no_operator_where_its_readers_take_the_order():
    codes = [line.code for line in operators_of(tflite_file(opset_model(MORE["rows after channels last"]).data))]
    assert codes == ["TRANSPOSE", "CONV_2D", "RESHAPE"]  # the first for the input's own order


PAIRED = "m = MaxPool<kernel_shape = [3,3], pads = [1,1,1,1]>(d) q3 = QuantizeLinear(m, s, z8) d3 = DequantizeLinear(q3, s, z8) c = Conv<pads = [1,1,1,1]>(d3, w, b6) "


def test_a_gelu_that_is_written_out_is_one_operator():
    codes = {line.code for line in operators_of(tflite_file(model_of(OPS["gelu written out"]).data))}
    assert "GELU" in codes
    assert not codes & {"ADD", "MUL", "DIV"}


UNSIGNED = "q2 = QuantizeLinear(c, s2, zu) y = DequantizeLinear(q2, s2, zu) }"


@pytest.mark.parametrize("zero", ["z8", "zu"])
@pytest.mark.parametrize("more", [AGAIN, TWICE, PAIRED], ids=["layer to layer", "several readers", "pooled"])
def test_integers_are_ours_and_their_products_are_exact(more, zero):
    """A layer whose result is rounded runs on integers, and differs by a step in few places; others stay in float."""
    more = more.replace("z8", zero)
    if "q2" not in more:
        more += UNSIGNED
    model = quantized(numbers(6, 6, 3, 3), 0, zero=zero, more=more)
    lines = [*operators_of(tflite_file(model.data))]
    assert "int8" in {line.arithmetic for line in lines if line.code == "CONV_2D"}
    assert {line.arithmetic for line in lines if line.code == "MAX_POOL_2D"} <= {"int8"}
    for seed in range(3):
        inputs = inputs_of(model, seed)
        expected, actual = right(model, inputs)["y"], EXECUTOR.open(model.data, CPU).run(inputs)["y"]
        # halves may be rounded to the other side: a step of the first layer's grid, which 54 sums of the second read
        assert (np.abs(actual - expected) > 2e-3).mean() < 0.15
        assert np.linalg.norm(actual - expected) < 0.01 * np.linalg.norm(expected)


@pytest.mark.parametrize("more", ["", POOLED], ids=["alone", "pooled"])
def test_layers_whose_results_are_not_rounded_compute_in_float(more):
    model = quantized(numbers(6, 6, 3, 3), 0, more=more)
    lines = [*operators_of(tflite_file(model.data))]
    assert {line.arithmetic for line in lines if line.code == "CONV_2D"} == {"fp32"}
    inputs = inputs_of(model)
    np.testing.assert_allclose(EXECUTOR.open(model.data, CPU).run(inputs)["y"], right(model, inputs)["y"], atol=1e-3)


@pytest.mark.parametrize("name", FOUND_GRIDS)
def test_products_on_grids_of_rows_that_are_found_as_it_runs(name):
    model = with_found_grids(FOUND_GRIDS[name], "litert-cpu")
    data = tflite_file(model.data)
    products = {line.arithmetic for line in operators_of(data) if line.code == "FULLY_CONNECTED"}
    assert products == {"dynamic int8"}
    session = EXECUTOR.open(data, CPU)
    assert "dynamic int8" in {place.reason for place in session.placement()}
    for seed in range(3):
        inputs = inputs_of(model, seed)
        expected = right_by_rows(FOUND_GRIDS[name], inputs, "litert-cpu")
        np.testing.assert_allclose(session.run(inputs)["y"], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("place", [0, 2, 3, 4, 6])
def test_a_product_on_other_grids_or_with_computed_parts_is_refused(place):
    proto = with_found_grids(FOUND_GRIDS["rows"], "litert-cpu").proto
    (node,) = [node for node in proto.graph.node if node.op_type == "MatMulIntegerToFloat"]
    node.input[place] = {0: node.input[1], 4: node.input[5]}.get(place, node.input[3 if place == 2 else 2])
    with pytest.raises(EdgeoptError, match=r"LiteRT has no com\.microsoft\.MatMulIntegerToFloat but of a Dynamic"):
        tflite_file(proto.SerializeToString())


def two_products(loud: tuple[slice | int, int]) -> tuple[Model, list[Tensors]]:
    """Two products of 256 columns, and rows of normal numbers in which a token's channel, or every token's, is 3000."""
    chance = np.random.default_rng(0)
    tables = {name: chance.standard_normal((256, 256)).astype(np.float32) / 16 for name in ("w", "v")}
    text = "small (float[1,64,256] x) => (float[1,64,256] y) { a = MatMul(x, w) r = Relu(a) y = MatMul(r, v) }"
    rows = chance.standard_normal((4, 1, 64, 256)).astype(np.float32)
    rows[:, 0, loud[0], loud[1]] = 3000
    return parse(text, opset=17, **tables), [{"x": picture} for picture in rows]


def searched(model: Model, pictures: list[Tensors], *forms: Form) -> SearchResult:
    """Return what a search finds for LiteRT; tokens agree whose answer points the same way."""
    expected = [right(model, picture)["y"][0] for picture in pictures]

    def agreement(made: Model) -> float:
        session = EXECUTOR.open(made.data, CPU)
        answers = [session.run(picture)["y"][0] for picture in pictures]
        pairs = [pair for both in zip(answers, expected, strict=True) for pair in zip(*both, strict=True)]
        return float(np.mean([a @ b / np.sqrt(np.maximum(a @ a * (b @ b), 1e-30)) for a, b in pairs]))

    rules = find_target("litert-cpu").int8
    return search_int8(model, pictures, rules, agreement=agreement, speed=lambda _: 1.5, forms=forms)


def test_one_loud_token_keeps_no_product_from_grids_of_rows():
    result = searched(*two_products((3, 7)), Form.QDQ, Form.DYNAMIC)
    assert result.attempts[0].name.startswith("int8 dynamic")
    assert result.attempts[0].outcome.changes == {"matrix products on integers": 2}
    assert result.attempts[0].agreement > 0.98


def test_where_every_row_has_a_loud_channel_the_reason_tells_of_rows():
    result = searched(*two_products((slice(None), 7)), Form.DYNAMIC)
    assert not result.attempts
    assert "in float: a scale for each row cannot hold 2 tensors ('x' 0.0 dB, 'r' " in result.reason


def test_products_get_grids_of_rows_without_samples(brief, tmp_path):
    save_model(encoder(side=14, patch=16, depth=1, classes=1000), tmp_path / "encoder.onnx")
    steps = ("quantize", "convert")
    report = optimize(
        tmp_path / "encoder.onnx", target="litert-cpu", recipe="imagenet", out=tmp_path / "out", threads=1, steps=steps
    )
    made = {candidate.name: candidate for candidate in report.candidates}
    assert made["litert-w8"].changes == {"matrix products on integers": 7}
    assert made["litert-w8"].agreement > 0.9
    assert any(note.detail.startswith("no search for INT8: there are no calibration") for note in report.notes)


SILU = (
    "c = Conv<pads = [1,1,1,1]>(d, w, b6) q2 = QuantizeLinear(c, s2, z8) d2 = DequantizeLinear(q2, s2, z8) "
    "g = Sigmoid(d2) q3 = QuantizeLinear(g, unit, least8) d3 = DequantizeLinear(q3, unit, least8) "
    "m = Mul(d2, d3) q4 = QuantizeLinear(m, s2, z8) y = DequantizeLinear(q4, s2, z8) }"
)


def test_a_swish_on_integers_and_one_on_a_grid_that_litert_lacks():
    grids = {"unit": np.array(1 / 256, np.float32), "least8": np.array(-128, np.int8)}
    for unit, expected in ((1 / 256, "int8"), (1 / 250, "fp32")):
        model = quantized(numbers(6, 6, 3, 3), 0, more=SILU, known=grids | {"unit": np.array(unit, np.float32)})
        assert {line.code: line.arithmetic for line in operators_of(tflite_file(model.data))}["LOGISTIC"] == expected
        inputs = inputs_of(model)
        np.testing.assert_allclose(
            EXECUTOR.open(model.data, CPU).run(inputs)["y"], right(model, inputs)["y"], atol=0.31
        )


def test_no_operator_runs_on_integers_where_litert_has_no_fast_kernel_for_them():
    more = "h = HardSwish(d) q2 = QuantizeLinear(h, s2, z8) y = DequantizeLinear(q2, s2, z8) }"
    model = quantized(numbers(6, 6, 3, 3), 0, more=more)
    assert {line.code: line.arithmetic for line in operators_of(tflite_file(model.data))}["HARD_SWISH"] == "fp32"


REFUSED = {
    "LiteRT has no Dropout in training": TRAINING,
    "LiteRT has no Erf": f"({PICTURE}) => (float[1,6,9,10] y) {{ y = Erf(x) }}",
    "LiteRT has no ConvTranspose over lines, or with holes": f"({PICTURE}) => (float[1,4,19,21] y) {{ y = ConvTranspose<strides = [2,2], pads = [1,1,1,1], dilations = [2,2]>(x, t64) }}",
    "LiteRT has no DequantizeLinear of another grid": f"({PICTURE}) => (float[1,6,9,10] y) {{ q, s, z = DynamicQuantizeLinear(x) y = DequantizeLinear(q, s, z) }}",
    "every shape in numbers": "(float[1,3,H,8] x) => (float[1,3,H,8] y) { y = Relu(x) }",
    "LiteRT has no Elu with another alpha": f"({PICTURE}) => (float[1,6,9,10] y) {{ y = Elu<alpha = 0.7>(x) }}",
    "'x' is float64": "(double[1,4] x) => (double[1,4] y) { y = Relu(x) }",
    "LiteRT has no Resize in mode cubic": f'({PICTURE}) => (float[1,6,18,20] y) {{ y = Resize<mode = "cubic">(x, , twice) }}',
    "LiteRT has no QuantizeLinear to uint8 that other nodes": f"({PICTURE}) => (uint8[1,6,9,10] y) {{ y = QuantizeLinear(x, step, z_unsigned) }}",
    "LiteRT has no Div of 64-bit whole numbers": "(int64[1,4] x) => (int64[1,4] y) { y = Div(x, three) }",
    "LiteRT has no Div with its input 1 computed": "(int32[1,4] x) => (int32[1,4] y) { y = Div(x, x) }",
    "LiteRT has no Mod by 0 or -1": "(int64[1,4] x) => (int64[1,4] y) { y = Mod(x, minus) }",
    "LiteRT has no Gather of places beyond 10": f"({PICTURE}) => (float[1,6,9,1] y) {{ y = Gather<axis = 3>(x, far) }}",
    "LiteRT has no GridSample of 2 axes, in mode bilinear, padded by reflection": f'({PICTURE}, float[1,2,2,2] z) => (float[1,6,2,2] y) {{ y = GridSample<padding_mode = "reflection">(x, z) }}',
    "LiteRT has no ScatterND with reduction none, or at one place twice": "(float[4,3] x, float[2,3] z) => (float[4,3] y) { y = ScatterND(x, twice2, z) }",
    "LiteRT has no Conv with a bias of 6 for 8 channels": f"({PICTURE}) => (float[1,8,7,8] y) {{ y = Conv(x, w86, b6) }}",
    "LiteRT has no Conv whose groups or kernel": f"({PICTURE}) => (float[1,8,8,9] y) {{ y = Conv<kernel_shape = [2,2]>(x, w86) }}",
    "LiteRT has no QuantizeLinear by channels, to other": f"({PICTURE}) => (float[1,6,9,10] y) {{ q = QuantizeLinear(x, step, z16) y = DequantizeLinear(q, step, z16) }}",
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_it_lacks_is_one_line_that_names_the_node(said):
    text = REFUSED[said]
    known = {"z16": np.array(0, np.uint16), "z_unsigned": np.array(3, np.uint8), "twice2": np.array([[1], [-3]])}
    read = set(re.findall(r"\w+", text))
    model = parse(f"small {text}", **{k: v for k, v in (constants() | known).items() if k in read})
    with pytest.raises(UnsupportedError, match=said) as refused:
        EXECUTOR.open(model.data, CPU)
    assert refused.value.remedy


@pytest.mark.parametrize("scale", [0.0, -0.05, float("inf"), float("nan"), 1e-40])
def test_a_scale_that_is_none_is_refused_and_ends_no_process(scale):
    text = f"({PICTURE}) => (float[1,6,9,10] y) {{ q = QuantizeLinear(x, s, z8) y = DequantizeLinear(q, s, z8) }}"
    model = parse(f"small {text}", s=np.array(scale, np.float32), z8=np.array(0, np.int8))
    with pytest.raises(UnsupportedError, match="a scale that is not above zero"):
        EXECUTOR.open(model.data, CPU)


def test_the_type_of_integers_without_a_zero_point_is_read_from_the_model():
    text = f"({PICTURE}) => (float[1,6,9,10] y) {{ q = QuantizeLinear<output_dtype = 3>(x, s) y = DequantizeLinear(q, s) }}"
    model = parse(f"small {text}", opset=21, s=np.array(0.05, np.float32))
    inputs = inputs_of(model)
    np.testing.assert_allclose(EXECUTOR.open(model.data, CPU).run(inputs)["y"], right(model, inputs)["y"], atol=0.051)


def test_a_node_that_is_not_as_onnx_defines_it_is_one_line():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> small (float[1,4] x) => (float[4,1] y) { y = Transpose<perm = [1,1]>(x) }'
    )
    with pytest.raises(InvalidFileError, match=r"Transpose node .* is not as ONNX defines it"):
        EXECUTOR.open(model.SerializeToString(), CPU)


def test_a_file_of_its_own_holds_the_model(tmp_path):
    model = model_of(OPS["convolution with an activation"])
    out = tmp_path / "model.tflite"
    session = EXECUTOR.open(model.data, SessionOptions(("CPU",), 1, save_optimized_to=str(out)))
    inputs = inputs_of(model)
    again = EXECUTOR.open(out, CPU)
    assert out.read_bytes() == tflite_file(model.data), "the same model, the same bytes"
    np.testing.assert_array_equal(session.run(inputs)["y"], again.run(inputs)["y"])
    assert again.inputs == session.inputs


@pytest.mark.parametrize("bad", [b"", b"no model", b"\0\0\0\0TFL3", b"\x1c\0\0\0TFL3" + bytes(64)])
def test_bytes_that_are_no_model_are_refused(bad):
    with pytest.raises(EdgeoptError):
        EXECUTOR.open(bad, CPU)


@pytest.mark.parametrize("cut", [8, 200, 2000])
def test_a_file_that_is_cut_off_is_refused(cut):
    data = tflite_file(model_of(OPS["convolution"]).data)
    with pytest.raises(InvalidFileError):
        EXECUTOR.open(data[:cut], CPU)


def test_float16_is_asked_for_and_never_a_default():
    model = model_of(OPS["convolution"])
    inputs = inputs_of(model)
    expected = right(model, inputs)["y"]
    error = {}
    for precision in ("", "fp32", "fp16"):
        session = EXECUTOR.open(model.data, SessionOptions(("CPU",), 1, precision=precision))
        error[precision] = np.abs(session.run(inputs)["y"] - expected).max()
        beside = session.beside(reuse=True)
        np.testing.assert_array_equal(beside.run(inputs)["y"], session.run(inputs)["y"])
        assert {layer.reason for layer in session.placement()} == {precision or "fp32"}
    assert error[""] == error["fp32"] < 1e-4 < error["fp16"] < 0.1
    with pytest.raises(ValueError, match="bf16"):
        EXECUTOR.open(model.data, SessionOptions(("CPU",), 1, precision="bf16"))


def test_float16_is_refused_where_it_cannot_hand_out_what_the_model_makes():
    with pytest.raises(UnsupportedError, match="does not copy int64"):
        EXECUTOR.open(opset_model(MORE["the best of channels"]).data, SessionOptions(("CPU",), 1, precision="fp16"))


def test_inspect_tells_where_nodes_run_and_what_is_refused(tmp_path):
    inspection = inspect_model("digits_detector", target="litert-cpu")
    assert re.fullmatch(r"all \d+ nodes on the CPU", inspection.verdict)
    file = tmp_path / "erf.onnx"
    file.write_bytes(model_of(OPS["erf"]).data)
    assert inspect_model(str(file), target="litert-cpu").verdict.startswith(
        "litert-cpu refuses the model: LiteRT has no Erf"
    )


def test_float16_is_refused_where_litert_would_end_the_process(monkeypatch):
    """Its compiled model ends with "compiled with lse enabled" on a Cortex-A72 (seen under QEMU), as it is loaded."""
    flags = frozenset(["fp", "asimd", "evtstrm", "crc32", "cpuid"])
    monkeypatch.setattr("edgeopt.executors.litert.cpu_flags", lambda: flags)
    data = model_of(OPS["convolution"]).data
    with pytest.raises(UnsupportedError, match="float16 needs asimdhp and atomics, which this processor lacks"):
        EXECUTOR.open(data, SessionOptions(("CPU",), 1, precision="fp16"))
    EXECUTOR.open(data, SessionOptions(("CPU",), 1, precision="fp32")).close()
