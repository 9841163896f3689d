"""Rockchip's path: what the package printed and refused is recorded in `rknn/`; where it is here, it runs for real.

The package needs an environment of its own (5.5 GB), which CI lacks. There a stand-in of a few lines takes its place
behind the real worker: it prints what the real one printed, and proves the pipe, not Rockchip's numbers.
"""

from __future__ import annotations

import json
import sys
import tempfile
import venv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fixture_models import adapt
from npu_models import (
    bare_erf,
    conv_relu,
    double,
    dynamic_batch,
    frames,
    gelu_erf,
    parse,
    recurrent,
    scalar,
    spread,
    suppression,
    transformer,
)

from edgeopt import tasks
from edgeopt.errors import (
    InvalidFileError,
    MissingDependencyError,
    NotFoundError,
    StepError,
    UnavailableError,
    UnsupportedError,
)
from edgeopt.executors import Placement, SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR as CPU
from edgeopt.executors.rknn import ESTIMATE, EXECUTOR, PROVIDER, VARIABLE, Built, Rknn, check_options, refusal
from edgeopt.executors.rknn.table import read_layers
from edgeopt.graph.drift import measure_drift
from edgeopt.graph.model import load_model
from edgeopt.measurement.accuracy.evaluate import LabelledFrames, answers, model_inputs, open_labelled
from edgeopt.measurement.accuracy.parallel import simulate_answers
from edgeopt.recipes.inputs.frames import open_frames
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.steps.compile._numbers import run_on_cpu
from edgeopt.steps.compile._placement import check_rules, explain_placement
from edgeopt.steps.compile._rockchip import compile_for_rockchip
from edgeopt.steps.quantize.api import Form, quantize
from edgeopt.system.declared import registry
from edgeopt.system.declared.target import find_target, target_names

RECORDED = Path(__file__).parent / "rknn"
CHIPS = [name for name in target_names() if name.startswith("rockchip-")]
RK3588 = SessionOptions((PROVIDER,), 1, {"target_platform": "rk3588"})
ERRORS = json.loads((RECORDED / "errors.json").read_text("utf-8"))

_REASON = EXECUTOR.why_unavailable()
needs_package = pytest.mark.skipif(_REASON is not None, reason=str(_REASON))


def table(name: str) -> str:
    return (RECORDED / f"table_{name}.txt").read_text("utf-8")


# what the package printed


def test_every_layer_of_the_table_is_read_with_its_unit_and_its_cycles():
    layers = read_layers(table("rk3588_squeezenet_int8"))
    assert len(layers) == 41
    assert {one.unit for one in layers} == {"NPU"}
    assert {one.dtype for one in layers} == {"INT8", "FLOAT16"}
    first = layers[0]
    assert (first.name, first.op) == ("conv1_1", "ConvRelu")
    assert (first.ddr_cycles, first.npu_cycles, first.total_cycles) == (40112, 222048, 222048)
    assert layers[-1].name == "softmaxout_1"


def test_a_layer_that_is_left_to_the_processor_is_told_apart():
    layers = read_layers(table("rk3588_erf"))
    assert [(one.name, one.op, one.unit) for one in layers] == [
        ("first", "Conv", "NPU"),
        ("bad", "Erf", "CPU"),
        ("y", "Conv", "NPU"),
    ]


def test_chips_with_a_column_more_are_read_too():
    (layer,) = read_layers(table("rk3576_int8"))
    assert (layer.name, layer.dtype, layer.total_cycles) == ("c", "INT8", 2304)


def test_a_layer_of_the_compilers_own_has_no_name():
    assert [one.name for one in read_layers(table("rk3588_nameless"))] == ["", "y"]


def test_a_log_without_a_table_is_an_error():
    with pytest.raises(StepError, match="no table of layers"):
        read_layers("D RKNN: nothing of the kind")


def test_a_line_of_another_form_is_an_error_and_not_left_out():
    changed = table("rk3588_erf").replace("Erf                FLOAT16  CPU", "Erf CPU")
    with pytest.raises(StepError, match=r"a line of Rockchip's table of layers is unknown: .*Erf CPU"):
        read_layers(changed)


def test_cycles_are_called_the_vendors_estimate():
    built = Built(Path("x"), "rk3588", read_layers(table("rk3588_erf")), 1, "", "2.5.0")
    assert built.summary == f"rk3588: 3 layers, on the CPU Erf x1; 192 cycles ({ESTIMATE})"
    assert [one.provider for one in built.placement] == ["NPU", "CPU", "NPU"]
    assert built.placement[1].reason


