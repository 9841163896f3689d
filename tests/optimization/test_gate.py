"""Verdict and exit code of `optimize`, whatever was optimized."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edgeopt.measurement.accuracy.judgement import Judgement, Word
from edgeopt.measurement.statistics.quantile import StageTime
from edgeopt.optimization.candidate import BASELINE, Candidate, Latency
from edgeopt.optimization.report.result import FramesReport
from edgeopt.optimization.report.verdict import outcome_of
from edgeopt.system.machine.environment import Environment

NOISY = "NOISY; pressure: tasks waited for a core 90.0% of the time"


def report(frames: str | None, trust: str = "TRUSTED", *, asked: bool = True) -> FramesReport:
    first = Candidate(BASELINE, "", (), "fp32", "b.onnx", 1000)
    latency = Latency(400, StageTime(1.0, 1.0, 2.0), {}, frames, "0 of 400 frames over 33 ms") if frames else None
    judged = Judgement(Word.NOT_DECIDED, 160, 0.01, drop=0.001, drop_least=-0.01, drop_most=0.02)
    best = replace(first, name="fuse", parent=BASELINE, latency=latency, judgement=judged)
    return FramesReport(
        model="model", target="cpu", environment=Environment({}), threads=1, metric="AP", max_drop=0.01,
        candidates=(first, best), chosen="fuse", folder=Path("out"), bundle=Path("out/bundle"),
        budget_ms=33.0, budget_asked=asked, trust=trust,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("frames", "trust", "asked", "verdict"),
    [
        ("PASS", "TRUSTED", True, "PASS"),
        ("FAIL", NOISY, True, "NOISY"),
        ("FAIL", NOISY, False, "FAIL"),
        ("PASS", "INVALID; clock step: the system clock was set", True, "INVALID"),
        ("INCONCLUSIVE", "", True, "INCONCLUSIVE"),
        (None, NOISY, True, "INCONCLUSIVE"),
    ],
)
def test_noise_closes_a_gate_that_somebody_asked_for(frames, trust, asked, verdict):
    assert report(frames, trust, asked=asked).verdict == verdict


def test_an_interrupt_comes_before_all_and_open_accuracy_after_the_budget():
    assert report("PASS", "").noise == report("PASS").noise == ""
    assert report("PASS").exit_code == 0
    open_ended = replace(report("PASS"), accuracy_asked=True)
    assert (open_ended.exit_code, outcome_of(open_ended)) == (3, "NOT DECIDED")
    assert replace(open_ended, chosen=BASELINE, budget_asked=False).exit_code == 0, "the original keeps its accuracy"
    missed = replace(report("FAIL"), accuracy_asked=True)
    assert missed.exit_code == 2
    cut = replace(missed, was_cut=True)
    assert (cut.exit_code, outcome_of(cut)) == (130, "DONE"), "what was cut is no verdict"
