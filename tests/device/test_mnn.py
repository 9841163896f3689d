"""MNN against ONNX Runtime without optimizations: every op that it is given, what it is refused, and a quiet converter."""

# ruff: noqa: E501 - a model a line

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from engine_ops import MORE, OPS, PICTURE, TABLES, TRAINING, constants, drawn, inputs_of, model_of, opset_model, right
from npu_models import parse

from edgeopt.errors import EdgeoptError, InvalidFileError, MissingDependencyError, UnavailableError, UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.executors import mnn as engine
from edgeopt.executors._child import EngineAbortError
from edgeopt.executors._conversion.kept import KeptFiles
from edgeopt.executors._guard import guarded
from edgeopt.executors.mnn import EXECUTOR, computes_halves, conversion, mnn_file
from edgeopt.executors.mnn.conversion import converter
from edgeopt.executors.mnn.file import MnnFile
from edgeopt.graph.model import Model
from edgeopt.inspection.inspect import inspect as inspect_model
from edgeopt.measurement.opening.right_optimizations import find_engine_fault
from edgeopt.system.declared.target import find_target

_REASON = EXECUTOR.why_unavailable()
pytestmark = pytest.mark.skipif(_REASON is not None, reason=str(_REASON))

CPU = SessionOptions(("CPU",), 1)
LACKS = {"rounded, and read by no integer layer", "rounded twice", "whole numbers and what is left", "places divided"}
LACKS |= {"no number", "the best of channels", "bytes of a picture", "a table", "rows put into a table"}
LACKS |= {"numbers added at places", "parts of channels"}
"""Nets that MNN does not take, and LiteRT and ncnn do; the last declares another shape than it makes."""
TRAPS = {
    **{
        f"{op} of two tensors": f"(float[1,6,9,10] x, float[1,6,9,10] z) => (float[1,6,9,10] y) {{ a = Floor(x) b = Floor(z) c = {op}(a, b) y = Cast<to = 1>(c) }}"
        for op in ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal")
    },
    **{
        f"{op} of two truths": f"(float[1,6,9,10] x, float[1,6,9,10] z) => (float[1,6,9,10] y) {{ a = Greater(x, z) b = Greater(x, half) c = {op}(a, b) y = Cast<to = 1>(c) }}"
        for op in ("And", "Or", "Xor")
    },
    **{
        f"{op} of two tensors": f"(float[1,6,9,10] x, float[1,6,9,10] z) => (float[1,6,9,10] y) {{ y = {op}(x, z) }}"
        for op in ("Sub", "Div", "Max", "Min")
    },
    "where with a row": f"({PICTURE}) => (float[1,6,9,10] y) {{ c = Greater(x, half) y = Where(c, row, x) }}",
    "where with one place": f"({PICTURE}, float[1,1,1,1] z) => (float[1,6,9,10] y) {{ c = Greater(x, row) y = Where(c, z, x) }}",
    "comparison of rows": f"({PICTURE}, float[6,1,1] z) => (float[1,6,9,10] y) {{ c = Less(x, z) f = Cast<to = 1>(c) y = Mul(f, x) }}",
    "product turned, with a bias": "(float[10,3] x) => (float[3,4] y) { y = Gemm<transA = 1, alpha = 0.3, beta = 2.0>(x, m104, b4) }",
    "product with a computed bias": "(float[3,10] x, float[3,1] z) => (float[3,4] y) { y = Gemm<beta = 0.5>(x, m104, z) }",
    "product of batches by one": "(float[2,3,7,10] x, float[1,3,10,5] z) => (float[2,3,7,5] y) { y = MatMul(x, z) }",
    "product of other ranks": "(float[2,3,7,10] x, float[10,5] z) => (float[2,3,7,5] y) { y = MatMul(x, z) }",
    "weights before": "(float[1,3,4,5] x) => (float[1,3,10,5] y) { y = MatMul(m104, x) }",
    "mean, padded unevenly and counted": f"({PICTURE}) => (float[1,6,10,10] y) {{ y = AveragePool<kernel_shape = [3,3], pads = [2,1,1,1], count_include_pad = 1>(x) }}",
    "mean, padded unevenly": f"({PICTURE}) => (float[1,6,10,10] y) {{ y = AveragePool<kernel_shape = [3,3], pads = [2,1,1,1]>(x) }}",
    "mean, rounded up": f"({PICTURE}) => (float[1,6,5,5] y) {{ y = AveragePool<kernel_shape = [2,2], strides = [2,2], ceil_mode = 1>(x) }}",
    "mean, rounded up and counted": f"({PICTURE}) => (float[1,6,5,6] y) {{ y = AveragePool<kernel_shape = [3,3], strides = [2,2], pads = [1,1,1,1], ceil_mode = 1, count_include_pad = 1>(x) }}",
    "largest, padded unevenly": f"({PICTURE}) => (float[1,6,10,10] y) {{ n = Neg(x) y = MaxPool<kernel_shape = [3,3], pads = [2,1,1,1]>(n) }}",
    "largest, padded by itself": f'({PICTURE}) => (float[1,6,5,5] y) {{ y = MaxPool<kernel_shape = [3,3], strides = [2,2], auto_pad = "SAME_LOWER">(x) }}',
    "nearest, floor of centres": f'({PICTURE}) => (float[1,6,18,20] y) {{ y = Resize<mode = "nearest", nearest_mode = "floor">(x, , twice) }}',
    "nearest, rounded up from halves": f'({PICTURE}) => (float[1,6,13,7] y) {{ y = Resize<mode = "nearest", nearest_mode = "round_prefer_ceil">(x, , , size) }}',
    "between, of corners": f'({PICTURE}) => (float[1,6,18,20] y) {{ y = Resize<mode = "linear", coordinate_transformation_mode = "asymmetric">(x, , twice) }}',
    "between, to fewer": f'({PICTURE}) => (float[1,6,13,7] y) {{ y = Resize<mode = "linear">(x, , , size) }}',
    "sum of four": f"({PICTURE}, float[10] z, float[6,1,1] v) => (float[1,6,9,10] y) {{ y = Sum(x, z, v, half) }}",
    "slopes of each place": f"({PICTURE}) => (float[1,6,9,10] y) {{ y = PRelu(x, row) }}",
    "limits that are crossed": f"({PICTURE}) => (float[1,6,9,10] y) {{ y = Clip(x, high, low) }}",
    "no limit below": f"({PICTURE}) => (float[1,6,9,10] y) {{ y = Clip(x, , high) }}",
    "squares": f"({PICTURE}) => (float[1,6,9,1] y) {{ y = ReduceSumSquare<axes = [-1]>(x) }}",
    "least of rows": f"({PICTURE}) => (float[6,9] y) {{ y = ReduceMin<axes = [0,-1], keepdims = 0>(x) }}",
    "place of the least": f"({PICTURE}) => (int64[1,6,9,1] y) {{ y = ArgMin<axis = -1>(x) }}",
    "truth as a number": f"({PICTURE}) => (float[1,6,9,10] y) {{ a = Greater(x, half) b = Not(a) y = Cast<to = 1>(b) }}",
    "whole part": f"({PICTURE}) => (float[1,6,9,10] y) {{ i = Cast<to = 6>(x) y = Cast<to = 1>(i) }}",
    "convolution padded before": f"({PICTURE}) => (float[1,8,9,10] y) {{ y = Conv<pads = [2,0,0,2]>(x, w86) }}",
    "line with an activation": "(float[1,6,20] x) => (float[1,8,20] y) { c = Conv<pads = [1,1]>(x, line, b8) y = Relu(c) }",
    "layer without a bias": "(float[1,7,10] x) => (float[1,7,10] y) { y = LayerNormalization(x, row) }",
    "two rows of several": f"({PICTURE}) => (float[1,6,2,10] y) {{ y = Slice(x, one_i, three, axis2) }}",
}
"""Where its converter errs without a word, or is known to have; each is written in another form."""
OLD = {
    "softmax over all from channels": (7, f"({PICTURE}) => (float[1,6,9,10] y) {{ y = Softmax(x) }}"),
    "softmax over all from rows": (11, f"({PICTURE}) => (float[1,6,9,10] y) {{ y = Softmax<axis = 2>(x) }}"),
    "log of a softmax": (9, f"({PICTURE}) => (float[1,6,9,10] y) {{ y = LogSoftmax(x) }}"),
    "limits": (7, f"({PICTURE}) => (float[1,6,9,10] y) {{ y = Clip<min = -0.5, max = 0.4>(x) }}"),
    "one axis less": (7, "(float[1,6,1,10] x) => (float[1,6,10] y) { y = Squeeze<axes = [2]>(x) }"),
    "parts": (
        7,
        f"({PICTURE}) => (float[1,2,9,10] y, float[1,4,9,10] z) {{ y, z = Split<axis = 1, split = [2,4]>(x) }}",
    ),
    "a part": (
        7,
        f"({PICTURE}) => (float[1,3,9,8] y) {{ y = Slice<starts = [1,2], ends = [4,1000], axes = [1,3]>(x) }}",
    ),
    "padding": (9, f"({PICTURE}) => (float[1,6,10,11] y) {{ y = Pad<pads = [0,0,1,0,0,0,0,1], value = 0.5>(x) }}"),
    "larger": (9, f'({PICTURE}) => (float[1,6,18,20] y) {{ y = Upsample<mode = "nearest">(x, twice) }}'),
    "larger, by Resize": (10, f'({PICTURE}) => (float[1,6,18,20] y) {{ y = Resize<mode = "nearest">(x, twice) }}'),
    "sum": (11, f"({PICTURE}) => (float[1,6,9] y) {{ y = ReduceSum<axes = [3], keepdims = 0>(x) }}"),
    "mean by an input": (18, f"({PICTURE}) => (float[1,6,9,1] y) {{ y = ReduceMean(x, axis3) }}"),
    "gelu of the opset": (20, f"({PICTURE}) => (float[1,6,9,10] y) {{ y = Gelu(x) }}"),
    "gelu by a tangent": (20, f'({PICTURE}) => (float[1,6,9,10] y) {{ y = Gelu<approximate = "tanh">(x) }}'),
    "padding along an axis": (18, f"({PICTURE}) => (float[1,6,9,12] y) {{ y = Pad(x, ones2, , axis3) }}"),
    "parts of equal size": (
        18,
        f"({PICTURE}) => (float[1,3,9,10] y, float[1,3,9,10] z) {{ y, z = Split<axis = 1, num_outputs = 2>(x) }}",
    ),
}
"""Forms of other operator sets."""