@pytest.mark.parametrize(
    ("name", "kind", "told"),
    [
        ("free_shape", UnsupportedError, r"wants fixed shapes, input 'x' has \['n', 3, 16, 16\]"),
        ("shapes_of_data", UnsupportedError, r"depend on data: .*NonMaxSuppression\('kept'\)"),
        ("double", UnsupportedError, "refuses: .*float64"),
        ("new_opset", UnsupportedError, "takes opset 19 at most, the model has 21"),
        ("unknown_chip", UnsupportedError, "knows no chip 'rv999'"),
        ("integers_only", UnsupportedError, "rv1103b computes integers only"),
        ("scheme_of_another_chip", UnsupportedError, "'w8a16' not support in 'rk3588'"),
        ("layernorm", UnsupportedError, "does not know LayerNormalization"),
    ],
)
def test_what_the_package_refuses_is_an_error_with_a_remedy(name, kind, told):
    found = refusal(ERRORS[name]["error"], ERRORS[name]["log"])
    assert type(found) is kind
    assert found.remedy
    with pytest.raises(kind, match=told):
        raise found


def test_every_recorded_refusal_is_tested():
    assert len(ERRORS) == 8


def test_an_unknown_failure_keeps_the_packages_words():
    found = refusal("RuntimeError: build returned -1", "\x1b[1;31mE\x1b[0m \x1b[1;31mbuild: the moon is full\x1b[0m\n")
    assert isinstance(found, StepError)
    assert found.problem == "Rockchip's library failed: the moon is full"


def test_a_package_that_does_not_import_names_the_command():
    found = refusal("ModuleNotFoundError: No module named 'torch'", "")
    assert isinstance(found, MissingDependencyError)
    assert "pip install rknn-toolkit2" in found.remedy


# what a user sees without the package


def test_without_the_variable_the_reason_says_what_to_install(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    reason = EXECUTOR.why_unavailable()
    assert reason is not None
    assert reason.startswith(f"{VARIABLE} is not set")
    assert "pip install rknn-toolkit2" in reason


def test_a_python_that_is_no_file_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "absent"))
    assert "absent, which is no file" in str(EXECUTOR.why_unavailable())


def test_a_python_without_the_package_is_named(monkeypatch):
    monkeypatch.setenv(VARIABLE, sys.executable)
    assert "has no package rknn-toolkit2" in str(EXECUTOR.why_unavailable())


