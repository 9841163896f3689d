"""The line on two real models with labelled data: the figures are real, and the choice keeps its promise.

Both are not pruned here, which takes as long as all the rest: `benchmarks/pruning/run.py` prunes real models.
"""

from __future__ import annotations

import pytest
from few_labels import link_few
from fixture_brief import briefly, ending_after

from edgeopt.measurement.accuracy.judgement import is_within
from edgeopt.optimization.optimize import optimize

pytestmark = pytest.mark.slow
LEARNED_FROM = 48
"""Pictures that calibrate, of 128 and 100: watching all tensors of them was a third of a run."""


@pytest.fixture(scope="module")
def detector(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("yolox")
    with briefly(), ending_after(2):  # of 12 forms: one, and with layers in float
        return optimize(
            data / "models" / "yolox_nano_416.onnx",
            target="cpu",
            out=out / "out",
            calib=link_few(data / "coco" / "calib", LEARNED_FROM, out / "calib"),
            eval=str(data / "coco" / "instances_val.json"),
            threads=1,
            skip=("prune",),
            time_limit_s=300.0,  # the search ends far earlier; a busy machine needs more
        )


@pytest.fixture(scope="module")
def classifier(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("squeezenet")
    with briefly(), ending_after(2):
        return optimize(
            data / "models" / "squeezenet_224.onnx",
            target="cpu",
            out=out / "out",
            recipe="imagenet_caffe",
            calib=link_few(data / "imagenet" / "calib", LEARNED_FROM, out / "calib"),
            eval=str(data / "imagenet" / "val_labels.csv"),
            threads=1,
            skip=("prune",),
            time_limit_s=300.0,  # as above
        )


def test_the_detectors_baseline_is_the_reference_figure(detector):
    assert detector.recipe == "yolox"
    assert detector.candidates[0].score.value == pytest.approx(0.340, abs=0.002)
    assert detector.candidates[0].score.others["AP50"] == pytest.approx(0.511, abs=0.005)


def test_the_classifiers_baseline_is_the_reference_figure(classifier):
    assert classifier.candidates[0].score.value == pytest.approx(0.5925, abs=0.005)
    assert classifier.candidates[0].score.others["top5"] == pytest.approx(0.7975, abs=0.005)


@pytest.mark.parametrize("name", ["detector", "classifier"])
def test_the_chosen_one_keeps_its_accuracy_and_is_not_slower(name, request):
    report = request.getfixturevalue(name)
    assert report.best.refused == ""
    assert report.best.drop is None or is_within(report.best.drop, 0.01)
    assert report.best is report.candidates[0] or report.best.word in ("KEPT", "NOT DECIDED")
    assert report.best.speed is None or report.best.speed.verdict != "SLOWER"


@pytest.mark.parametrize("name", ["detector", "classifier"])
def test_every_shown_figure_is_measured(name, request):
    report = request.getfixturevalue(name)
    for one in report.candidates:
        assert one.score is None or one.score.n in (48, 64, 300, 400)
        assert one.latency.frames >= 30
        assert one.name == "baseline" or one.speed.low <= one.speed.speedup <= one.speed.high


def test_the_detector_in_int8_is_not_blind(detector):
    integers = [one for one in detector.candidates if one.precision == "w8a8"]
    assert integers
    assert all(one.agreement > 0.8 for one in integers)
    assert all(one.score.value > 0.31 for one in integers if one.score)


def test_the_classifier_runs_on_integers_unless_a_busy_machine_proves_nothing(classifier):
    integers = [one for one in classifier.candidates if one.precision == "w8a8" and not one.refused]
    assert integers
    assert all(one.size_bytes < 0.35 * classifier.candidates[0].size_bytes for one in integers)
    proven = [one for one in integers if one.speed.verdict == "FASTER" and one.word == "KEPT"]
    # A rewrite that keeps its accuracy goes before integers whose accuracy 400 pictures do not decide.
    assert not proven or (classifier.best.speed.verdict, classifier.best.word) == ("FASTER", "KEPT")
