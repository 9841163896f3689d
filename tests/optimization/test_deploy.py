"""A bundle's models and the order in which a device tries them: the choice first, last one that every device runs."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from edgeopt.measurement.statistics.quantile import StageTime
from edgeopt.optimization.candidate import BASELINE, Candidate, Latency
from edgeopt.optimization.deployment.deploy import _chain
from edgeopt.runtime.devices.availability import load_executor
from edgeopt.system.declared.target import find_target

CPU, OPENVINO = find_target("cpu-x86-vnni"), find_target("openvino-cpu")
NPU, GPU = find_target("qualcomm-htp-v73"), find_target("nvidia-cuda")
ROCKCHIP = find_target("rockchip-rk3588")
FLOAT = Candidate(BASELINE, "", (), "fp32", "candidates/baseline/model.onnx", 100)


def made(name: str, precision: str, p50_ms: float | None = None, **more: object) -> Candidate:
    one = replace(FLOAT, name=name, precision=precision, file=f"candidates/{name}/model.onnx", **more)
    if p50_ms is None:
        return one
    time = StageTime(p50_ms, p50_ms, p50_ms)
    return replace(one, latency=Latency(100, time, {}, "PASS", ""))


INT8, FUSED = made("quantize", "w8a8", 5.0), made("fuse", "fp32", 9.0)


def chain(own, candidates, best, device=None):
    """Return file, executor, provider and precision of each model of a bundle."""

    def engine(target):
        return SimpleNamespace(target=target, executor=load_executor(target.executor), threads=2)

    run = SimpleNamespace(
        by_rule=False,
        untimed="",
        plan=SimpleNamespace(threads=2, threads_wanted=0, beside=frozenset({"prune"})),
        context=SimpleNamespace(engine=engine(own), target=own),
        engine_of=lambda one: engine(device if one.profile else own),
    )
    parts = _chain(run, candidates, best)
    return [(one.name, one.target.executor, one.target.providers[0], one.precision) for one in parts]


ON_CPU = ("onnxruntime", "CPUExecutionProvider")


def test_what_is_fallen_back_to_is_dense_wherever_a_pruned_model_was_chosen():
    pruned = replace(FLOAT, name="prune", file="candidates/prune/model.onnx", steps=("fuse", "prune"))
    chosen = replace(INT8, name="prune-quantize", steps=("fuse", "prune", "quantize"))
    found = chain(CPU, [FLOAT, FUSED, INT8, pruned, chosen], chosen)
    assert found == [("model.onnx", *ON_CPU, "w8a8"), ("fallback.onnx", *ON_CPU, "fp32")]


def test_a_float_choice_on_the_processor_needs_nothing_behind_it():
    assert chain(CPU, [FLOAT, FUSED], FUSED) == [("model.onnx", *ON_CPU, "fp32")]


def test_integers_have_the_best_float_model_behind_them():
    found = chain(CPU, [FLOAT, FUSED, INT8], INT8)
    assert found == [("model.onnx", *ON_CPU, "w8a8"), ("fallback.onnx", *ON_CPU, "fp32")]


def test_a_device_without_the_engine_still_answers_from_the_same_file():
    found = chain(OPENVINO, [FLOAT, FUSED, INT8], INT8)
    assert found == [
        ("model.onnx", "openvino", "CPU", "w8a8"),
        ("fallback.onnx", "openvino", "CPU", "fp32"),
        ("fallback.onnx", *ON_CPU, "fp32"),
    ]
    found = chain(GPU, [FLOAT, FUSED], FUSED)
    assert found == [("model.onnx", "onnxruntime", "CUDAExecutionProvider", "fp32"), ("model.onnx", *ON_CPU, "fp32")]


@pytest.mark.parametrize(
    ("p50_ms", "expected"), [(7.0, ["fallback-half.onnx"]), (12.0, []), (None, ["fallback-half.onnx"])]
)
def test_half_precision_stands_between_where_it_is_not_slower_than_float(p50_ms, expected):
    half = made("half", "fp16", p50_ms)
    names = [name for name, *_ in chain(GPU, [FLOAT, FUSED, half, INT8], INT8)]
    assert names == ["model.onnx", *expected, "fallback.onnx", "fallback.onnx"]
    refused = replace(half, refused="loses too much")
    assert "fallback-half.onnx" not in [name for name, *_ in chain(GPU, [FLOAT, FUSED, refused, INT8], INT8)]


def test_what_was_compiled_has_its_onnx_form_behind_it_where_the_device_compiles():
    compiled = replace(INT8, profile=NPU.name, compiled="candidates/quantize/npu/model.onnx")
    assert chain(CPU, [FLOAT, FUSED, compiled], compiled, NPU) == [
        ("model.onnx", "qnn", "QNNExecutionProvider", "w8a8"),
        ("fallback-onnx.onnx", "qnn", "QNNExecutionProvider", "w8a8"),
        ("fallback.onnx", *ON_CPU, "fp32"),
    ]
    compiled = replace(INT8, profile=ROCKCHIP.name, compiled="candidates/quantize/npu/model.rknn")
    found = chain(CPU, [FLOAT, FUSED, compiled], compiled, ROCKCHIP)
    assert [name for name, *_ in found] == ["model.rknn", "fallback.onnx"], "only the toolkit reads ONNX there"