def old_model(opset: int, text: str) -> Model:
    known = {**constants(), "ones2": np.array([1, 1])}
    read = set(re.findall(r"\w+", text))
    return parse(f"small {text}", opset=opset, **{name: array for name, array in known.items() if name in read})


def require_right(model: Model) -> None:
    inputs = drawn(model)
    expected, actual = right(model, inputs), EXECUTOR.open(model.data, CPU).run(inputs)
    assert list(actual) == [output.name for output in model.outputs]
    for output, value in expected.items():
        assert actual[output].dtype == value.dtype
        np.testing.assert_allclose(actual[output], value, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("name", [*(OPS.keys() - LACKS), *(MORE.keys() - LACKS)])
def test_every_op_computes_what_onnx_says(name):
    require_right(opset_model(MORE.get(name) or OPS[name]))


@pytest.mark.parametrize("name", TRAPS)
def test_what_its_converter_gets_wrong_is_written_otherwise(name):
    require_right(opset_model(TRAPS[name]))


@pytest.mark.parametrize("name", OLD)
def test_forms_of_other_operator_sets_come_out_right(name):
    require_right(old_model(*OLD[name]))


FUNCTIONS = (
    "Relu Sigmoid Tanh Elu Selu<alpha=1.2,gamma=0.9> LeakyRelu<alpha=0.3> Softplus HardSwish HardSigmoid Erf Abs Neg"
)
FUNCTIONS += " Floor Ceil Sin Cos Mish Gelu Softmax<axis=1> LogSoftmax LRN<size=5,alpha=0.5,beta=0.5>"


@pytest.mark.parametrize("function", FUNCTIONS.split())
def test_functions_are_right_far_from_zero_too(function):
    model = old_model(20, f"(float[1,8,4,4] x) => (float[1,8,4,4] y) {{ y = {function}(x) }}")
    numbers = np.concatenate([np.linspace(-120, 120, 64), np.linspace(-8, 8, 64)])
    inputs = {"x": numbers.reshape(1, 8, 4, 4).astype(np.float32)}
    actual = EXECUTOR.open(model.data, CPU).run(inputs)["y"]
    np.testing.assert_allclose(actual, right(model, inputs)["y"], rtol=2e-4, atol=2e-4)


REFUSED = {
    "MNN has no Dropout in training": TRAINING,
    "MNN has no QuantizeLinear": OPS["rounded, and read by no integer layer"],
    "MNN has no Div of int64": MORE["places divided"],
    "MNN has no ScatterND": MORE["rows put into a table"],
    "MNN has no IsNaN": MORE["no number"],
    "MNN is given float32, and 'x' is uint8": MORE["bytes of a picture"],
    "every shape in numbers": "(float[1,3,H,8] x) => (float[1,3,H,8] y) { y = Relu(x) }",
    "MNN has no Cast of uint8": f"({PICTURE}) => (float[1,6,9,10] y) {{ c = Cast<to = 2>(x) y = Cast<to = 1>(c) }}",
    "MNN has no Resize in mode cubic": f'({PICTURE}) => (float[1,6,18,20] y) {{ y = Resize<mode = "cubic">(x, , twice) }}',
    "MNN has no Gather of places beyond 10": f"({PICTURE}) => (float[1,6,9,1] y) {{ y = Gather<axis = 3>(x, far) }}",
    "MNN has no Conv with a bias of 6 for 8 channels": f"({PICTURE}) => (float[1,8,7,8] y) {{ y = Conv(x, w86, b6) }}",
    "MNN has no Conv whose groups or kernel": f"({PICTURE}) => (float[1,8,8,9] y) {{ y = Conv<kernel_shape = [2,2]>(x, w86) }}",
    "MNN has no MatMul with a vector": "(float[3,10] x, float[10] z) => (float[3] y) { y = MatMul(x, z) }",
    "MNN has no LSTM": "lstm",
}
LSTM = '(float[5,1,3] x) => (float[5,1,1,4] y) { y = LSTM<hidden_size = 4, direction = "reverse">(x, w_l, r_l) }'


@pytest.mark.parametrize("said", REFUSED)
def test_what_it_lacks_is_one_line_that_names_the_node(said):
    text = REFUSED[said].replace("lstm", LSTM)
    known = constants() | {name: np.array(value) for name, value in TABLES.items()}
    known |= {"w_l": np.ones((1, 16, 3), np.float32), "r_l": np.ones((1, 16, 4), np.float32)}
    read = set(re.findall(r"\w+", text))
    model = parse(f"small {text}", **{name: array for name, array in known.items() if name in read})
    with pytest.raises(UnsupportedError, match=said) as refused:
        EXECUTOR.open(model.data, CPU)
    assert refused.value.remedy
    assert "\n" not in refused.value.problem


QUIET = """
import json, sys
events = []
WATCHED = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "socket.connect", "socket.getaddrinfo")
sys.addaudithook(lambda event, args: events.append(event) if event in WATCHED else None)
from pathlib import Path
from edgeopt.executors._worker.mnn import _convert
from edgeopt.system.processes.messages import Message
source, out, file = sys.argv[1:]
answer = _convert(Message({"model": source, "out": out, "tolerance": 0.02}))
assert answer.values["is_written"], answer.values
from edgeopt.executors import SessionOptions
from edgeopt.executors.mnn import EXECUTOR
import numpy as np
session = EXECUTOR.open(Path(file), SessionOptions(("CPU",), 1))
session.run({spec.name: np.zeros(spec.shape, np.float32) for spec in session.inputs})
modules = [name for name in sys.modules if name.startswith("MNN.tools") or name.split(".")[0] in ("aliyun", "pip")]
print(json.dumps([events, modules]))
"""


def test_conversion_and_runs_start_no_process_open_no_connection_and_import_nothing_of_its_tools(tmp_path):
    """Its package MNN.tools installs another by pip when it is imported, and sends what is converted to its maker."""
    model = model_of(OPS["convolution"])
    source, out, file = (tmp_path / name for name in ("a.onnx", "a.mnn", "b.mnn"))
    source.write_bytes(conversion.for_converter(model).data)
    file.write_bytes(EXECUTOR.own_file(model.data))
    command = [sys.executable, "-c", QUIET, str(source), str(out), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[], []], "and nothing else is printed"
    if shutil.which("strace") is None:
        return
    log = tmp_path / "calls"  # what its libraries do by themselves, no hook of Python's sees
    traced = subprocess.run(
        ["strace", "-f", "-e", "trace=network,process", "-o", log, *command],
        capture_output=True,
        text=True,
        check=False,
    )
    if traced.returncode == 0:  # a container may forbid it
        calls = log.read_text("utf-8", "replace")
        assert calls.count("execve(") == 1, "the interpreter itself"
        assert not re.search(r"\b(socket|connect|sendto|vfork)\(", calls)


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch):
    """Convert the models of each test anew."""
    monkeypatch.setattr(engine, "_KEPT", KeptFiles(lambda file: len(file.network)))


