"""Every engine with files of its own: sessions side by side, what is refused, and the whole line for it alone."""

from __future__ import annotations

import gc
import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from engine_ops import OPS, inputs_of, model_of, right
from fixture_brief import briefly

from edgeopt import compare
from edgeopt.errors import NotFoundError, UnavailableError
from edgeopt.executors import Executor, SessionOptions, executorch, litert, mnn, ncnn
from edgeopt.executors._conversion.kept import KeptFiles
from edgeopt.graph.model import Model
from edgeopt.optimization.optimize import optimize
from edgeopt.runtime.bundle import read_bundle
from edgeopt.runtime.runtime import Runtime

CPU = SessionOptions(("CPU",), 1)


def answered_by_ncnn(folder: Path, facts: Mapping[str, Any], value: np.ndarray) -> np.ndarray:
    """Return what an app's own ncnn makes of a picture."""
    import ncnn

    net, ports = ncnn.Net(), json.loads((folder / "model.ncnn.json").read_text("utf-8"))
    assert not facts["settings"]["use_fp16_arithmetic"], "on Arm ncnn's own default moves scores by half"
    for name, setting in facts["settings"].items():
        setattr(net.opt, name, setting)
    assert net.load_param(str(folder / "model.ncnn.param")) == 0
    assert net.load_model(str(folder / "model.ncnn.bin")) == 0
    (source,), (made,) = ports["inputs"], ports["outputs"]
    extractor = net.create_extractor()
    extractor.input(source["blob"], ncnn.Mat(value.reshape(source["dims"])).clone())
    code, mat = extractor.extract(made["blob"])
    assert code == 0
    return np.array(mat).reshape(made["shape"])


def answered_by_litert(folder: Path, facts: Mapping[str, Any], value: np.ndarray) -> np.ndarray:
    """Return what an app's own LiteRT makes of a picture, whose channels are last there."""
    from ai_edge_litert.interpreter import Interpreter

    run = Interpreter(model_path=str(folder / "model.tflite")).get_signature_runner()
    (name,), (made,) = run.get_input_details(), run.get_output_details()
    assert run.get_input_details()[name]["shape"][-1] == 3
    return run(**{name: np.moveaxis(value, 1, -1)})[made]


def answered_by_executorch(folder: Path, facts: Mapping[str, Any], value: np.ndarray) -> np.ndarray:
    """Return what the program makes of a picture."""
    session = executorch.EXECUTOR.open(folder / "model.pte", CPU)
    return next(iter(session.run({session.inputs[0].name: value}).values()))


def answered_by_mnn(folder: Path, facts: Mapping[str, Any], value: np.ndarray) -> np.ndarray:
    """Return what an app's own MNN makes of a picture."""
    import MNN

    network = MNN.Interpreter(str(folder / "model.mnn"))
    assert facts["settings"] == {"numThread": 1, "precision": 0}
    session = network.createSession({"numThread": 1, "precision": "normal"})
    (given,) = network.getSessionInputAll(session).values()
    np.copyto(given.getNumpyData(), value)
    network.runSession(session)
    return np.array(network.getSessionOutput(session).getNumpyData())


@dataclass(frozen=True)
class Alone:
    """An engine, and what is its own in the tests that all share."""

    executor: Executor
    file: str
    """Its own file in a bundle."""
    session: str
    packages: tuple[str, ...]
    by_app: Callable[[Path, Mapping[str, Any], np.ndarray], np.ndarray]
    app_tolerance: float
    """Largest error of a file for apps, as a share of the largest number: in bfloat16 larger."""
    real_tolerance: float | None
    """Largest error of the real models; None: converting them takes minutes."""
    precisions: frozenset[str] = frozenset({"fp32"})
    """Forms that are made for it at least."""


ENGINES = {
    "ncnn": Alone(
        ncnn.EXECUTOR, "model.ncnn", "NcnnSession", ("ncnn",), answered_by_ncnn, 0.1, 2e-3, frozenset({"fp32", "bf16"})
    ),
    "litert": Alone(
        litert.EXECUTOR, "model.tflite", "LiteRTSession", ("ai_edge_litert",), answered_by_litert, 1e-3, 1e-4
    ),
    "mnn": Alone(mnn.EXECUTOR, "model.mnn", "MnnSession", ("MNN",), answered_by_mnn, 1e-3, 1e-3),
    "executorch": Alone(
        executorch.EXECUTOR,
        "model.pte",
        "ExecuTorchSession",
        ("executorch", "torch"),
        answered_by_executorch,
        1e-3,
        None,
    ),
}


