"""ncnn and LiteRT compute on Arm what their forms compute here: numbers under QEMU's user emulation, never times.

Apart from `test_arm64.py`, as these engines lie in an environment of their own, where what ONNX Runtime computes is not
tested a second time.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import small_nets
from fixture_arm64 import LEVELS, ROUNDING, WITH_DOT, Built, distance, python_for_arm, run_on_arm

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.optimizers import UNOPTIMIZED
from edgeopt.graph.model import Model
from edgeopt.runtime.devices.availability import load_executor
from edgeopt.steps.quantize.api import Form, quantize
from edgeopt.steps.quantize.formats.dynamic import make_dynamic
from edgeopt.system.declared.target import find_target

ENGINES = {"ncnn": Form.INPUTS, "litert": Form.QDQ}
"""By engine the form that is written for it."""
NETS = ("mobile", "detector")


@pytest.fixture(scope="module")
def python() -> Path:
    if all(load_executor(engine).why_unavailable() for engine in ENGINES):
        pytest.skip("neither ncnn nor LiteRT is installed")
    return python_for_arm()


@pytest.fixture(scope="module")
def built(python, tmp_path_factory) -> Built:
    made = Built(tmp_path_factory.mktemp("forms"), {}, {})
    for net in NETS:
        model = getattr(small_nets, net)()
        inputs = {"x": np.stack([frame["x"] for frame in small_nets.frames(model, 4, seed=9)])}
        np.savez(made.folder / f"{net}-float.npz", **inputs)
        for engine in ENGINES:
            if not load_executor(engine).why_unavailable():
                keep_on_engine(made, net, engine, model)
    keep_grids_of_rows(made)
    return made


def keep_on_engine(made: Built, net: str, engine: str, model: Model) -> None:
    """Write the float model and its INT8 form as files of an engine, and run them here."""
    executor = load_executor(engine)
    runs = list(small_nets.frames(model, 4, seed=9))
    rules = find_target(f"{engine}-cpu").rules_here
    integers = quantize(model, list(small_nets.frames(model)), rules, form=ENGINES[engine]).model
    for form, precisions in {"float": ("fp32", "bf16" if engine == "ncnn" else ""), "int8": ("fp32",)}.items():
        name, written = f"{net}-{engine}-{form}", model if form == "float" else integers
        file = made.folder / f"{name}{executor.own_suffix}"
        file.write_bytes(executor.own_file(written.source))
        for precision in filter(None, precisions):
            session = executor.open(file, SessionOptions(("CPU",), 1, precision=precision))
            made.here[f"{name}-{precision}"] = np.stack([session.run(run)[session.outputs[0].name] for run in runs])
        plain = EXECUTOR.open(written.data, SessionOptions(("CPUExecutionProvider",), 1, UNOPTIMIZED))
        made.original[name] = np.stack([plain.run(run)[plain.outputs[0].name] for run in runs])


def keep_grids_of_rows(made: Built) -> None:
    """Write a transformer whose products LiteRT computes on grids of rows, found as it runs."""
    executor, model = load_executor("litert"), small_nets.ALL["vision_transformer"]()
    if executor.why_unavailable():
        return
    runs, name = list(small_nets.frames(model, 4, seed=9)), "transformer"
    np.savez(made.folder / f"{name}-float.npz", x=np.stack([run["x"] for run in runs]))
    file = made.folder / f"{name}-litert-dynamic.tflite"
    file.write_bytes(executor.own_file(make_dynamic(model, find_target("litert-cpu").int8).model.source))
    session = executor.open(file, SessionOptions(("CPU",), 1))
    made.here[f"{name}-litert-dynamic-fp32"] = np.stack([session.run(run)[session.outputs[0].name] for run in runs])
    plain = EXECUTOR.open(model.data, SessionOptions(("CPUExecutionProvider",), 1, UNOPTIMIZED))
    made.original[f"{name}-litert-dynamic"] = np.stack([plain.run(run)[plain.outputs[0].name] for run in runs])


@pytest.fixture(scope="module", params=LEVELS)
def there(request, python, built, tmp_path_factory) -> tuple[str, Path]:
    """The level of a processor for Arm, and the folder of the numbers that it computes of the same files."""
    out = tmp_path_factory.mktemp("arm")
    run_on_arm(python, request.param, built.folder, out)
    return request.param, out


def made_by(engine: str, name: str, built: Built, there: tuple[str, Path]) -> np.ndarray:
    """Return the numbers of an engine on Arm; the test skips where the engine is not here, or not there."""
    if reason := load_executor(engine).why_unavailable():
        pytest.skip(str(reason))
    refusal = there[1] / f"{name}.txt"
    if refusal.is_file() and "installed" in refusal.read_text():
        pytest.skip(f"the Python for Arm is of before {engine}: {refusal.read_text()}")
    assert not refusal.is_file(), refusal.read_text()
    assert name.rpartition("-")[0] in built.original
    return np.load(there[1] / f"{name}.npy")


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("engine", ENGINES)
def test_floats_of_an_engine_are_float32_on_arm(engine, net, built, there):
    """ncnn by itself rounds to float16 there, which is 0.2 to 0.3 % off."""
    name = f"{net}-{engine}-float"
    assert distance(made_by(engine, f"{name}-fp32", built, there), built.original[name]) <= ROUNDING


@pytest.mark.parametrize("net", NETS)
def test_ncnn_in_bfloat16_loses_on_arm_what_it_loses_here(net, built, there):
    name = f"{net}-ncnn-float"
    made, here = made_by("ncnn", f"{name}-bf16", built, there), built.here[f"{name}-bf16"]
    assert 1e-3 < distance(made, built.original[name]) < 1.2 * distance(here, built.original[name])


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_in_float16_is_as_near_as_11_bits_are(engine, net, built, there):
    if there[0] not in WITH_DOT:
        pytest.skip(f"{there[0]} has no float16")
    made = made_by(engine, f"{net}-{engine}-float-fp16", built, there)
    assert 1e-4 < distance(made, built.original[f"{net}-{engine}-float"]) < 5e-3


def test_grids_of_rows_that_litert_finds_on_arm_are_those_found_here(built, there):
    name = "transformer-litert-dynamic"
    made, here = made_by("litert", f"{name}-fp32", built, there), built.here[f"{name}-fp32"]
    assert distance(made, here) < 0.2 * distance(here, built.original[name])


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("engine", ENGINES)
def test_integers_of_an_engine_are_those_of_the_form_on_arm(engine, net, built, there):
    """ncnn rounds in its own way on x86, so it is farther from the form here than there."""
    name = f"{net}-{engine}-int8"
    made, form = made_by(engine, f"{name}-fp32", built, there), built.original[name]
    assert distance(made, form) <= (1e-3 if engine == "ncnn" else ROUNDING)
    assert distance(made, form) <= distance(built.here[f"{name}-fp32"], form) + ROUNDING
    assert distance(made, built.original[f"{net}-{engine}-float"]) > 100 * ROUNDING, f"{name} is the float model"
