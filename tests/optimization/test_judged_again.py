"""`report` says of a load what `bench` proved: waiting counts, and a lost frame misses the budget."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import edgeopt
from edgeopt.measurement.bench.stored import read_stored
from edgeopt.measurement.resources.trust import TrustLevel
from edgeopt.measurement.samples import Samples
from edgeopt.optimization.candidates.measure import latency_of
from edgeopt.optimization.report.runs import EarlierRun, read_runs
from edgeopt.report.formats import render
from edgeopt.verbs.report import read_stored_report
from edgeopt.workloads.frames.report import earlier_run

MS = 1_000_000
ROWS = 400


def arrived(waited_ms: float = 0.0, lost: int = 0) -> Samples:
    """Return frames of 1 ms that waited before they were taken; the last ones are lost."""
    intended, frame = np.arange(ROWS) * 10 * MS, np.full(ROWS, MS)
    started = intended + round(waited_ms * MS)
    return Samples(
        ("execute",),
        frame[:, None],
        frame,
        np.zeros(ROWS, np.bool_),
        started_ns=started,
        done_ns=started + frame,
        intended_ns=intended,
        failed=np.arange(ROWS) >= ROWS - lost,
    )


@pytest.mark.parametrize(
    ("rows", "verdict", "p50_ms", "stages"),
    [
        (arrived(), "PASS", 1.0, ["execute"]),
        (arrived(waited_ms=5.0), "FAIL", 6.0, ["waiting", "execute"]),
        (arrived(lost=100), "FAIL", 1.0, ["execute"]),
    ],
)
def test_a_frame_that_waited_too_long_or_was_lost_is_a_miss(rows, verdict, p50_ms, stages):
    latency = latency_of(rows, 2.0)
    assert (latency.verdict, latency.frame.p50_ms, [*latency.stages]) == (verdict, p50_ms, stages)
    assert ("or lost" in latency.detail) == rows.lost.any()


def run_of(folder: Path) -> EarlierRun:
    return read_runs([folder], earlier_run)[0]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory) -> Path:
    """A load of 400 frames, which no processor serves in time; half are warm-up.

    So few that a machine serves some of the other half before waiting frames are given up, however busy it is.
    """
    folder = tmp_path_factory.mktemp("load") / "out"
    few = {"seconds": 0.02, "min_frames": 100}
    edgeopt.bench("digits_detector", load="fps:10000", budget_ms=2.0, threads=1, out=folder, **few)
    return folder


def test_a_load_that_misses_its_budget_is_no_pass_in_the_report(loaded):
    stored, run = read_stored(loaded), run_of(loaded)
    assert stored.load.startswith("fps:10000 ")
    assert stored.verdict == "fail"
    assert run.verdict == run.latency.verdict == "FAIL"
    assert "2 ms FAIL" in render(read_stored_report([loaded]).document, "terminal")


def test_the_report_of_one_run_tells_its_kind_and_its_machine(loaded):
    one = read_stored_report([loaded]).document.data
    assert (one["kind"], one["environment"]) == ("frames", read_stored(loaded).environment.to_json())
    two = read_stored_report([loaded, loaded]).document.data
    assert (two["kind"], two["environment"]) == ("frames", None)
    assert [run["environment"]["hash"] for run in two["runs"]] == 2 * [one["environment"]["hash"]]
    assert all(run["trust"]["level"] in {*TrustLevel} for run in two["runs"])


def test_the_share_that_may_miss_and_the_verdict_are_those_of_the_run(loaded, tmp_path):
    values = json.loads((loaded / "bench.json").read_text("utf-8"))
    values["judged"][0]["verdict"], values["budget"]["max_miss_ratio"] = "inconclusive", 0.9999
    (tmp_path / "bench.json").write_text(json.dumps(values), "utf-8")
    (tmp_path / "samples.npz").write_bytes((loaded / "samples.npz").read_bytes())
    run = run_of(tmp_path)
    assert run.verdict == "INCONCLUSIVE"
    assert "99.99% allowed" in run.latency.detail