@pytest.fixture(scope="module", params=ENGINES)
def name(request, tmp_path_factory):
    """The name of an engine that is here; programs of earlier tests would stand in for ExecuTorch's conversions."""
    why_not = ENGINES[request.param].executor.why_unavailable()
    if why_not is not None:
        pytest.skip(str(why_not))
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield request.param


@pytest.fixture
def engine(name):
    """The engine; threads of ExecuTorch are one number for the process: no session outlives its test."""
    yield ENGINES[name]
    gc.collect()


@pytest.fixture(scope="module")
def optimized(name, tmp_path_factory):
    """Return what the whole line makes for the engine alone; its form is named by the suffix of its files."""
    suffix = ENGINES[name].executor.own_suffix.removeprefix(".")
    out = tmp_path_factory.mktemp("o")
    with briefly():
        return optimize("digits_detector", target=f"{name}-cpu", out=out, threads=1, steps=("fuse",), emit=(suffix,))


def test_results_outlive_the_next_run_and_sessions_run_side_by_side(engine):
    model = model_of(OPS["convolution"])
    first, second = inputs_of(model, 1), inputs_of(model, 2)
    session = engine.executor.open(model.data, CPU)
    kept = session.run(first)["y"]
    before = kept.copy()
    beside = session.beside(reuse=True)
    shown = beside.run(second)["y"].copy()
    np.testing.assert_array_equal(kept, before)
    np.testing.assert_array_equal(session.run(second)["y"], shown)
    np.testing.assert_array_equal(beside.run(first)["y"], before)
    beside.close()
    np.testing.assert_array_equal(session.run(first)["y"], before)


def test_fresh_processes_are_given_the_engines_own_file_which_answers_alike(engine):
    model = model_of(OPS["convolution"])
    file = engine.executor.converted(model.data)
    assert file == engine.executor.own_file(model.data) != model.data
    answers = [engine.executor.open(source, CPU).run(inputs_of(model))["y"] for source in (file, model.data)]
    np.testing.assert_array_equal(*answers)


def test_a_model_is_converted_once_and_a_changed_file_of_its_name_anew(engine, name, tmp_path, monkeypatch):
    if name == "executorch":
        pytest.skip("it keeps programs on the disk")
    module, made = importlib.import_module(f"edgeopt.executors.{name}.conversion"), list[int]()
    word = {"litert": "to_tflite"}.get(name, f"to_{name}")
    convert = getattr(module, word)

    def counted(*given: Any, **options: Any) -> Any:
        made.append(1)
        return convert(*given, **options)

    monkeypatch.setattr(module, word, counted)
    monkeypatch.setattr(f"edgeopt.executors.{name}._KEPT", KeptFiles(lambda file: 1))
    file = tmp_path / "model.onnx"
    file.write_bytes(model_of(OPS["swish"]).data)
    first = engine.executor.converted(file)
    for _ in range(2):
        engine.executor.open(file, CPU)
    assert len(made) == 1
    file.write_bytes(model_of(OPS["convolution"]).data)
    assert engine.executor.converted(file) != first
    assert len(made) == 2


def test_inputs_of_another_shape_type_or_name_are_refused(engine):
    session = engine.executor.open(model_of(OPS["convolution"]).data, CPU)
    for inputs in ({"x": np.zeros((1, 6, 9, 11), np.float32)}, {"x": np.zeros((1, 6, 9, 10))}, {}):
        with pytest.raises(ValueError, match="x"):
            session.run(inputs)


def test_options_of_others_and_other_devices_are_refused(engine):
    data = model_of(OPS["convolution"]).data
    with pytest.raises(NotFoundError, match="use_gpu"):
        engine.executor.open(data, SessionOptions(("CPU",), 1, {"use_gpu": "1"}))
    with pytest.raises(UnavailableError, match="on the CPU, not on GPU"):
        engine.executor.open(data, SessionOptions(("GPU",), 1))


