"""Two real models through Qualcomm's simulator: everything placed, compiled, and the metric on labelled images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from edgeopt import plugins, tasks
from edgeopt.adapt import adapt
from edgeopt.compile import Compiled, compile_model, options_for
from edgeopt.evaluate import LabelledFrames, answers, evaluate, model_inputs, open_labelled
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR as CPU
from edgeopt.executors.qnn import EXECUTOR, PROVIDER
from edgeopt.frames import open_frames
from edgeopt.model import load_model
from edgeopt.placement import explain_placement
from edgeopt.quantization.htp_forms import HtpForm, find_htp_forms
from edgeopt.recognise import choose_recipe
from edgeopt.simulate import first_within, simulate_metric
from edgeopt.target import find_target
from edgeopt.tasks import Accuracy, Task

PROFILES = Path(__file__).parents[2] / "tests" / "device" / "targets"

_REASON = EXECUTOR.why_unavailable()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(_REASON is not None, reason=str(_REASON))]

V73 = find_target(f"{PROFILES}/qualcomm-htp-v73.toml")
PROCESSES = 2


@dataclass(frozen=True)
class Done:
    """What came out for one model."""

    baseline: Accuracy
    forms: Sequence[HtpForm]
    form: HtpForm
    scores: dict[str, Accuracy]
    compiled: Compiled
    told: list[tuple[str, int, int]]
    verdict: str


def go(
    model_file: Path, recipe: str | None, calib: Path, labels: Path, images: int, max_drop: float, out: Path
) -> Done:
    model = load_model(model_file)
    choice = choose_recipe(recipe, model_file, model.inputs, model.outputs, model.metadata).recipe

    def make_task() -> Task:
        return plugins.load(tasks, choice.task).TASK(choice, model.inputs, model.outputs, True)

    pictures, task = open_frames(calib), make_task()
    adapted = adapt(model, V73, {}, list(model_inputs(task, pictures.spread(2)))).model
    data = spread(open_labelled(labels), images)
    judged = pictures.spread(16)
    session = CPU.open(model.data, SessionOptions())
    baseline, reference = evaluate(session, task, data), answers(session, task, judged)

    def agreement(one) -> float:
        return task.agreement(answers(CPU.open(one.data, SessionOptions()), task, judged), reference)

    forms = find_htp_forms(adapted, model_inputs(task, pictures.spread(64)), V73, agreement=agreement)
    told: list[tuple[str, int, int]] = []

    def score(form: HtpForm) -> Accuracy:
        return simulate_metric(
            lambda: EXECUTOR.open(form.outcome.model.data, options_for(V73)),
            make_task,
            data,
            processes=PROCESSES,
            tell=lambda *one: told.append(one),
        )

    form, scores = first_within(forms, score, baseline, max_drop)
    inputs = list(model_inputs(task, pictures.spread(2)))
    compiled = compile_model(form.outcome.model, V73, out / "npu" / "model.onnx", inputs, original=adapted)
    verdict = explain_placement(form.outcome.model, V73).verdict
    print(baseline, {name: one.value for name, one in scores.items()}, form.name, form.wide_ratio, verdict, compiled)
    return Done(baseline, forms, form, dict(scores), compiled, told, verdict)


def spread(data: LabelledFrames, count: int) -> LabelledFrames:
    kept = [int(i) for i in np.linspace(0, len(data.frames) - 1, min(count, len(data.frames))).round()]
    return LabelledFrames(data.frames.select(kept), data.labels.select(kept), data.notes)


@pytest.fixture(scope="module")
def detector(data, tmp_path_factory):
    folder, out = data / "coco", tmp_path_factory.mktemp("yolox")
    file = data / "models" / "yolox_nano_416.onnx"
    return go(file, None, folder / "calib", folder / "instances_val.json", 64, 0.02, out)


@pytest.fixture(scope="module")
def classifier(data, tmp_path_factory):
    folder, out = data / "imagenet", tmp_path_factory.mktemp("squeezenet")
    file = data / "models" / "squeezenet_224.onnx"
    return go(file, "imagenet_caffe", folder / "calib", folder / "val_labels.csv", 128, 0.01, out)


@pytest.fixture(params=["detector", "classifier"])
def done(request):
    return request.getfixturevalue(request.param)


def test_every_node_is_on_the_npu(done):
    assert done.verdict.startswith("all ")
    assert done.verdict.endswith(" nodes on the NPU")
    assert done.compiled.numbers.nodes > 0


def test_the_binary_is_one_node_on_the_npu(done):
    session = EXECUTOR.open(done.compiled.file, options_for(V73))
    assert [(one.op, one.provider) for one in session.placement()] == [("EPContext", PROVIDER)]
    session.close()
    assert done.compiled.socs == ("43",)


def test_the_simulated_metric_was_computed_on_enough_images_with_progress(done):
    score = done.scores[done.form.name]
    assert score.n >= 64
    assert done.told[-1][1:] == (score.n, score.n)


def test_the_detector_loses_at_most_two_hundredths(detector):
    assert detector.baseline.value == pytest.approx(0.340, abs=0.005)
    assert detector.baseline.value - detector.scores[detector.form.name].value <= 0.02


def test_the_classifier_loses_at_most_one_hundredth(classifier):
    assert classifier.baseline.value - classifier.scores[classifier.form.name].value <= 0.01


def test_the_tool_chose_16_bits_where_8_were_not_enough(detector):
    assert detector.form.wide_ratio > 0
    assert detector.form.agreement >= 0.85
