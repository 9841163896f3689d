"""`edgeopt optimize --target rockchip-rk3588` on the shipped model, where the vendor's package is."""

from __future__ import annotations

import pytest

from edgeopt.executors.rknn import ESTIMATE, EXECUTOR
from edgeopt.optimization.optimize import optimize
from edgeopt.runtime.bundle import read_bundle

_REASON = EXECUTOR.why_unavailable()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(_REASON is not None, reason=str(_REASON))]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return optimize("digits_detector", target="rockchip-rk3588", out=tmp_path_factory.mktemp("rk") / "out")


def test_the_binary_keeps_its_accuracy_in_the_simulator(report):
    assert report.best.precision == "w8a8"
    assert report.best.simulated.n == 160, "all labels"
    assert report.best.drop <= report.max_drop
    assert report.best.word in ("KEPT", "NOT DECIDED")
    bundle = read_bundle(report.bundle)
    assert [one.file for one in bundle.artefacts] == ["model.rknn", "fallback.onnx"]
    assert bundle.artefacts[0].executor == "rknn"


def test_the_compilers_cycles_are_told_as_its_estimate_and_no_latency_is(report):
    assert any(ESTIMATE in note.detail for note in report.best.notes)
    assert report.best.latency is None
    assert "rknn-toolkit-lite2, edgeopt does not run there" in report.verdict_line
    assert report.best.placement.startswith(("all ", "NPU "))
