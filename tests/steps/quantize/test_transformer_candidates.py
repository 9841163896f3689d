"""`optimize` has candidates for a transformer that it leaves alone for others."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from encoders import encoder
from onnx import NodeProto
from small_nets import ALL, frames

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.model import Model, find_model, load_model
from edgeopt.graph.outcome import Outcome
from edgeopt.optimization.candidates import other_engines
from edgeopt.optimization.optimize import optimize
from edgeopt.optimization.options import Options
from edgeopt.optimization.plan import make_plan
from edgeopt.recipes.recipe import find_recipe
from edgeopt.steps.convert.precisions import CONVERSIONS, eight_bits, four_bits, is_converted, why_not_converted
from edgeopt.steps.quantize.formats.dynamic import make_dynamic
from edgeopt.steps.quantize.search.attempt import Attempt, for_labels
from edgeopt.system.declared.target import Target, find_target
from edgeopt.system.machine.processor import Processor, cpu_architecture

FAR = "raspberry-pi-5" if cpu_architecture() == "x86-64" else "cpu-x86-vnni"
"""A target that is not this machine: nothing is timed, so that the test is quick and no timing decides it."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("transformer") / "encoder.onnx"
    onnx.save(encoder(side=14, patch=16, depth=1, classes=1000).proto, path)
    return optimize(path, target=FAR, recipe="imagenet", out=path.with_suffix(""), threads=1)


def test_without_pictures_a_transformer_gets_integer_weights_all_the_same(finished):
    made = {one.name: one for one in finished.candidates}
    assert made["attention"].changes == {"attention": 1}
    assert made["onnxruntime-w8"].changes == {"matrix products on integers": 7}
    assert made["onnxruntime-w8-2"].changes == {"matrices in 8 bits": 7}
    assert made["onnxruntime-w4"].changes == {"matrices in 4 bits": 7}
    assert {made[name].precision for name in ("onnxruntime-w8", "onnxruntime-w8-2")} == {"w8"}
    assert made["onnxruntime-w4"].precision == "w4"
    assert all(made[name].parent == "attention" for name in made if name.startswith("onnxruntime-"))


def test_integer_weights_agree_and_are_small(finished):
    made = {one.name: one for one in finished.candidates}
    assert made["attention"].agreement == pytest.approx(1, abs=1e-3)
    assert made["onnxruntime-w8-2"].agreement > made["onnxruntime-w4"].agreement
    assert made["onnxruntime-w4"].size_bytes < made["onnxruntime-w8"].size_bytes < made["baseline"].size_bytes


def test_a_form_that_agrees_on_made_up_pictures_is_told_to(finished):
    assert finished.best.is_lossy
    (told,) = [note for note in finished.notes if "made-up pictures" in note.detail]
    assert told.detail.startswith(f"{finished.chosen} agrees with the original on made-up pictures")
    assert told.hint.startswith("pass --calib FOLDER")


@pytest.mark.parametrize("name", [*(one for one in ALL if one != "vision_transformer"), "digits_detector"])
def test_a_convolutional_network_gets_no_further_candidates(name):
    model = ALL[name]() if name in ALL else load_model(find_model(name))
    target = find_target(FAR)
    assert eight_bits(model, target) == []
    assert four_bits(model, target) == []


def test_blocks_of_four_bits_for_arm_have_zeros_and_the_same_numbers(monkeypatch):
    monkeypatch.setattr("edgeopt.steps.convert.precisions.cpu_architecture", lambda: "x86-64")
    model, arm, here = encoder(depth=1), find_target("cpu-arm64"), find_target("cpu-x86-vnni")
    (for_arm,), (for_here,) = four_bits(model, arm), four_bits(model, here)
    zeros = [len(node.input) > 3 and bool(node.input[3]) for node in blocked(for_arm.model)]
    assert zeros
    assert all(zeros)
    assert not any(len(node.input) > 3 and node.input[3] for node in blocked(for_here.model))
    (frame,) = frames(model, 1)
    answers = [EXECUTOR.open(made.model.data, SessionOptions(threads=1)).run(frame) for made in (for_arm, for_here)]
    for name, value in answers[0].items():
        np.testing.assert_allclose(value, answers[1][name], rtol=1e-4, atol=1e-5)
    monkeypatch.setattr("edgeopt.steps.convert.precisions.cpu_architecture", lambda: "arm64")
    (judged_there,) = four_bits(model, arm)  # it computes what it is judged by
    assert not any(len(node.input) > 3 and node.input[3] for node in blocked(judged_there.model))