@pytest.mark.parametrize("network", ["squeezenet_224", "yolox_nano_416"])
def test_the_real_models_come_out_right(data, engine, network):
    """SqueezeNet's softmax of opset 7 over all from its axis; YOLOX's slices in steps."""
    if engine.real_tolerance is None:
        pytest.skip("its own benchmark converts them")
    source = data / "models" / f"{network}.onnx"
    model = Model(onnx.load(source), network)
    given = model.inputs[0]
    inputs = {given.name: np.random.default_rng(0).uniform(0, 255, given.shape).astype(np.float32)}
    expected, actual = right(model, inputs), engine.executor.open(source, CPU).run(inputs)
    for output, value in expected.items():
        np.testing.assert_allclose(actual[output], value, atol=engine.real_tolerance * np.abs(value).max())


def test_the_target_runs_the_whole_line_on_it_alone(engine, name, optimized):
    assert {candidate.executor for candidate in optimized.candidates} == {name}
    assert engine.precisions <= {candidate.precision for candidate in optimized.candidates}
    assert all(candidate.drop is None or candidate.drop < 0.01 for candidate in optimized.candidates[1:])


def test_the_bundle_holds_the_engines_own_file_and_falls_back_to_onnx_runtime(engine, name, optimized):
    *first, last = read_bundle(optimized.bundle).artefacts
    assert {artefact.executor for artefact in first} == {name}
    assert {artefact.file for artefact in first} == {engine.file}
    assert (last.file, last.executor, last.precision) == ("fallback-cpu.onnx", "onnxruntime", "fp32")
    runtime = Runtime.load(optimized.bundle, threads=1)
    assert type(runtime.session).__name__ == engine.session
    assert runtime.artefact.file == engine.file
    runtime.close()


def test_the_files_for_an_app_with_its_own_engine_answer_as_the_choice_does(engine, name, optimized):
    assert optimized.emitted == (f"emitted/{name}",)
    folder = optimized.folder / "emitted" / name
    facts = json.loads((folder / "edgeopt.json").read_text("utf-8"))
    assert facts["sqnr_db"] > 30
    chosen = next(candidate for candidate in optimized.candidates if candidate.name == facts["candidate"])
    session = engine.executor.open(optimized.folder / chosen.file, CPU)
    (given,) = session.inputs
    value = np.random.default_rng(0).uniform(0, 1, given.shape).astype(np.float32)
    expected = next(iter(session.run({given.name: value}).values())).copy()
    actual = engine.by_app(folder, facts, value)
    np.testing.assert_allclose(actual, expected, atol=engine.app_tolerance * np.abs(expected).max())


def loaded_without(bundle: Path, packages: tuple[str, ...], shown: str) -> str:
    """Return what a process without some packages prints of the bundle's runtime."""
    code = (
        "import sys\n"
        f"sys.modules |= dict.fromkeys({packages!r})\n"
        "import numpy as np\nfrom edgeopt.runtime.runtime import Runtime\n"
        f"runtime = Runtime.load({str(bundle)!r}, threads=1)\n"
        f"print(runtime.artefact.executor, {shown})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_device_opens_the_bundle_without_onnx_and_answers_alike(name, optimized):
    answered = "not runtime.notes, len(runtime.predict(np.zeros((120, 160, 3), np.uint8)))"
    shown = loaded_without(optimized.bundle, ("onnx", "onnxruntime"), answered)
    assert shown.split()[:2] == [name, "True"]


def test_without_a_package_of_the_engine_the_bundle_still_answers(engine, name, optimized):
    for package in engine.packages:
        shown = loaded_without(optimized.bundle, (package,), "len(runtime.notes), runtime.notes[0]")
        assert shown.startswith("onnxruntime 1 "), "artefacts of one file fail for one reason"
        assert name in shown.lower()


def test_the_bundle_is_compared_with_the_model_that_it_was_made_of(optimized):
    result = compare(str(optimized.bundle), "digits_detector", seconds=0.3, eval=None)
    assert result.rows[0].quality is None or result.rows[0].quality.agreement is None
    assert len(result.rows) == 2
