from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from edgeopt import tasks
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.model import Model, find_model, load_model
from edgeopt.recipes.inputs.made_up import synthetic_frames
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.steps.quantize.judges import Judge, own_clock
from edgeopt.system.declared import registry
from edgeopt.system.declared.target import Target
from edgeopt.system.device_clock import device_clock
from edgeopt.tasks.detection.boxes import Detections

TARGET = Target("here", "cpu", "onnxruntime", "", ("CPUExecutionProvider",), ("fp32", "w8a8"))


@pytest.fixture
def model() -> Model:
    return load_model(find_model("digits_detector"))


def judge(model: Model, **wishes: object) -> Judge:
    recipe = choose_recipe(None, find_model("digits_detector"), model.inputs, model.outputs, model.metadata).recipe
    factory = registry.load(tasks, recipe.task).TASK

    def task(one: Model):
        return factory(recipe, one.inputs, one.outputs, True)

    frame = {model.inputs[0].name: np.zeros([int(size) for size in model.inputs[0].shape], np.float32)}
    pictures = synthetic_frames(recipe.input.size).spread(3)
    return Judge(model, lambda one: EXECUTOR.open(one.data, SessionOptions()), task, pictures, [frame], **wishes)


def test_a_model_agrees_with_itself_and_has_its_own_speed(model: Model) -> None:
    found = judge(model)
    assert found.agreement(model) == 1.0
    assert found.speed(model) > 0
    found.close()


def test_agreement_is_with_the_reference_where_one_is_given(model: Model) -> None:
    strange = Detections(np.array([[0, 0, 5, 5]], np.float32), np.array([0.9], np.float32), np.array([3]))
    found = judge(model, reference=[strange] * 3)
    assert found.agreement(model) == 0.0
    found.close()


@pytest.mark.parametrize(
    ("executor", "device", "threads", "clock"),
    [
        ("onnxruntime", "cpu", 1, time.thread_time_ns),
        ("onnxruntime", "cpu", 2, device_clock),
        ("openvino", "cpu", 1, device_clock),
        ("onnxruntime", "gpu", 1, device_clock),
    ],
)
def test_only_a_session_in_the_callers_thread_is_timed_by_that_threads_clock(executor, device, threads, clock) -> None:
    assert own_clock(replace(TARGET, executor=executor, device=device), threads) is clock
