"""OpenVINO against the oracle: its numbers, its stages, and where it would do something else in silence."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_faults import norm_that_widens, norm_without_the_axis
from fixture_brief import briefly, ending_after
from npu_models import conv_relu, frames, numbers, parse, spread
from onnx import TensorProto, helper

from edgeopt.errors import InvalidFileError, Missing, NotFoundError, UnavailableError, UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime.optimizers import DISABLED_OPTIMIZERS
from edgeopt.executors.openvino import BLOB_SUFFIX, EXECUTOR
from edgeopt.executors.reference import EXECUTOR as REFERENCE
from edgeopt.graph.model import Model
from edgeopt.measurement.opening.right_optimizations import find_engine_fault, made_up_samples
from edgeopt.optimization.candidate import RESUMED
from edgeopt.optimization.optimize import optimize
from edgeopt.optimization.result import ModelReport
from edgeopt.recipes.inputs.preprocess import Input, PictureInput, Preprocess, Resize
from edgeopt.recipes.recipe import find_recipe
from edgeopt.runtime.bundle import read_bundle
from edgeopt.runtime.fallback import open_artefact
from edgeopt.runtime.runtime import Runtime
from edgeopt.steps.embed_preprocess import embed_preprocess
from edgeopt.steps.quantize.api import Form, open_graph, quantize
from edgeopt.steps.quantize.calibration.findings import study
from edgeopt.steps.quantize.inspection.engine_fusion import fusion_notes
from edgeopt.steps.quantize.repairs.fitted_silu import fit_silus, place_fits
from edgeopt.system.declared.target import find_target
from edgeopt.system.machine.processor import cpu_flags

_REASON = EXECUTOR.why_unavailable()
pytestmark = pytest.mark.skipif(_REASON is not None, reason=str(_REASON))


@pytest.fixture(scope="module", autouse=True)
def _alone() -> Iterator[None]:
    """Leave out the engines that may lie in the same environment: each that is there makes a run longer."""
    with pytest.MonkeyPatch.context() as patch:
        for extra, executor in {"ncnn": "Ncnn", "litert": "LiteRT", "mnn": "Mnn", "executorch": "ExecuTorch"}.items():
            reason = Missing(f"{extra} is not installed", f"pip install 'edgeopt[{extra}]'")
            patch.setattr(f"edgeopt.executors.{extra}.{executor}.why_unavailable", lambda _, reason=reason: reason)
        yield


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], ModelReport]:
    """The wishes and the report of a run that offers ONNX Runtime's models and OpenVINO's."""
    wishes = {"target": "cpu", "out": tmp_path_factory.mktemp("both") / "o", "threads": 1, "skip": LEFT_OUT}
    with briefly(), ending_after(1):
        return wishes, optimize("digits_detector", **wishes)


LEFT_OUT = ("prune", "activations")
"""Steps of which no test here looks at what they make."""


CPU = SessionOptions(("CPU",), 1)
BF16 = SessionOptions(("CPU",), 1, precision="bf16")
FP16 = SessionOptions(("CPU",), 1, precision="fp16")
RULES = find_target("openvino-cpu").rules_here
HAS_BF16 = bool({"avx512_bf16", "amx_bf16"} & cpu_flags())
HAS_FP16 = bool({"avx512_fp16", "amx_fp16"} & cpu_flags())
needs_bf16 = pytest.mark.skipif(not HAS_BF16, reason="this processor has no native bfloat16")


def deep() -> Model:
    """Four wide convolutions: enough products for a rounding of 8 bits to show."""
    layers = "".join(f"c{i} = Conv <pads = [1,1,1,1]> (r{i}, w{i}) r{i + 1} = Relu(c{i}) " for i in range(4))
    text = f"deep (float[1,16,12,12] x) => (float[1,16,12,12] y) {{ r0 = Identity(x) {layers} y = Identity(r4) }}"
    return parse(text, **{f"w{i}": spread(16, 16, 3, 3, seed=i) * np.float32(2) for i in range(4)})


def two_outputs() -> Model:
    return parse(
        """two (float[1,3,8,8] a, float[1,3,8,8] b) => (float[1,3,8,8] sum, float[1,4,8,8] conv) {
            sum = Add(a, b)
            conv = Conv(b, w)
        }""",
        w=numbers(4, 3, 1, 1),
    )


def error_db(model: Model, options: SessionOptions) -> float:
    """Return how far the answers lie below those of the reference, in decibels."""
    session, reference = EXECUTOR.open(model.data, options), REFERENCE.open(model.data, SessionOptions())
    noise = signal = 0.0
    for frame in frames(model, 3):
        expected, actual = reference.run(frame), session.run(frame)
        noise += sum(float(np.square(expected[name] - actual[name]).sum()) for name in expected)
        signal += sum(float(np.square(one).sum()) for one in expected.values())
    return float(10 * np.log10(signal / max(noise, 1e-30)))


@pytest.mark.parametrize("make", [conv_relu, deep, two_outputs])
def test_it_agrees_with_the_reference(make):
    model = make()
    inputs = frames(model, 1)[0]
    expected = REFERENCE.open(model.data, SessionOptions()).run(inputs)
    actual = EXECUTOR.open(model.data, CPU).run(inputs)
    assert list(actual) == [one.name for one in model.outputs]
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=1e-4, atol=1e-4)


def test_a_file_is_opened_as_its_bytes_are(tmp_path):
    model = conv_relu()
    path = tmp_path / "model.onnx"
    path.write_bytes(model.data)
    inputs = frames(model, 1)[0]
    found = [EXECUTOR.open(source, CPU).run(inputs)["y"] for source in (path, model.data)]
    np.testing.assert_array_equal(*found)


def test_the_stages_are_a_run_and_their_results_outlive_the_next_one():
    model = conv_relu()
    first, second = frames(model, 2)
    session = EXECUTOR.open(model.data, CPU)
    kept = session.download(session.execute(session.upload(first)))["y"]
    before = kept.copy()
    session.run(second)
    np.testing.assert_array_equal(kept, before)
    np.testing.assert_array_equal(session.run(first)["y"], before)
    assert [(one.name, one.dtype, one.shape) for one in session.inputs] == [("x", "float32", (1, 3, 16, 16))]
    assert session.outputs[0].shape == (1, 8, 16, 16)


def test_what_was_uploaded_lives_until_it_is_executed_though_its_caller_lets_go():
    model = two_outputs()
    session = EXECUTOR.open(model.data, CPU)
    wide = numbers(1, 3, 8, 16)
    expected = wide[..., ::2] * 2
    session.upload({"a": wide[..., ::2], "b": wide[..., ::2].copy()})
    overwritten = [np.full((1, 3, 8, 8), np.nan, np.float32) for _ in range(64)]
    assert len(overwritten) == 64
    np.testing.assert_array_equal(session.download(session.execute(None))["sum"], expected)


def test_an_array_that_is_filled_again_is_read_again():
    model = two_outputs()
    session = EXECUTOR.open(model.data, CPU)
    inputs = {"a": numbers(1, 3, 8, 8), "b": numbers(1, 3, 8, 8, seed=1)}
    for _ in range(3):
        np.testing.assert_array_equal(session.run(inputs)["sum"], inputs["a"] + inputs["b"])
        inputs["a"] += 1
    strided = numbers(1, 3, 16, 8)[:, :, ::2]
    for _ in range(2):
        np.testing.assert_array_equal(session.run({**inputs, "a": strided})["sum"], strided + inputs["b"])
        strided += 1


def test_a_strided_input_is_read_as_numpy_reads_it_and_a_read_only_one_too():
    model = two_outputs()
    whole = numbers(1, 3, 16, 16, seed=3)
    whole.flags.writeable = False
    inputs = {"a": whole[:, :, ::2, ::2], "b": whole[:, :, 1::2, 1::2].copy()}
    inputs["b"].flags.writeable = False
    found = EXECUTOR.open(model.data, CPU).run(inputs)
    np.testing.assert_allclose(found["sum"], inputs["a"] + inputs["b"], rtol=1e-6)


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({}, "inputs are , not x"),
        ({"x": numbers(1, 3, 16, 16), "z": numbers(1)}, "inputs are x, z, not x"),
        ({"x": numbers(1, 3, 16, 16).astype(np.float64)}, "input 'x' is float64, not float32"),
    ],
)
def test_wrong_inputs_are_refused_by_name(inputs, said):
    session = EXECUTOR.open(conv_relu().data, CPU)
    with pytest.raises(ValueError, match=said):
        session.run(inputs)


def test_float32_is_computed_in_float32_though_openvino_would_rather_not():
    assert error_db(deep(), CPU) > 100
    assert error_db(deep(), SessionOptions(("CPU",), 1, precision="fp32")) > 100


@needs_bf16
def test_bfloat16_is_used_only_when_asked_for_and_its_error_is_that_of_eight_bits():
    assert 30 < error_db(deep(), BF16) < 60
    kernels = {one.reason for one in EXECUTOR.open(deep().data, BF16).placement() if one.op == "Convolution"}
    assert all("bf16" in one for one in kernels)


@pytest.mark.skipif(HAS_FP16, reason="this processor computes in float16")
def test_a_precision_that_would_be_replaced_in_silence_is_refused():
    with pytest.raises(UnavailableError, match="not in f16"):
        EXECUTOR.open(conv_relu().data, FP16)


@pytest.mark.skipif(not HAS_FP16, reason="this processor has no native float16")
def test_float16_is_used_when_asked_for_and_its_error_is_that_of_eleven_bits():
    assert 55 < error_db(deep(), FP16) < 80
    kernels = {one.reason for one in EXECUTOR.open(deep().data, FP16).placement() if one.op == "Convolution"}
    assert all("f16" in one and "bf16" not in one for one in kernels)


def test_a_precision_that_openvino_does_not_know_is_refused():
    with pytest.raises(ValueError, match="precision is 'int4'"):
        EXECUTOR.open(conv_relu().data, SessionOptions(("CPU",), 1, precision="int4"))


@pytest.mark.parametrize("device", ["NPU.7", "GPU.7", "AUTO", "AUTO:NPU,CPU", "HETERO:NPU,CPU", "MULTI:CPU", "nope"])
def test_a_device_that_is_not_here_and_one_that_falls_back_are_errors(device):
    assert device not in EXECUTOR.devices()
    with pytest.raises(UnavailableError, match=rf"no device {device} here, only .*CPU"):
        EXECUTOR.open(conv_relu().data, SessionOptions((device,), 1))


def test_it_takes_one_device():
    with pytest.raises(ValueError, match="one device, not NPU, CPU"):
        EXECUTOR.open(conv_relu().data, SessionOptions(("NPU", "CPU"), 1))


def test_an_unknown_entry_is_an_error_and_a_known_one_is_taken():
    with pytest.raises(NotFoundError, match="did you mean 'ENABLE_CPU_PINNING'"):
        EXECUTOR.open(conv_relu().data, SessionOptions(("CPU",), 1, {"ENABLE_CPU_PINING": "NO"}))
    with pytest.raises(UnsupportedError, match="INFERENCE_PRECISION_HINT is no entry"):
        EXECUTOR.open(conv_relu().data, SessionOptions(("CPU",), 1, {"INFERENCE_PRECISION_HINT": "bf16"}))
    EXECUTOR.open(conv_relu().data, SessionOptions(("CPU",), 1, {"ENABLE_CPU_PINNING": "NO"}))
    with pytest.raises(ValueError, match="no operator profile"):
        EXECUTOR.open(conv_relu().data, SessionOptions(("CPU",), 1, profile_to="profile"))


def test_what_is_no_model_is_said_to_be_none(tmp_path):
    with pytest.raises(InvalidFileError, match="OpenVINO cannot read the model"):
        EXECUTOR.open(b"no model", CPU)
    with pytest.raises(InvalidFileError, match=r"cannot read .*absent\.onnx"):
        EXECUTOR.open(tmp_path / "absent.onnx", CPU)


def test_an_op_that_it_does_not_know_is_named():
    unknown = conv_relu().proto
    unknown.graph.node[1].op_type, unknown.graph.node[1].domain = "Relux", "of.nobody"
    unknown.opset_import.add(domain="of.nobody", version=1)
    with pytest.raises(UnsupportedError, match=r"No conversion rule found for operations: of\.nobody\.Relux"):
        EXECUTOR.open(unknown.SerializeToString(), CPU)


def test_a_model_of_texts_is_refused_when_it_is_opened():
    with pytest.raises(UnsupportedError, match="OpenVINO is given numbers, and 'words' holds texts"):
        EXECUTOR.open(parse("texts (string[2] words) => (string[2] same) { same = Identity(words) }").data, CPU)


def test_a_compiled_model_gives_the_same_answers_without_the_onnx_file(tmp_path):
    model = deep()
    inputs = frames(model, 1)[0]
    saved = tmp_path / f"model{BLOB_SUFFIX}"
    session = EXECUTOR.open(model.data, SessionOptions(("CPU",), 1, save_optimized_to=str(saved)))
    expected = session.run(inputs)["y"]
    for source in (saved, session.export_blob()):
        opened = EXECUTOR.open(source, CPU)
        assert [one.name for one in opened.inputs] == ["x"]
        np.testing.assert_array_equal(opened.run(inputs)["y"], expected)


@pytest.mark.parametrize("kept", [0.5, 0.0])
def test_a_torn_compiled_model_is_refused(tmp_path, kept):
    blob = EXECUTOR.open(conv_relu().data, CPU).export_blob()
    torn = tmp_path / f"model{BLOB_SUFFIX}"
    torn.write_bytes(blob[: int(len(blob) * kept)])
    with pytest.raises(UnavailableError, match="does not take this compiled model"):
        EXECUTOR.open(torn, CPU)


def test_placement_names_every_kernel_and_its_device():
    placed = EXECUTOR.open(conv_relu().data, CPU).placement()
    assert {one.provider for one in placed} == {"CPU"}
    (conv,) = [one for one in placed if one.op == "Convolution"]
    assert "f32" in conv.reason.lower()


def test_pairs_on_inputs_only_run_on_integer_kernels_and_keep_the_answer():
    model = deep()
    outcome = quantize(model, frames(model), RULES, form=Form.INPUTS)
    placed = EXECUTOR.open(outcome.model.data, CPU).placement()
    convolutions = [one for one in placed if one.op == "Convolution"]
    assert len(convolutions) == 4
    assert all("I8" in one.reason for one in convolutions), convolutions
    inputs = frames(model, 1)[0]
    actual = EXECUTOR.open(outcome.model.data, CPU).run(inputs)["y"]
    expected = REFERENCE.open(model.data, SessionOptions()).run(inputs)["y"]
    assert np.corrcoef(actual.ravel(), expected.ravel())[0, 1] > 0.995


def silus() -> Model:
    text = """silus (float[1,16,12,12] x) => (float[1,8,12,12] y) {
        c = Conv <pads = [1,1,1,1]> (x, w, b)
        cs = Sigmoid(c)
        ca = Mul(c, cs)
        d = Conv(ca, v, a)
        ds = Sigmoid(d)
        da = Mul(d, ds)
        y = Conv(da, u)
    }"""
    constants = {"w": spread(16, 16, 3, 3) * 3, "v": spread(32, 16, 1, 1) * 3, "u": spread(8, 32, 1, 1)}
    return parse(text, **constants, b=numbers(16, seed=1), a=numbers(32, seed=2))


def test_a_layer_whose_stored_integers_are_multiplied_in_float_is_named():
    model = deep()
    made = quantize(model, frames(model), RULES, form=Form.INPUTS).model
    target = find_target("openvino-cpu")
    whole = fusion_notes(made, target)
    assert [str(note) for note in whole] == ["OpenVINO runs 4 of 4 layers with INT8 weights on integers"]
    third = [node for node in made.proto.graph.node if node.op_type == "Conv"][2]
    makers = {name: node for node in made.proto.graph.node for name in node.output}
    third.input[0] = makers[makers[third.input[0]].input[0]].input[0]  # past its pair: INT8 weights, real activations
    told, warning = fusion_notes(Model(made.proto, "broken"), target)
    assert told.detail == "OpenVINO runs 3 of 4 layers with INT8 weights on integers"
    assert warning.kind == "warning"
    assert warning.names == (third.name or third.output[0],)


@pytest.mark.parametrize("quantized", [False, True])
def test_a_fitted_silu_and_its_numbers_for_each_channel_are_part_of_the_convolutions_kernel(quantized):
    model = silus()
    graph = open_graph(model)
    seen = study(model, graph, frames(model), RULES).calibration.observations
    assert place_fits(graph, fit_silus(graph, seen)) == 2
    made = graph.to_model()
    if quantized:
        made = quantize(made, frames(made), RULES, form=Form.INPUTS).model
    ops = [one.op for one in EXECUTOR.open(made.data, CPU).placement()]
    assert ops.count("Convolution") == 3
    bordering = {"Convolution", "Reorder", "Reshape"}  # what is reshaped are biases
    assert [one for one in ops if one not in bordering] == ["Subgraph"] * quantized  # the rounding of the model's input


def test_what_moves_values_between_integer_layers_moves_bytes():
    text = """pooled (float[1,3,16,16] x) => (float[1,8,8,8] y) {
        c = Conv <pads = [1,1,1,1]> (x, w)
        d = Conv <pads = [1,1,1,1]> (x, v)
        cr = Relu(c)
        dr = Relu(d)
        both = Concat <axis = 1> (cr, dr)
        p = MaxPool <kernel_shape = [2,2], strides = [2,2]> (both)
        y = Conv(p, u)
    }"""
    model = parse(text, w=spread(16, 3, 3, 3), v=spread(16, 3, 3, 3, seed=1), u=spread(8, 32, 1, 1, seed=2))
    made = quantize(model, frames(model), RULES, form=Form.INPUTS).model
    kernels = {one.op: one.reason for one in EXECUTOR.open(made.data, CPU).placement()}
    assert "u8" in kernels["Pooling"]
    assert "u8" in kernels["Concatenation"]


def test_a_free_batch_dimension_is_run_as_it_comes():
    model = parse("free (float[n,3,8,8] x) => (float[n,4,8,8] y) { y = Conv(x, w) }", w=numbers(4, 3, 1, 1))
    session = EXECUTOR.open(model.data, CPU)
    assert session.inputs[0].shape == (None, 3, 8, 8)
    assert [session.run({"x": numbers(n, 3, 8, 8)})["y"].shape[0] for n in (1, 3, 2)] == [1, 3, 2]


def test_opening_and_running_reports_nothing_to_anyone_and_imports_no_onnx(tmp_path):
    """OpenVINO's telemetry makes a folder with an identity in the user's home before it sends anything."""
    (tmp_path / "model.onnx").write_bytes(conv_relu().data)
    code = (
        "import sys, pathlib, numpy as np\n"
        "from edgeopt.executors import SessionOptions\n"
        "from edgeopt.executors.openvino import EXECUTOR\n"
        "session = EXECUTOR.open(pathlib.Path('model.onnx'), SessionOptions(('CPU',), 1))\n"
        "session.run({'x': np.ones((1, 3, 16, 16), np.float32)})\n"
        "print(sys.modules.get('openvino_telemetry'), 'onnx' in sys.modules)\n"
    )
    home = tmp_path / "home"
    home.mkdir()
    environment = {**os.environ, "HOME": str(home), "LOCALAPPDATA": str(home), "CI": ""}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["None", "False"], done.stderr
    assert not list(home.rglob("*"))


@pytest.mark.slow
def test_the_cpu_target_offers_both_engines_and_the_bundle_opens_on_the_one_that_won(both):
    report = both[1]
    engines = {one.name: one.executor for one in report.candidates}
    assert engines["fuse"] == "onnxruntime"
    assert engines["openvino-fp32"] == engines["openvino-w8a8"] == "openvino"
    assert ("openvino-bf16" in engines) == HAS_BF16
    offered = [one for one in report.candidates if one.executor == "openvino"]
    assert all(one.latency and one.speed for one in offered)
    assert all(one.agreement > 0.9 for one in offered if one.precision.startswith("w8"))
    assert all(one.score.n == 160 for one in offered if one.word in ("KEPT", "NOT DECIDED") and one.judgement.samples)
    first = read_bundle(report.bundle).artefacts[0]
    assert (first.executor, first.precision) == (report.best.executor, report.best.precision)
    runtime = Runtime.load(report.bundle, threads=1)
    assert runtime.notes == ()
    assert report.best.executor in type(runtime.session).__module__
    told = (report.folder / "report.md").read_text()
    assert "openvino-fp32" in told
    assert "openvino, fp32" in told


def test_the_target_openvino_cpu_runs_the_whole_line_on_openvino_alone(tmp_path, brief):
    report = optimize("digits_detector", target="openvino-cpu", out=tmp_path / "o", threads=1, steps=("fuse",))
    assert {one.executor for one in report.candidates} == {"openvino"}
    assert {one.precision for one in report.candidates} == ({"fp32", "bf16"} if HAS_BF16 else {"fp32"})
    assert all(one.drop is None or one.drop < 0.01 for one in report.candidates[1:])
    *first, last = read_bundle(report.bundle).artefacts
    assert {one.executor for one in first} == {"openvino"}
    assert (last.executor, last.precision) == ("onnxruntime", "fp32"), "a device without OpenVINO still answers"
    assert "OpenVinoSession" in type(Runtime.load(Path(report.bundle), threads=1).session).__name__


def test_where_openvino_changes_the_answers_it_is_not_tried_and_its_own_target_is_an_error(tmp_path, brief):
    model, target = norm_without_the_axis(), find_target("openvino-cpu")
    told = find_engine_fault(model, lambda: made_up_samples(model), target)
    first = "first at Div node 'divide'"
    assert re.match(rf"OpenVINO 20\S+ changes what norm_without_the_axis answers, by \d+%, {first}$", told)
    assert find_engine_fault(conv_relu(), lambda: made_up_samples(conv_relu()), target) == ""
    file, samples = tmp_path / "norm.onnx", tmp_path / "in.npz"
    file.write_bytes(model.data)
    np.savez(samples, x=np.random.default_rng(3).standard_normal((6, 8, 8)).astype(np.float32))
    given = {"calib": str(samples), "steps": ("simplify",), "threads": 1}
    report = optimize(file, target="cpu", out=tmp_path / "cpu", **given)
    assert "openvino" not in {one.executor for one in report.candidates}
    assert any(note.detail.startswith("openvino-cpu not tried: OpenVINO") for note in report.notes)
    with pytest.raises(UnsupportedError, match=r"(?s)^OpenVINO .* changes what norm answers.*--target cpu"):
        optimize(file, target="openvino-cpu", out=tmp_path / "openvino", **given)


def test_a_bundle_for_openvino_falls_back_on_a_model_that_onnx_runtime_takes(tmp_path, brief):
    file, samples = tmp_path / "norm.onnx", tmp_path / "in.npz"
    file.write_bytes(norm_that_widens().data)
    values = np.random.default_rng(3).standard_normal((6, 1, 4, 8)).astype(np.float32)
    np.savez(samples, x=values)
    given = {"calib": str(samples), "steps": ("simplify",), "threads": 1}
    report = optimize(file, target="openvino-cpu", out=tmp_path / "out", **given)
    bundle = read_bundle(report.bundle)
    first, *_, last = bundle.artefacts
    assert (first.executor, last.executor) == ("openvino", "onnxruntime")
    assert DISABLED_OPTIMIZERS in last.options
    right = EXECUTOR.open(file, CPU).run({"x": values[0]})["y"]
    found = open_artefact(bundle, last).session.run({"x": values[0]})["y"]
    np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)


def test_a_step_taken_up_from_disk_keeps_its_engine(both, tmp_path, one_form):
    wishes, first = {**both[0], "out": tmp_path / "o"}, both[1]
    shutil.copytree(first.folder, tmp_path / "o")
    again = optimize("digits_detector", **wishes, resume=True)
    taken = {one.name: one for one in again.candidates if RESUMED in one.notes}
    assert "openvino-fp32" in taken
    assert taken["openvino-fp32"].executor == "openvino"
    assert [one.name for one in again.candidates] == [one.name for one in first.candidates]


def test_the_npu_target_says_what_is_missing(tmp_path, brief):
    if "NPU" in EXECUTOR.devices():
        pytest.skip("this machine has an NPU")
    report = optimize("digits_detector", target="intel-npu", out=tmp_path / "o", steps=("simplify", "fuse"))
    assert any(note.detail.startswith("not compiled: ") and "NPU" in note.detail for note in report.notes)
    assert report.best.placement.endswith("on the NPU (by rule; not compiled: openvino)")
    assert report.verdict_line.startswith("latency: not measured (no device)")


@pytest.mark.parametrize("resize", ["stretch", "centre_crop"])
def test_embedded_preprocessing_has_the_pixels_of_the_task(resize):
    """ReduceMin with a Div behind it is one wrong kernel here: nothing that is embedded may hold the two."""
    wanted, how = Input(size=(48, 64)), Preprocess(resize=Resize(resize), crop_from=70 if resize != "stretch" else 0)
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 3, 48, 64))] for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", *ends)
    model = Model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "same")
    recipe = replace(find_recipe("imagenet"), input=wanted, preprocess=how)
    session = EXECUTOR.open(embed_preprocess(model, recipe).data, CPU)
    for sides in ((48, 64), (90, 121), (37, 200), (20, 24)):
        frame = np.random.default_rng(0).integers(0, 256, (*sides, 3), dtype=np.uint8)
        tensor, _ = PictureInput(wanted, how, reuse=False)(frame)
        assert np.abs(session.run({"frame": frame})["y"] - tensor).max() <= 1
    session.close()
