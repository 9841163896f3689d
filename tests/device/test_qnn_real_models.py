"""Two real models to Qualcomm's NPU through `optimize`: everything placed, compiled, the metric on labelled images."""

from __future__ import annotations

import json

import pytest
from few_labels import link_few, write_few

from edgeopt.executors import SessionOptions
from edgeopt.executors.qnn import EXECUTOR, PROVIDER
from edgeopt.optimization.optimize import optimize
from edgeopt.optimization.result import ModelReport
from edgeopt.runtime.bundle import read_bundle

_REASON = EXECUTOR.why_unavailable()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(_REASON is not None, reason=str(_REASON))]

TARGET = "qualcomm-htp-v73"
SKIP = ("prune",)
"""Pruning takes long, and no test here looks at pruned forms."""


FEW = 8
"""Labelled pictures: the simulator takes a second for each, and runs all for each form that is tried."""
LEARNED_FROM = 16


@pytest.fixture(scope="module")
def detector(data, tmp_path_factory) -> ModelReport:
    folder, out = data / "coco", tmp_path_factory.mktemp("yolox")
    few = write_few(folder / "instances_val.json", FEW, out.with_suffix(".json"))
    pictures = {"calib": link_few(folder / "calib", LEARNED_FROM, out / "calib"), "eval": few}
    model = data / "models" / "yolox_nano_416.onnx"
    return optimize(model, target=TARGET, out=out / "out", budget_ms=33.0, skip=SKIP, **pictures)


@pytest.fixture(scope="module")
def classifier(data, tmp_path_factory) -> ModelReport:
    folder, out = data / "imagenet", tmp_path_factory.mktemp("squeezenet")
    head, *rows = (folder / "val_labels.csv").read_text("utf-8").splitlines()
    few = out.with_suffix(".csv")
    few.write_text("\n".join((head, *(f"{folder / 'val' / row}" for row in rows[:: len(rows) // FEW]))), "utf-8")
    calib = link_few(folder / "calib", LEARNED_FROM, out / "calib")
    pictures = {"calib": calib, "eval": str(few), "recipe": "imagenet_caffe"}
    return optimize(data / "models" / "squeezenet_224.onnx", target=TARGET, out=out / "out", skip=SKIP, **pictures)


@pytest.fixture(params=["detector", "classifier"])
def report(request) -> ModelReport:
    return request.getfixturevalue(request.param)


def test_every_node_is_on_the_npu(report):
    assert report.best.placement.startswith("all ")
    assert report.best.placement.endswith(" nodes on the NPU")
    assert not report.off_target


def test_the_binary_in_the_bundle_is_one_node_on_the_npu(report):
    bundle = read_bundle(report.bundle)
    options = SessionOptions(bundle.target.providers, 1, bundle.target.options)
    session = EXECUTOR.open(bundle.model, options)
    assert [(one.op, one.provider) for one in session.placement()] == [("EPContext", PROVIDER)]
    session.close()
    assert bundle.artefacts[0].executor == "qnn"
    assert bundle.artefacts[-1].executor == "onnxruntime"


def test_the_simulated_metric_was_computed_on_every_labelled_picture(report):
    assert report.best.simulated.n == report.candidates[0].score.n >= FEW


def test_the_detector_loses_at_most_two_hundredths(detector):
    assert detector.candidates[0].score.value - detector.best.simulated.value <= 0.02


def test_the_classifier_loses_at_most_one_hundredth(classifier):
    assert classifier.candidates[0].score.value - classifier.best.simulated.value <= 0.01


def test_the_tool_chose_16_bits_where_8_were_not_enough(detector):
    assert detector.best.changes["nodes on U16"] > 0


def test_a_simulators_time_is_no_latency(detector):
    assert detector.exit_code == 3
    assert detector.verdict_line.startswith("latency: not measured (no device)")
    stored = json.loads((detector.folder / "report.json").read_text("utf-8"))
    assert all(one["latency"] is None and one["speed"] is None for one in stored["candidates"])