def blocked(model: Model) -> list[NodeProto]:
    return [node for node in model.proto.graph.node if node.op_type == "MatMulNBits"]


@pytest.mark.parametrize("precision", ["w8", "w4"])
def test_who_leaves_quantize_out_gets_no_integer_weights(precision):
    recipe, target = find_recipe("imagenet"), find_target(FAR)
    asked, not_asked = (make_plan(recipe, target, Options(skip=skip), 1) for skip in ((), ("quantize",)))
    assert why_not_converted(precision, target, asked.may_quantize) == ""
    assert why_not_converted(precision, target, not_asked.may_quantize) == "the step quantize is left out"


def test_float16_is_offered_to_a_gpu_and_never_to_a_processor_that_casts_back(monkeypatch):
    gpu, processor = (
        Target("t", "cpu", "onnxruntime", "", (provider,), ("fp32", "fp16"))
        for provider in ("CUDAExecutionProvider", "CPUExecutionProvider")
    )
    monkeypatch.setattr("edgeopt.system.declared.target.this_processor", lambda: Processor("x86-64", frozenset()))
    assert why_not_converted("fp16", gpu, True) == ""
    assert "no kernels in float16" in why_not_converted("fp16", processor, True)
    monkeypatch.setattr("edgeopt.system.declared.target.this_processor", lambda: Processor("arm64", frozenset()))
    assert why_not_converted("fp16", processor, True) == ""


@pytest.mark.parametrize(
    ("name", "precision", "expected"),
    [
        ("nvidia-cuda", "fp16", True),
        ("nvidia-tensorrt", "fp16", False),
        ("openvino-cpu", "bf16", False),
        ("cpu-x86-vnni", "w4", True),
        ("cpu-x86-vnni", "w8a8", False),
        ("litert-cpu", "fp16", False),
        ("litert-cpu", "w8", True),
        ("executorch-cpu", "w8", True),
    ],
)
def test_models_are_converted_for_onnx_runtime_and_for_engines_that_find_grids(name, precision, expected):
    target = find_target(name)
    assert precision in target.precisions
    assert is_converted(precision, target) is expected


def test_engines_that_find_grids_get_no_blocks():
    made = eight_bits(encoder(depth=1), find_target("litert-cpu"))
    assert [one.changes for one in made] == [{"matrix products on integers": 7}]


def test_weights_of_integers_that_no_step_makes_are_told_and_not_offered():
    """A profile of LiteRT whose forms leave out the grids that are found: the float model is not called `w8`."""
    litert = find_target("litert-cpu")
    target = replace(litert, precisions=("fp32", "w8"), int8=replace(litert.int8, forms=("qdq",)))
    context = SimpleNamespace(notes=[], target=target, engine=None)
    engine = SimpleNamespace(target=target)
    assert other_engines._makers(SimpleNamespace(context=context), engine) == {"fp32": ""}
    assert [note.detail for note in context.notes] == ["no w8 on litert-cpu: no step makes it for litert"]


def test_float16_is_made_of_what_the_pictures_show():
    model = ALL["mobile"]()
    (made,) = CONVERSIONS["fp16"](model, find_target(FAR), list(frames(model, 2)))
    assert made.changes["nodes in float16"] == len(model.proto.graph.node)


def attempt(model: Model, agreement: float, speed: float) -> Attempt:
    return Attempt("", Outcome(model, {}), agreement, speed)


def test_labels_also_judge_a_slower_form_that_agrees_better():
    model = encoder(depth=1)
    dynamic = make_dynamic(model, find_target(FAR).int8).model
    fast = [attempt(model, agreement, 1.8) for agreement in (0.86, 0.85, 0.84, 0.83)]
    sure, unsure, slow = (attempt(dynamic, *two) for two in ((0.93, 1.6), (0.81, 1.6), (0.99, 1.0)))
    assert for_labels([*fast, sure, unsure, slow], 3) == (fast[0], fast[1], sure)
    assert for_labels([*fast, unsure], 3) == tuple(fast[:3])
    assert for_labels([sure], 3) == (sure,)
    assert for_labels([*fast, sure], 1) == (fast[0],)
