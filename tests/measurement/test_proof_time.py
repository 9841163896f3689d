"""The seconds that a proof takes, by made-up times of models."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edgeopt.measurement.fresh_process.proof_time import ProofTime, SeenTimes, processes_that_decide
from edgeopt.measurement.statistics.ratio import Change, ratio_of_rounds
from edgeopt.optimization.candidates.measure import proof_pace

PROOF = ProofTime(process_s=2.0, original=SeenTimes(open_s=0.1, frame_s=0.1), judging_s=3.0)


def test_the_faster_a_form_looks_the_fewer_processes_decide_and_from_six_on_ranks_do():
    assert [processes_that_decide(speed) for speed in (10.0, 4.0, 1.7, 1.5, 1.35, 1.2, 1.0, 0.5)] == [
        *(3, 3, 3, 4, 5, 6, 6, 6)
    ]


@pytest.mark.parametrize("speedup", [1.7, 1.42, 1.33])
def test_processes_that_differ_by_a_tenth_decide_in_most_cases_and_of_no_gain_in_few(speedup):
    chance, count = np.random.default_rng(0), processes_that_decide(speedup)

    def faster(true: float) -> float:
        logs = math.log(true) + 0.1 * chance.standard_normal((2000, count))
        return float(np.mean([ratio_of_rounds(each, pairs=count).verdict is Change.FASTER for each in logs]))

    assert faster(speedup) > 0.8
    assert faster(1.0) < 0.03


def test_a_process_takes_its_start_what_each_form_adds_and_another_engine_once():
    own = SeenTimes(0.1, 0.05)
    other = SeenTimes(0.3, 0.025, "openvino-cpu")
    proof = PROOF.with_form("own", own).with_form("other", other).with_form("third", other)
    start_s = 2.0 - 2 * (0.1 + 7 * 0.1)
    assert proof.each_s([]) == pytest.approx(2.0)
    assert proof.each_s(["own"]) == pytest.approx(2.0 + 0.1 + 7 * 0.05)
    assert proof.each_s(["other"]) == pytest.approx(2.0 + start_s + 0.3 + 7 * 0.025)
    assert proof.each_s(["other", "third"]) - proof.each_s(["other"]) == pytest.approx(0.3 + 7 * 0.025)
    assert proof.each_s(["unknown"]) == pytest.approx(2.0 + 0.8), "as long as the original"


def test_what_is_kept_follows_from_the_best_form_and_from_what_its_gain_needs():
    nothing = PROOF.kept_s
    much = PROOF.with_form("much", SeenTimes(0.1, 0.025))
    little = PROOF.with_form("little", SeenTimes(0.1, 0.09))
    assert nothing == pytest.approx(1.2 * 3 * (0.1 + 11 * 0.1) + 1.2 * 6 * 2.8 + 3.0), "of a form as the original"
    assert much.kept_s < nothing < little.kept_s
    assert much.processes_s(["much"]) == pytest.approx(1.2 * 3 * (2.0 + 0.1 + 7 * 0.025))
    many = little
    for i in range(20):
        many = many.with_form(f"slower-{i}", SeenTimes(0.1, 0.2))
    more = many.with_form("one-more", SeenTimes(0.1, 0.2))
    assert many.kept_s == pytest.approx(more.kept_s), "of those that look fastest"


@pytest.mark.parametrize("frame_s", [0.1, 0.6])
def test_a_process_is_reckoned_by_the_frames_that_it_runs(frame_s):
    frames = 1 + 2 * proof_pace(frame_s).least_rounds
    assert SeenTimes(0.0, frame_s).in_process_s == pytest.approx(frames * frame_s)


def test_an_earlier_run_says_how_much_longer_a_process_takes():
    slower = ProofTime(2.0, PROOF.original, slower=PROOF.slower_by(1.5))
    assert slower.each_s([]) == pytest.approx(3.0)
    assert slower.slower_by(0.8) == pytest.approx(1.2)
    assert slower.slower_by(100.0) == pytest.approx(4.0), "a busy moment is no pace"
    assert PROOF.slower_by(0.5) == 1.0
