"""ncnn against ONNX Runtime without optimizations: every op that is written for it, its integers, and what it refuses."""

# ruff: noqa: E501 - a model a line

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from engine_ops import AGAIN, OPS, PICTURE, POOLED, TRAINING, TWICE, inputs_of, model_of, quantized, right
from npu_models import numbers, parse

from edgeopt.errors import InvalidFileError, NotFoundError, UnavailableError, UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.executors.ncnn import EXECUTOR, ncnn_file
from edgeopt.executors.ncnn.file import read_ncnn_file
from edgeopt.graph.model import Model
from edgeopt.inspection.inspect import inspect as inspect_model
from edgeopt.measurement.opening.right_optimizations import find_engine_fault, made_up_samples
from edgeopt.optimization.optimize import optimize
from edgeopt.system.declared.target import find_target

_REASON = EXECUTOR.why_unavailable()
pytestmark = pytest.mark.skipif(_REASON is not None, reason=str(_REASON))

CPU = SessionOptions(("CPU",), 1)


@pytest.mark.parametrize("name", OPS)
def test_every_op_computes_what_onnx_says(name):
    model = model_of(OPS[name])
    inputs = inputs_of(model)
    expected, actual = right(model, inputs), EXECUTOR.open(model.data, CPU).run(inputs)
    assert list(actual) == [output.name for output in model.outputs]
    for output, value in expected.items():
        np.testing.assert_allclose(actual[output], value, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("more", ["", AGAIN, TWICE, POOLED], ids=["one", "layer to layer", "several readers", "pooled"])
def test_integers_are_ours_and_their_products_are_exact(more):
    model = quantized(numbers(6, 6, 3, 3), 0, more=more)
    layers = EXECUTOR.open(model.data, CPU).placement()
    convolutions = [layer for layer in layers if layer.op == "Convolution"]
    assert convolutions
    assert {layer.reason for layer in convolutions} == {"int8"}
    for seed in range(3):
        inputs = inputs_of(model, seed)
        expected, actual = right(model, inputs)["y"], EXECUTOR.open(model.data, CPU).run(inputs)["y"]
        # halves are rounded away from zero there and to even numbers here: a step of the grid, in few places
        far = np.abs(actual - expected) > 1e-3
        assert far.mean() < 0.01
        np.testing.assert_allclose(actual, expected, atol=0.1)


def test_integers_go_from_layer_to_layer_where_only_integer_layers_read_them():
    text = ncnn_file(quantized(numbers(6, 6, 3, 3), 0, more=AGAIN).data).param
    assert len(re.findall(r"8=101", text)) == 1
    assert len(re.findall(r"8=1\b", text)) == 1


def test_a_convolution_of_each_channel_runs_on_integers():
    weights = numbers(6, 1, 3, 3)
    more = "y = Conv<group = 6, pads = [1,1,1,1]>(d, w, b6) }"
    model = quantized(weights, 0, more=more)
    inputs = inputs_of(model)
    np.testing.assert_allclose(EXECUTOR.open(model.data, CPU).run(inputs)["y"], right(model, inputs)["y"], atol=0.05)


def test_integers_with_a_zero_point_are_refused_by_name():
    with pytest.raises(UnsupportedError, match="QuantizeLinear to uint8"):
        EXECUTOR.open(quantized(numbers(6, 6, 3, 3), 0, zero="zu").data, CPU)


REFUSED = {
    "ncnn has no Dropout in training": TRAINING,
    "ncnn has no TopK": f"({PICTURE}) => (float[1,6,9,3] y, int64[1,6,9,3] i) {{ y, i = TopK(x, three) }}",
    "ncnn takes float32, and 'x' is int64": "(int64[1,4] x) => (float[1,4] y) { y = Cast<to = 1>(x) }",
    "every shape in numbers": "(float[1,3,H,8] x) => (float[1,3,H,8] y) { y = Relu(x) }",
    "ncnn has no Conv of several pictures": "(float[2,6,9,10] x) => (float[2,8,7,8] y) { y = Conv(x, w86) }",
    "ncnn has no Resize of the nearest pixel": f'({PICTURE}) => (float[1,6,18,20] y) {{ y = Resize<mode = "nearest", nearest_mode = "ceil">(x, , twice) }}',
    "ncnn has no BatchNormalization of several": "(float[2,6,9,10] x) => (float[2,6,9,10] y) { y = BatchNormalization(x, scale, b6, mean, variance) }",
    "ncnn has no MaxPool of several": "(float[2,6,8,8] x) => (float[2,6,4,4] y) { y = MaxPool<kernel_shape = [2,2], strides = [2,2]>(x) }",
    "ncnn has no Expand from": "(float[1,2] x) => (float[3,5,3,2,2] y) { y = Expand(x, five) }",
    "ncnn has no ConvTranspose with output_shape": "(float[1,6,5,5] x) => (float[1,4,9,9] y) { y = ConvTranspose<strides = [2,2], output_shape = [9,9]>(x, t64) }",
    "ncnn has no Gemm with a bias for each row": "(float[4,10] x) => (float[4,4] y) { y = Gemm(x, m104, column) }",
    "ncnn takes float32, and 'y' is int8": f"({PICTURE}) => (int8[1,6,9,10] y) {{ y = QuantizeLinear(x, step, z8) }}",
    "ncnn has no Gather of places beyond 10": f"({PICTURE}) => (float[1,6,9,1] y) {{ y = Gather<axis = 3>(x, far) }}",
    "ncnn has no Conv with a bias of 6 for 8 channels": f"({PICTURE}) => (float[1,8,7,8] y) {{ y = Conv(x, w86, b6) }}",
    "ncnn has no Gather of places": f"({PICTURE}) => (float[1,6,9,2] y) {{ y = Gather<axis = 3>(x, apart) }}",
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_it_lacks_is_one_line_that_names_the_node(said):
    with pytest.raises(UnsupportedError, match=said) as refused:
        EXECUTOR.open(model_of(REFUSED[said]).data, CPU)
    assert refused.value.remedy


def test_a_file_of_its_own_holds_the_model(tmp_path):
    model = model_of(OPS["convolution with an activation"])
    out = tmp_path / "model.ncnn"
    session = EXECUTOR.open(model.data, SessionOptions(("CPU",), 1, save_optimized_to=str(out)))
    inputs = inputs_of(model)
    again = EXECUTOR.open(out, CPU)
    assert [(spec.name, spec.shape) for spec in again.inputs] == [(spec.name, spec.shape) for spec in session.inputs]
    np.testing.assert_array_equal(again.run(inputs)["y"], session.run(inputs)["y"])
    np.testing.assert_array_equal(EXECUTOR.open(out.read_bytes(), CPU).run(inputs)["y"], session.run(inputs)["y"])


def test_integer_sums_that_winograd_would_overflow_are_exact_all_the_same():
    integers = {
        "wi": np.full((8, 32, 3, 3), 127, np.int8),
        "ws": np.full(8, 0.01, np.float32),
        "wz": np.zeros(8, np.int8),
    }
    model = parse(
        """small (float[1,32,8,8] x) => (float[1,8,8,8] y) {
            q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) w = DequantizeLinear<axis = 0>(wi, ws, wz)
            y = Conv<pads = [1,1,1,1]>(d, w)
        }""",
        s=np.array(0.01, np.float32),
        z=np.array(0, np.int8),
        **integers,
    )
    inputs = {"x": np.full((1, 32, 8, 8), 1.27, np.float32)}
    np.testing.assert_allclose(EXECUTOR.open(model.data, CPU).run(inputs)["y"], right(model, inputs)["y"], rtol=1e-4)


def test_groups_that_ncnn_gets_wrong_in_bfloat16_are_refused_there():
    model = model_of(OPS["convolution of groups"])
    with pytest.raises(UnsupportedError, match="wrongly in bfloat16"):
        EXECUTOR.open(model.data, SessionOptions(("CPU",), 1, precision="bf16"))
    EXECUTOR.open(model.data, CPU).close()


@pytest.mark.parametrize("bad", [b"EDGENCNN" + b"x" * 40, b"\xf8DGENCNN" + b"x" * 40])
def test_bytes_that_are_no_model_are_refused(bad):
    with pytest.raises(InvalidFileError):
        EXECUTOR.open(bad, CPU)


@pytest.mark.parametrize(
    "change",
    [
        lambda file: replace(file, param=file.param.replace("Convolution ", "ReLU        ")),
        lambda file: replace(file, param=file.param + "\nReLU\n"),
        lambda file: replace(file, outputs=()),
        lambda file: replace(file, inputs=(replace(file.inputs[0], dims=(1, 1)),)),
        lambda file: replace(file, inputs=(replace(file.inputs[0], blob="other"),)),
        lambda file: replace(file, outputs=(replace(file.outputs[0], blob="other"),)),
    ],
)
def test_a_file_that_would_end_the_process_is_refused(change):
    file = ncnn_file(model_of(OPS["convolution of evens"]).data)
    assert EXECUTOR.open(file.to_bytes(), CPU).outputs
    with pytest.raises(InvalidFileError):
        EXECUTOR.open(change(file).to_bytes(), CPU)


@pytest.mark.parametrize("cut", [4, 20, 200, -1])
def test_a_file_that_is_cut_off_is_refused(tmp_path, cut):
    out = tmp_path / "model.ncnn"
    out.write_bytes(ncnn_file(model_of(OPS["convolution"]).data).to_bytes()[:cut])
    with pytest.raises(InvalidFileError, match=r"model\.ncnn is no network of ncnn"):
        EXECUTOR.open(out, CPU)


def test_weights_that_are_shorter_than_the_layers_say_are_refused_and_not_read_beyond(tmp_path):
    file = ncnn_file(model_of(OPS["convolution"]).data)
    short = type(file)(file.param, file.weights[:100], file.inputs, file.outputs)
    with pytest.raises(InvalidFileError, match="does not load"):
        EXECUTOR.open(short.to_bytes(), CPU)


def test_bfloat16_is_asked_for_and_never_a_default():
    model = model_of(OPS["convolution"])
    inputs = inputs_of(model)
    expected = right(model, inputs)["y"]
    error = {
        precision: np.abs(
            EXECUTOR.open(model.data, SessionOptions(("CPU",), 1, precision=precision)).run(inputs)["y"] - expected
        ).max()
        for precision in ("", "fp32", "bf16")
    }
    assert error[""] == error["fp32"] < 1e-4
    assert 1e-4 < error["bf16"] < 0.5


def test_options_are_its_own_and_checked():
    model = model_of(OPS["convolution"])
    winograd = SessionOptions(("CPU",), 2, {"use_winograd_convolution": "0"})
    inputs = inputs_of(model)
    np.testing.assert_allclose(
        EXECUTOR.open(model.data, winograd).run(inputs)["y"], right(model, inputs)["y"], atol=1e-4
    )
    with pytest.raises(NotFoundError, match="use_vulkan_compute"):
        EXECUTOR.open(model.data, SessionOptions(("CPU",), 1, {"use_vulkan_compute": "1"}))
    with pytest.raises(InvalidFileError, match="0 or 1"):
        EXECUTOR.open(model.data, SessionOptions(("CPU",), 1, {"use_sgemm_convolution": "yes"}))


def test_a_file_is_read_back_as_it_was_written():
    file = ncnn_file(model_of(OPS["parts"]).data)
    assert read_ncnn_file(file.to_bytes(), "it") == file


@pytest.mark.parametrize(
    ("target", "emit", "said"),
    [("ncnn-cpu", ("openvino",), "engine with files of its own"), ("cpu-x86-vnni", ("ncnn",), "does not run")],
)
def test_files_of_an_engine_that_the_command_does_not_run_are_refused_before_any_work(tmp_path, target, emit, said):
    with pytest.raises((NotFoundError, UnavailableError), match=said):
        optimize("digits_detector", target=target, out=tmp_path / "o", emit=emit)
    assert not (tmp_path / "o" / "candidates").exists()


def test_inspect_tells_where_nodes_run_and_what_is_refused(tmp_path):
    inspection = inspect_model("digits_detector", target="ncnn-cpu")
    assert re.fullmatch(r"all \d+ nodes on the CPU", inspection.verdict)
    file = tmp_path / "top.onnx"
    file.write_bytes(model_of(REFUSED["ncnn has no TopK"]).data)
    verdict = inspect_model(str(file), target="ncnn-cpu").verdict
    assert verdict.startswith("ncnn-cpu refuses the model: ncnn has no TopK")


def test_its_numbers_are_compared_before_anything_is_made_for_it():
    model, target = model_of(OPS["convolution with an activation"]), find_target("ncnn-cpu")
    assert find_engine_fault(model, lambda: made_up_samples(model), target) == ""
    overflowing = replace(target, precisions=("fp32",), options={"use_sgemm_convolution": "0"})
    assert find_engine_fault(model, lambda: made_up_samples(model), overflowing) == ""


def test_the_first_int8_form_tells_whether_an_engine_is_worth_a_search(tmp_path, few_forms):
    file, samples = tmp_path / "small.onnx", tmp_path / "in.npz"
    file.write_bytes(quantized_by_nobody().data)
    np.savez(samples, x=np.random.default_rng(3).standard_normal((6, 6, 40, 40)).astype(np.float32))
    options = {"target": "cpu", "out": tmp_path / "o", "threads": 1, "steps": ("quantize",), "calib": str(samples)}
    report = optimize(file, **options)
    by_ncnn = [candidate for candidate in report.candidates if candidate.executor == "ncnn"]
    assert {"fp32", "bf16", "w8a8"} <= {candidate.precision for candidate in by_ncnn}
    cut = [note.detail for note in report.notes if "not searched further" in note.detail]
    assert all(
        detail.startswith("INT8 on ncnn-cpu not searched further: its fastest form so far takes about")
        for detail in cut
    )
    integers = [candidate for candidate in by_ncnn if candidate.precision == "w8a8"]
    assert len(integers) <= (1 if cut else 2)


def quantized_by_nobody() -> Model:
    weights = {"a": numbers(16, 6, 3, 3), "b": numbers(16, 16, 3, 3) / 12, "c": numbers(8, 16, 1, 1) / 4}
    return parse(
        """small (float[1,6,40,40] x) => (float[1,8,40,40] y) {
            p = Conv<pads = [1,1,1,1]>(x, a)
            q = Relu(p)
            r = Conv<pads = [1,1,1,1]>(q, b)
            s = Relu(r)
            y = Conv(s, c)
        }""",
        **weights,
    )


def test_a_disk_that_takes_no_file_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.raises(UnavailableError, match="ncnn reads weights from a temporary file") as refused:
        EXECUTOR.open(model_of(OPS["convolution"]).data, CPU)
    assert "TMPDIR" in refused.value.remedy
