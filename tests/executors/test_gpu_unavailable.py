"""A GPU that is not here: one line that says what is missing, one that says how to get it, exit code 1."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from click.testing import CliRunner, Result
from fixture_models import model, numbers

from edgeopt.cli import cli
from edgeopt.errors import UnavailableError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import _ONE_NODE, EXECUTOR
from edgeopt.executors.onnxruntime.providers import (
    CPU,
    CUDA,
    DIRECTML,
    PROVIDERS,
    TENSORRT,
    dead_provider,
    missing_library,
    missing_provider,
    why_no_driver,
    why_not_loaded,
)
from edgeopt.system.declared.target import Target, TargetChoice, read_target, target_names
from edgeopt.system.disk import assets

PROFILES = [read_target(assets.folder("targets") / f"{name}.toml") for name in target_names()]
MEASURED = [one for one in PROFILES if isinstance(one, Target) and one.device != "npu"]
GPU = next(one for one in PROFILES if isinstance(one, TargetChoice) and one.name == "gpu")
TARGETS = [one for one in MEASURED if one.providers[0] in PROVIDERS]
NET = model("net (float[1,2] x) => (float[1,2] y) { y = MatMul(x, w) }", w=numbers(2, 2))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def test_every_gpu_has_a_profile():
    assert {one.providers[0] for one in TARGETS} < set(PROVIDERS)
    nvidia = ["nvidia-cuda", "nvidia-graph", "nvidia-graph-nhwc", "nvidia-tensorrt"]
    assert [one.name for one in TARGETS] == ["cpu-xnnpack", "directml", *nvidia, "webgpu"]


@pytest.mark.parametrize("command", ["optimize", "bench", "inspect", "quantize"])
@pytest.mark.parametrize("target", TARGETS, ids=lambda one: one.name)
def test_a_command_for_a_provider_that_is_not_here_says_so_in_one_line_and_exits_1(command, target, tmp_path):
    if target.providers[0] in onnxruntime.get_available_providers():
        pytest.skip(f"this ONNX Runtime has {target.providers[0]}")
    out = ["--out", str(tmp_path / "out")] if command in ("optimize", "quantize") else []
    result = run(command, "digits_detector", "--target", target.name, *out)
    problem, remedy = result.output.splitlines()[-2:]
    assert result.exit_code == 1
    assert problem.startswith(f"error: ONNX Runtime {onnxruntime.__version__} here has no {target.providers[0]}")
    assert remedy.startswith(f"  -> {PROVIDERS[target.providers[0]].install} in its own environment")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["optimize", "bench", "inspect", "quantize"])
def test_the_target_gpu_names_every_profile_with_what_installs_it(command):
    if {one.providers[0] for one in TARGETS if one.device == "gpu"} & set(onnxruntime.get_available_providers()):
        pytest.skip("this ONNX Runtime has a provider for a GPU")
    result = run(command, "digits_detector", "--target", "gpu")
    assert result.exit_code == 1
    for target in (one for one in TARGETS if one.name in GPU.choose):
        assert f"{target.name}: " in result.output
        assert PROVIDERS[target.providers[0]].install in result.output


@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_executor_gives_the_same_reason_without_a_model(provider):
    if provider in onnxruntime.get_available_providers():
        pytest.skip(f"this ONNX Runtime has {provider}")
    reason = EXECUTOR.why_no_provider((provider, CPU))
    assert reason is not None
    assert reason.endswith(f"({PROVIDERS[provider].install} in its own environment)")
    with pytest.raises(UnavailableError, match=provider):
        EXECUTOR.open(NET.data, SessionOptions(providers=(provider, CPU)))


def test_the_model_that_a_device_is_tried_with_is_valid_and_runs():
    onnx.checker.check_model(onnx.load_from_string(_ONE_NODE), full_check=True)
    with_one_node = EXECUTOR.open(_ONE_NODE, SessionOptions())
    assert [one.op for one in with_one_node.placement()] == ["Relu"]
    assert with_one_node.run({"x": np.array([-3], np.float32)})["y"].tolist() == [0]


def test_the_processor_is_always_here():
    assert EXECUTOR.why_no_provider((CPU,)) is None


@pytest.mark.skipif(sys.platform == "win32", reason="DirectML may be here")
def test_directml_is_not_offered_where_no_build_can_have_it():
    assert "Windows only" in missing_provider(DIRECTML, "1.31.1").problem


def test_a_provider_that_does_not_start_is_told_with_its_reason_and_its_needs():
    error = dead_provider(CUDA, "libcublasLt.so.13 is missing")
    assert str(error).splitlines() == [
        "CUDAExecutionProvider is installed but does not start: libcublasLt.so.13 is missing",
        "  -> it needs NVIDIA's driver, CUDA and cuDNN; "
        "pip install 'onnxruntime-gpu[cuda,cudnn]' brings CUDA and cuDNN",
    ]


def test_a_provider_that_nobody_knows_is_told_too():
    assert missing_provider("MyExecutionProvider", "1.31.1").remedy.startswith("install a build")
    assert dead_provider("MyExecutionProvider", "").remedy == "run edgeopt doctor"


def test_only_nvidias_providers_ask_for_nvidias_driver_and_libraries():
    assert why_no_driver(DIRECTML) == ""
    assert why_not_loaded(DIRECTML, Path()) == ""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the library has another name")
@pytest.mark.parametrize("provider", [CUDA, TENSORRT])
def test_a_missing_driver_is_named(provider):
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        assert why_no_driver(provider) == "there is no NVIDIA driver (libcuda.so.1)"
    else:
        assert why_no_driver(provider) == ""


def test_a_library_that_cannot_be_loaded_is_named(tmp_path):
    path = tmp_path / "libnothing.so"
    assert missing_library(path).endswith("is missing")
    assert "libnothing.so" in missing_library(path)


def test_a_library_that_lacks_none_is_not_accused(tmp_path):
    path = tmp_path / "libtext.so"
    path.write_text("no library at all")  # the loader has another complaint, which is none about a missing one
    assert missing_library(path) == ""