def test_opening_without_the_package_is_an_error_with_the_command(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(MissingDependencyError, match="pip install rknn-toolkit2"):
        EXECUTOR.open(conv_relu().data, RK3588)


def test_without_the_package_the_rules_judge(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    found = explain_placement(conv_relu(), find_target("rockchip-rk3588"))
    assert found.verdict == "all 2 nodes on the NPU (by rule; not compiled: rknn-toolkit2)"


@pytest.mark.parametrize("name", CHIPS)
def test_the_rules_of_every_chip_know_its_limits(name):
    target = find_target(name)
    assert check_options(SessionOptions(target.providers, 1, target.options)) == {
        "target_platform": name.removeprefix("rockchip-")
    }
    assert check_rules(parse("m (float[1,8] x) => (float[1,8] y) { y = Relu(x) }", opset=21), target)[0].reason
    assert check_rules(dynamic_batch(), target)[0].reason
    assert check_rules(double(), target)[0].reason
    assert any("NonMaxSuppression" in one.reason for one in check_rules(suppression(), target))
    assert ("fp16" in target.precisions) == (name != "rockchip-rv1103b")


@pytest.mark.parametrize(
    ("entries", "kind"),
    [
        ({}, InvalidFileError),
        ({"target_platform": "pi5"}, InvalidFileError),
        ({"target_platform": "rk3588", "quantized_algorithm": "best"}, InvalidFileError),
        ({"target_platform": "rk3588", "quantised_dtype": "w8a8"}, NotFoundError),
        ({"target_platform": "rk3588", "mean_values": "0"}, NotFoundError),
    ],
)
def test_an_option_that_is_wrong_is_refused_before_anything_starts(entries, kind):
    with pytest.raises(kind):
        EXECUTOR.open(b"", SessionOptions((PROVIDER,), 1, entries))


def test_what_the_chip_does_not_offer_is_refused():
    with pytest.raises(UnavailableError, match="has no CPUExecutionProvider"):
        check_options(replace(RK3588, providers=("CPUExecutionProvider",)))
    for asked in ({"precision": "bf16"}, {"profile_to": "p"}, {"save_optimized_to": "m"}):
        with pytest.raises(UnsupportedError):
            check_options(replace(RK3588, **asked))


# the pipe, with a stand-in for the package

STAND_IN = """
import os, sys, time
import numpy
import onnx

class RKNN:
    def __init__(self, verbose=False):
        print("I rknn-toolkit2 version: 2.5.0")  # onto standard output, as the real one
        self.config = self.init_runtime = lambda *_, **__: 0
        os.write(1, b"noise that is no message")

    def load_onnx(self, model):
        self.name = onnx.load(model).graph.name
        return 0

    def build(self, do_quantization, dataset):
        if do_quantization:
            lines = open(dataset).read().splitlines()
            self.seen = [[numpy.load(one) for one in line.split()] for line in lines]
        if self.name == "crash":
            sys.stderr.write("last words\\n"); sys.stderr.flush()
            os.kill(os.getpid(), 11)
        if self.name == "hang":
            time.sleep(600)
        if self.name == "refuse":
            sys.stderr.write("\\x1b[1;31mE\\x1b[0m build: it is Sunday\\n")
            return -1
        print(open(os.environ["RECORDED_TABLE"]).read())
        open("check0_base_optimize.onnx", "w").close()
        return 0

    def export_rknn(self, path):
        with open(path, "wb") as file:
            file.write(b"RKNN" + os.urandom(4))
        return 0

    def inference(self, inputs, data_format):
        print("more noise")
        assert data_format == ["nchw"] * len(inputs)
        return [one * 2 for one in inputs]
"""


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory):
    """A Python whose `rknn` is a few lines; NumPy and onnx are this environment's."""
    if sys.platform == "win32":
        pytest.skip("rknn-toolkit2 is for Linux")
    folder = tmp_path_factory.mktemp("stand-in")
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "rknn").mkdir()
    (packages / "rknn" / "__init__.py").touch()
    (packages / "rknn" / "api.py").write_text(STAND_IN)
    info = packages / "rknn_toolkit2-2.5.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rknn-toolkit2\nVersion: 2.5.0\n")
    (packages / "here.pth").write_text(str(Path(np.__file__).parents[1]))
    return folder / "bin" / "python"


@pytest.fixture
def package(stand_in, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(stand_in))
    monkeypatch.setenv("RECORDED_TABLE", str(RECORDED / "table_rk3588_erf.txt"))
    return Rknn()


def named(name: str):
    return parse(f"{name} (float[1,3,4,4] x) => (float[1,3,4,4] y) {{ y = Relu(x) }}")


def test_noise_on_standard_output_does_not_reach_the_pipe(package):
    session = package.open(named("plain").data, RK3588)
    try:
        value = np.arange(48, dtype=np.float32).reshape(1, 3, 4, 4)
        for _ in range(2):
            np.testing.assert_array_equal(session.run({"x": value})["y"], 2 * value)
        assert (session.inputs[0].name, session.inputs[0].dtype, session.inputs[0].shape) == (
            "x",
            "float32",
            value.shape,
        )
        assert session.simulated
        assert session.placement()[1] == Placement("bad", "Erf", "CPU", session.placement()[1].reason)
        with pytest.raises(ValueError, match="inputs are z"):
            session.run({"z": value})
    finally:
        session.close()


def test_the_binary_that_was_simulated_is_the_one_that_leaves(package, tmp_path):
    session = package.open(named("plain").data, RK3588)
    here = Path.cwd()
    built = session.export(tmp_path / "new" / "model.rknn")
    assert built.file.read_bytes() == session.built.file.read_bytes()
    assert built.sha256 == session.built.sha256
    assert built.size_bytes == 8
    folder = session.built.file.parent
    session.close()
    assert not folder.exists()
    assert not list(here.glob("check*_*.onnx"))


def test_calibration_inputs_arrive_as_files(package, monkeypatch):
    calibrated = replace(package, calibration=[{"x": np.zeros((1, 3, 4, 4), np.float32)}] * 3)
    session = calibrated.open(named("plain").data, RK3588)
    written = sorted(one.name for one in session.built.file.parent.glob("calibration*"))
    session.close()
    assert written == ["calibration.txt", *(f"calibration_{i}_0.npy" for i in range(3))]


def test_a_crash_of_the_package_is_a_step_error_with_the_signal(package):
    with pytest.raises(StepError, match="Rockchip's library died of SIGSEGV; it last said: last words"):
        package.open(named("crash").data, RK3588)


