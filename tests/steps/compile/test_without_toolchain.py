"""An NPU for which nothing compiles here: its rules judge, its INT8 recipe is written, and no latency is told."""

from __future__ import annotations

import pytest
from fixture_brief import briefly, ending_after

from edgeopt.graph.model import load_model
from edgeopt.optimization.optimize import optimize
from edgeopt.runtime.bundle import read_bundle
from edgeopt.runtime.devices.availability import why_unavailable
from edgeopt.system.declared.target import find_target

TARGET = "intel-npu"
pytestmark = pytest.mark.skipif(why_unavailable(find_target(TARGET)) is None, reason="the NPU is here")


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    out = tmp_path_factory.mktemp("rule") / "out"
    with briefly(), ending_after(2):
        return optimize("digits_detector", target=TARGET, out=out, budget_ms=33.0, skip=("prune",))


def test_the_integer_form_is_written_and_scored_on_the_processor(report):
    assert report.best.precision == "w8a8"
    assert report.best.drop <= report.max_drop
    assert load_model(report.folder / report.best.file).op_counts["QuantizeLinear"] > 20


def test_the_rules_say_where_nodes_would_run_and_that_nothing_was_compiled(report):
    assert "on the NPU (by rule; not compiled: openvino)" in report.best.placement
    assert any(note.detail.startswith("not compiled: ") for note in report.notes)


def test_no_latency_is_told_and_the_budget_stays_open(report):
    assert all(one.latency is None and one.speed is None for one in report.candidates)
    assert report.exit_code == 3
    assert report.verdict_line.startswith("latency: not measured (no device); on the device: edgeopt bench")


def test_the_bundle_runs_on_the_device_and_falls_back_to_float_on_the_processor(report):
    first, fallback = read_bundle(report.bundle).artefacts
    assert (first.executor, first.providers, first.precision) == ("openvino", ("NPU",), "w8a8+fp16")
    assert (fallback.executor, fallback.providers, fallback.precision) == (
        "onnxruntime",
        ("CPUExecutionProvider",),
        "fp32",
    )