@pytest.fixture
def unwritten(monkeypatch):
    """MNN's converter as it comes, without what is rewritten before it."""
    monkeypatch.setattr(conversion, "for_converter", lambda model: model)


@pytest.mark.skipif(
    sys.platform == "win32" or platform.machine() not in ("x86_64", "AMD64"),
    reason="elsewhere a division by zero ends no process, or by no signal",
)
def test_a_converter_that_dies_costs_its_model_alone(unwritten):
    with pytest.raises(EngineAbortError, match="MNN died of SIG"):
        EXECUTOR.open(opset_model(OPS["mean of windows"]).data, CPU)  # it divides by steps that are not there
    require_right(model_of(OPS["swish"]))


def test_a_converter_that_writes_nothing_is_one_line(unwritten):
    with pytest.raises(UnsupportedError, match="MNN does not convert the model"):
        EXECUTOR.open(opset_model(MORE["mish"]).data, CPU)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows stops no process")
def test_a_converter_that_hangs_is_ended(monkeypatch):
    require_right(model_of(OPS["swish"]))
    with monkeypatch.context() as patch:
        patch.setattr(converter, "_LONGEST_S", 0.3)
        os.kill(converter._CONVERTER._child._worker.pid, signal.SIGSTOP)
        with pytest.raises(UnsupportedError, match=r"the conversion to MNN did not answer within .* and was killed"):
            EXECUTOR.open(model_of(OPS["hard swish written out"]).data, CPU)
    require_right(model_of(OPS["hard swish written out"]))