def test_a_package_that_hangs_is_killed(package):
    with pytest.raises(StepError, match="did not answer within 3 s and was killed"):
        replace(package, open_timeout_s=3.0).open(named("hang").data, RK3588)


def test_a_call_that_just_returns_minus_one_is_explained_by_the_log(package):
    with pytest.raises(StepError, match="Rockchip's library failed: it is Sunday"):
        package.open(named("refuse").data, RK3588)


def test_the_other_environment_sees_nothing_of_ours_but_the_workers(package, monkeypatch, tmp_path):
    (tmp_path / "numpy.py").write_text("raise RuntimeError('the wrong NumPy')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    package.open(named("plain").data, RK3588).close()


def test_a_model_is_opened_from_a_path_and_a_missing_one_is_named(package, tmp_path):
    with pytest.raises(InvalidFileError, match=r"absent\.onnx is no file"):
        package.open(tmp_path / "absent.onnx", RK3588)
    file = tmp_path / "model.onnx"
    file.write_bytes(named("plain").data)
    session = package.open(file, RK3588)
    session.close()
    assert session.outputs[0].shape == (1, 3, 4, 4)


def test_a_binary_with_other_numbers_than_the_cpus_is_not_written(package, tmp_path):
    model = named("plain")
    with pytest.raises(UnsupportedError, match="returns other numbers than the CPU"):
        compile_for_rockchip(model, find_target("rockchip-rk3588"), tmp_path / "m.rknn", frames(model, 2))
    assert not (tmp_path / "m.rknn").exists()


# the package itself


@needs_package
@pytest.mark.parametrize("make", [conv_relu, gelu_erf, transformer, recurrent])
def test_the_simulator_agrees_with_the_cpu_in_fp16_and_all_is_on_the_npu(make):
    model = make()
    inputs = frames(model, 2)
    session = EXECUTOR.open(model.data, RK3588)
    try:
        actual = {name: np.stack([session.run(one)[name] for one in inputs]) for name in run_on_cpu(model, inputs)}
        assert measure_drift(run_on_cpu(model, inputs), actual).sqnr_db > 50
        assert {one.provider for one in session.placement()} == {PROVIDER}
        assert session.simulated
    finally:
        session.close()


@needs_package
def test_a_node_on_the_chips_processor_is_named_and_never_silent():
    found = explain_placement(bare_erf(), find_target("rockchip-rk3588"))
    assert [one.op for one in found.refused] == ["Erf"]
    assert "chip's processor" in found.refused[0].reason
    assert found.verdict.startswith("NPU 2, CPU 1: Erf x1; 2 copies")
    assert not found.not_compiled


@needs_package
@pytest.mark.parametrize(
    ("make", "told"),
    [(dynamic_batch, "wants fixed shapes"), (suppression, "NonMaxSuppression"), (double, "float64")],
)
def test_what_cannot_run_is_refused(make, told):
    model = make()
    with pytest.raises(UnsupportedError, match=told):
        EXECUTOR.open(model.data, RK3588).run(frames(model, 1)[0])


@needs_package
def test_a_crash_of_rockchips_compiler_is_a_step_error():
    cubic = parse(
        'cubic (float[1,8,12,12] x) => (float[1,8,24,24] y) { r = Relu(x) y = Resize<mode = "cubic">(r, none, twice) }',
        none=np.zeros(0, np.float32),
        twice=np.array([1, 1, 2, 2], np.float32),
    )
    with pytest.raises(StepError, match=r"Rockchip's library (died of SIGSEGV|failed)"):
        EXECUTOR.open(cubic.data, RK3588).close()


def deep():
    """Four convolutions, wide enough that edgeopt writes pairs of Q and DQ around them."""
    layers = "".join(f"c{i} = Conv <pads = [1,1,1,1]> (r{i}, w{i}) r{i + 1} = Relu(c{i}) " for i in range(4))
    text = f"deep (float[1,16,12,12] x) => (float[1,16,12,12] y) {{ r0 = Identity(x) {layers} y = Mul(r4, half) }}"
    return parse(text, half=scalar(0.5), **{f"w{i}": spread(16, 16, 3, 3, seed=i) * np.float32(2) for i in range(4)})


@needs_package
@pytest.mark.parametrize("name", CHIPS)
def test_every_chip_compiles_in_w8a8_and_its_binary_has_the_right_numbers(name, tmp_path):
    model, target = deep(), find_target(name)
    inputs = frames(model, 8)
    done = compile_for_rockchip(model, target, tmp_path / "model.rknn", inputs[:2], calibration=inputs)
    assert done.built.file.read_bytes()[:4] == b"RKNN"
    assert done.numbers.simulated
    assert done.numbers.device.sqnr_db > 20
    assert "INT8" in {one.dtype for one in done.built.layers}
    assert done.built.total_cycles > 0
    assert any(ESTIMATE in str(one) for one in done.notes)


@needs_package
def test_pairs_of_q_and_dq_are_honoured():
    model, target = deep(), find_target("rockchip-rk3588")
    inputs = frames(model, 8)
    made = quantize(model, inputs, target.int8, form=Form.QDQ).model
    session = EXECUTOR.open(made.data, RK3588)
    try:
        assert "INT8" in {one.dtype for one in session.built.layers}
        actual = {"y": np.stack([session.run(one)["y"] for one in inputs[:2]])}
    finally:
        session.close()
    assert measure_drift(run_on_cpu(made, inputs[:2]), actual).sqnr_db > 25


@needs_package
def test_real_numbers_on_a_chip_without_them_are_refused(tmp_path):
    model = conv_relu()
    with pytest.raises(UnsupportedError, match="rockchip-rv1103b has no fp16"):
        compile_for_rockchip(model, find_target("rockchip-rv1103b"), tmp_path / "m.rknn", frames(model, 1))


@needs_package
def test_a_chip_without_real_numbers_places_a_float_model_too():
    found = explain_placement(deep(), find_target("rockchip-rv1103b"))
    assert (found.refused, found.problem, found.not_compiled) == ((), "", "")


@needs_package
def test_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    EXECUTOR.open(conv_relu().data, RK3588).close()
    assert not list(tmp_path.iterdir())


# two real models


def real(data, name, recipe, folder):
    """Return a model as `optimize` would hand it over, what makes its task, and calibration inputs."""
    file = data / "models" / f"{name}.onnx"
    model = load_model(file)
    choice = choose_recipe(recipe, file, model.inputs, model.outputs, model.metadata).recipe

    def make_task():
        return registry.load(tasks, choice.task).TASK(choice, model.inputs, model.outputs, True)

    inputs = list(model_inputs(make_task(), open_frames(data / folder / "calib").spread(32)))
    return adapt(model, find_target("rockchip-rk3588"), {}, inputs[:2]).model, make_task, inputs


@needs_package
@pytest.mark.slow
def test_squeezenet_keeps_its_accuracy_in_rockchips_own_w8a8(data, tmp_path):
    model, make_task, inputs = real(data, "squeezenet_224", "imagenet_caffe", "imagenet")
    done = compile_for_rockchip(
        model, find_target("rockchip-rk3588"), tmp_path / "m.rknn", inputs[:2], calibration=inputs
    )
    assert {one.unit for one in done.built.layers} == {PROVIDER}
    labelled = open_labelled(data / "imagenet" / "val_labels.csv")
    kept = list(range(0, len(labelled.frames), 4))
    some = LabelledFrames(labelled.frames.select(kept), labelled.labels.select(kept))
    found = answers(CPU.open(model.data, SessionOptions()), make_task(), some.frames)
    float_top1 = make_task().score(found, some.labels).value
    simulated = simulate_answers(lambda: Rknn(inputs).open(model.data, RK3588), make_task, some.frames, processes=1)
    top1 = make_task().score(simulated, some.labels).value
    assert top1 >= float_top1 - 0.02


@needs_package
@pytest.mark.slow
def test_yolox_in_rockchips_own_w8a8_is_refused_and_in_edgeopts_pairs_is_right(data, tmp_path):
    model, _, inputs = real(data, "yolox_nano_416", None, "coco")
    target, out = find_target("rockchip-rk3588"), tmp_path / "m.rknn"
    with pytest.raises(UnsupportedError, match=r"returns other numbers than the CPU: output 'output' .* 12 dB") as lost:
        compile_for_rockchip(model, target, out, inputs[:2], calibration=inputs)
    assert "boxes and scores on one scale" in lost.value.remedy
    made = quantize(model, inputs, target.int8, form=Form.QDQ).model
    done = compile_for_rockchip(made, target, out, inputs[:2], original=model)
    assert [one.op for one in done.built.placement if one.provider != PROVIDER] == ["Reshape"]
    assert done.numbers.device.sqnr_db >= done.numbers.least_db
    assert out.stat().st_size == done.built.size_bytes