def test_wrong_numbers_are_refused_and_the_first_layer_is_named(unwritten):
    with pytest.raises(
        UnsupportedError, match=r"MNN changes what the model answers, by \d+%, first at Gemm node"
    ) as said:
        EXECUTOR.open(opset_model(MORE["a bias for each row"]).data, CPU)
    assert "\n" not in said.value.problem


def test_nothing_is_said_against_what_is_rewritten():
    model = opset_model(MORE["a bias for each row"])
    assert not find_engine_fault(model, lambda: [drawn(model)], find_target("mnn-cpu"))


def test_a_file_of_its_own_holds_the_model(tmp_path):
    model = opset_model(MORE["elements by their places"])
    out = tmp_path / "model.mnn"
    session = EXECUTOR.open(model.data, SessionOptions(("CPU",), 1, save_optimized_to=str(out)))
    inputs = inputs_of(model)
    again = EXECUTOR.open(out, CPU)
    np.testing.assert_array_equal(session.run(inputs)["y"], again.run(inputs)["y"])
    assert (again.inputs, again.outputs) == (session.inputs, session.outputs)
    assert EXECUTOR.own_file(out) == out.read_bytes()
    assert EXECUTOR.own_files(model.data).keys() == {"model.mnn"}


def test_answers_of_one_input_are_the_same_in_every_run():
    """Inputs lie where a run writes."""
    model = opset_model(OPS["pixels between, to a size"])
    session, inputs = EXECUTOR.open(model.data, CPU), inputs_of(model)
    first = session.run(inputs)["y"]
    assert session.placement()
    for _ in range(3):
        np.testing.assert_array_equal(session.run(inputs)["y"], first)


@pytest.mark.parametrize(
    "bad", [b"", b"no model", b"EDGE-MNN", b"\x10\0\0\0" + bytes(64), bytes(64) + b"\2\0\0\0EDGE-MNN"]
)
def test_bytes_that_are_no_model_are_refused(bad):
    with pytest.raises(EdgeoptError):
        EXECUTOR.open(bad, CPU)


def test_a_file_that_others_wrote_or_that_is_cut_off_is_one_line(tmp_path):
    file = mnn_file(model_of(OPS["convolution"]).data)
    other = tmp_path / "other.mnn"
    other.write_bytes(file.network)
    with pytest.raises(InvalidFileError, match=r"other\.mnn is no file of MNN that edgeopt wrote"):
        EXECUTOR.open(other, CPU)
    cut = tmp_path / "cut.mnn"
    cut.write_bytes(file.to_bytes()[200:])
    with pytest.raises(InvalidFileError), guarded():
        EXECUTOR.open(cut, CPU)


@pytest.mark.parametrize("share", [0.02, 0.1, 0.5, 0.98])
def test_a_network_that_is_cut_off_prints_nothing(share, capfd):
    file = mnn_file(model_of(OPS["convolution"]).data)
    cut = MnnFile(file.network[: int(share * len(file.network))], file.inputs, file.outputs)
    with pytest.raises(InvalidFileError, match="MNN does not load the network"):
        EXECUTOR.open(cut.to_bytes(), CPU)
    assert capfd.readouterr().out == ""


def test_an_input_that_its_file_does_not_name_is_one_line():
    file = mnn_file(model_of(OPS["convolution"]).data)
    with pytest.raises(InvalidFileError, match="the network reads 'x', which its file does not name"):
        EXECUTOR.open(MnnFile(file.network, (), file.outputs).to_bytes(), CPU)


def test_macs_with_intels_processors_have_no_float16(monkeypatch):
    monkeypatch.setattr(engine, "cpu_flags", lambda: frozenset({"avx2"}))
    monkeypatch.setattr(engine, "sys", SimpleNamespace(platform="darwin"))
    for architecture in ("x86-64", "arm64"):
        monkeypatch.setattr(engine, "cpu_architecture", lambda made=architecture: made)
        assert computes_halves() == (architecture == "arm64")


def test_a_file_in_the_current_folder_is_not_the_converter(monkeypatch, tmp_path):
    (tmp_path / "_tools.py").write_text("raise ImportError('a file of the current folder')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(converter, "_CONVERTER", converter._Converter())
    require_right(model_of(OPS["elu"]))
    converter._CONVERTER.close()


@pytest.mark.skipif(computes_halves(), reason="this processor has float16")
def test_float16_is_refused_where_it_would_be_float32_without_a_word():
    with pytest.raises(UnavailableError, match="float16 on Arm with asimdhp only"):
        EXECUTOR.open(model_of(OPS["convolution"]).data, SessionOptions(("CPU",), 1, precision="fp16"))
    assert find_target("mnn-cpu").why_no_precision("fp16")


def test_other_precisions_are_unknown():
    with pytest.raises(ValueError, match="bf16"):
        EXECUTOR.open(model_of(OPS["convolution"]).data, SessionOptions(("CPU",), 1, precision="bf16"))


def test_numbers_of_threads_live_side_by_side_in_one_process():
    model = model_of(OPS["convolution with an activation"])
    inputs = inputs_of(model)
    sessions = [EXECUTOR.open(model.data, SessionOptions(("CPU",), threads)) for threads in (1, 2, 3)]
    for session in sessions * 2:
        np.testing.assert_allclose(session.run(inputs)["y"], right(model, inputs)["y"], rtol=2e-4, atol=2e-4)


def test_a_package_without_its_converter_is_one_line(monkeypatch, tmp_path):
    (tmp_path / "_tools.py").write_text("raise ImportError('undefined symbol')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(converter, "_CONVERTER", converter._Converter())
    with pytest.raises(MissingDependencyError, match="MNN's converter cannot be imported") as missing:
        EXECUTOR.open(model_of(OPS["elu"]).data, CPU)
    assert missing.value.remedy == "pip install 'edgeopt[mnn]'"
    converter._CONVERTER.close()


def test_inspect_tells_where_nodes_run_and_what_is_refused(tmp_path):
    file, other = tmp_path / "right.onnx", tmp_path / "cubic.onnx"
    file.write_bytes(model_of(OPS["convolution with an activation"]).data)
    other.write_bytes(opset_model(REFUSED["MNN has no Resize in mode cubic"]).data)
    assert re.fullmatch(r"all \d+ nodes on the CPU", inspect_model(str(file), target="mnn-cpu").verdict)
    assert inspect_model(str(other), target="mnn-cpu").verdict.startswith(
        "mnn-cpu refuses the model: MNN has no Resize"
    )
