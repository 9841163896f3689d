"""The verdict of a report: what the budget says, what a noisy machine makes of it, and a file that grew."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edgeopt.measurement.accuracy.judgement import Judgement, Word, judge_numbers
from edgeopt.measurement.statistics.quantile import StageTime
from edgeopt.measurement.statistics.ratio import Change, Ratio
from edgeopt.optimization.candidate import BASELINE, Candidate, Latency
from edgeopt.optimization.report.summary import summarize
from edgeopt.optimization.report.verdict import judge
from edgeopt.optimization.result import ModelReport
from edgeopt.report.formats import render
from edgeopt.system.machine.environment import read_environment
from edgeopt.system.text import format_bytes

TIME = StageTime(1.0, 1.0, 2.0)
NOISY = "NOISY; pressure: tasks waited for a core 90.0% of the time"


def report(verdict: str, trust: str, *, asked: bool = True, size_bytes: int = 1000) -> ModelReport:
    latency = Latency(400, TIME, {"execute": TIME}, verdict, "0 of 400 frames over 33 ms")
    first = Candidate(BASELINE, "", (), "fp32", "b.onnx", 1000, latency=latency)
    speed = Ratio(1.5, 1.4, 1.6, Change.FASTER, processes=8)
    best = replace(first, name="fuse", parent=BASELINE, size_bytes=size_bytes, speed=speed, execute=speed)
    text = {
        "model": "model",
        "model_sha256": "0",
        "recipe": "recipe",
        "recipe_reason": "asked for",
        "target": "cpu",
    }
    rest = {"threads": 1, "budget_ms": 33.0, "budget_asked": asked, "max_drop": 0.01, "metric": "AP"}
    return ModelReport(
        **text,
        environment=read_environment(),
        **rest,
        candidates=(first, best),
        chosen="fuse",
        reason="fuse",
        folder=Path("out"),
        bundle=Path("out/bundle"),
        calibrated_on="nothing",
        notes=(),
        trust=trust,
    )


@pytest.mark.parametrize(
    ("verdict", "trust", "word", "code", "outcome"),
    [
        ("PASS", "TRUSTED", "PASS", 0, "PASS"),
        ("FAIL", "TRUSTED", "FAIL", 2, "FAIL"),
        ("INCONCLUSIVE", "TRUSTED", "INCONCLUSIVE", 3, "NOT DECIDED"),
        ("PASS", NOISY, "NOISY", 4, "NOISY"),
        ("FAIL", NOISY, "NOISY", 4, "NOISY"),
        ("FAIL", "INVALID; clock step: the system clock was set by 3.00 s", "INVALID", 4, "NOISY"),
    ],
)
def test_the_exit_code_is_that_of_the_word_in_the_verdict(verdict, trust, word, code, outcome):
    found = report(verdict, trust)
    assert (found.verdict, found.exit_code, judge(found).outcome) == (word, code, outcome)
    assert found.verdict_line.startswith(f"{word}: ")
    assert "0 of 400 frames over 33 ms" in found.verdict_line


def test_without_a_budget_a_noisy_machine_closes_no_gate_and_is_told():
    found = report("PASS", NOISY, asked=False)
    assert (found.verdict, found.exit_code) == ("PASS", 0)
    assert found.verdict_line.endswith("; NOISY: do not trust small differences (pressure)")


def test_a_missed_budget_that_nobody_asked_for_is_said_to_be_no_gate():
    found = report("FAIL", "TRUSTED", asked=False)
    assert found.exit_code == 0
    assert found.verdict_line.endswith("; that is the target's budget, --budget makes it a gate")
    assert "gate" not in report("FAIL", "TRUSTED").verdict_line
    assert judge(found).outcome == "DONE", "a word that says FAIL would say exit code 2"


def test_the_verdict_says_what_was_chosen_where_it_lies_and_what_comes_next():
    found = judge(report("PASS", "TRUSTED", size_bytes=900))
    assert found.sentence == "fuse is 1.50x [1.40, 1.60] as fast as the original"
    assert (found.bundle, found.next_command) == ("out/bundle", "edgeopt bench out/bundle")
    failed = judge(report("FAIL", "TRUSTED"))
    assert failed.next_command == "edgeopt bench out/bundle --budget 33ms --profile"


def test_a_file_that_grew_is_told_in_the_verdict():
    grown = report("PASS", "TRUSTED", size_bytes=3600)
    assert grown.verdict_line.endswith("; the file is 3.60 times the original's size (4 KiB, was 1000 B)")
    assert "size" not in report("PASS", "TRUSTED", size_bytes=900).verdict_line


def test_every_speed_in_the_table_has_its_interval_and_its_verdict():
    assert "1.50x [1.40, 1.60] FASTER" in render(summarize(report("PASS", "TRUSTED")), "markdown")


def with_faster(word: Word, drop: float, most: float) -> ModelReport:
    """A KEPT rewrite that is chosen, and INT8 that is proven faster, of whose accuracy labels say something else."""
    found = report("PASS", "TRUSTED")
    first, best = found.candidates
    judged = Judgement(word, 64, 0.01, drop=drop, drop_least=drop - 0.02, drop_most=most, wanted=1290 * (drop < 0.01))
    speed = Ratio(1.74, 1.7, 1.79, Change.FASTER, processes=6)
    int8 = replace(best, name="quantize", speed=speed, execute=None, judgement=judged)
    kept = replace(best, judgement=judge_numbers(120.0, 0.01))
    return replace(found, candidates=(first, kept, int8))


def test_the_last_lines_tell_the_proof_of_speed_then_of_accuracy_then_what_to_do():
    lines = {one.label: one.text for one in judge(with_faster(Word.NOT_DECIDED, 0.005, 0.0301)).facts}
    assert [*lines] == ["speed", "accuracy", "faster", "to get it", "budget", "size", "report"]
    assert (
        lines["speed"]
        == "FASTER: whole frames in 8 fresh processes; execution alone 1.50x [1.40, 1.60]; confidence 95%"
    )
    assert lines["accuracy"] == "KEPT: outputs within 120 dB of the original's"
    assert lines["faster"] == (
        "quantize is proven 1.74x [1.70, 1.79] as fast; its accuracy is NOT DECIDED: "
        "drop +0.0050, at most +0.0301 (0.01 allowed; 64 samples)"
    )
    assert lines["to get it"] == (
        "about 1,290 labelled samples would decide; or --max-drop 0.031 allows what is lost at most"
    )


def test_why_the_fastest_of_the_table_is_not_the_choice_is_told_where_both_are_kept():
    found = with_faster(Word.NOT_DECIDED, 0.005, 0.0301)
    first, kept, int8 = found.candidates
    judged = Judgement(Word.KEPT, 160, 0.02, drop=0.001, drop_least=-0.01, drop_most=0.0199)
    equal = replace(int8, speed=Ratio(1.55, 1.5, 1.62, Change.FASTER, processes=6), judgement=judged)
    lines = {fact.label: fact.text for fact in judge(replace(found, candidates=(first, kept, equal))).facts}
    assert lines["as fast"] == (
        "quantize, 1.55x [1.50, 1.62], is not proven faster than fuse; it may lose more: "
        "drop +0.0010, at most +0.0199 (0.02 allowed; 160 samples)"
    )
    safe = replace(judged, drop_most=kept.judgement.drop_most)
    rival = replace(equal, judgement=safe, size_bytes=3 * kept.size_bytes)
    for other, why in (
        (rival, f"it may lose as much, and has {format_bytes(rival.size_bytes)}"),
        (replace(rival, size_bytes=kept.size_bytes), "it may lose as much, and does no better on these samples"),
    ):
        told = judge(replace(found, candidates=(first, kept, other))).facts
        assert next(fact.text for fact in told if fact.label == "as fast").endswith(why)
    alike = replace(rival, speed=replace(kept.speed, speedup=kept.speed.speedup + 0.001))
    assert "as fast" not in {fact.label for fact in judge(replace(found, candidates=(first, kept, alike))).facts}
    apart = replace(equal, speed=Ratio(1.74, 1.7, 1.79, Change.FASTER, processes=6))
    assert "as fast" not in {fact.label for fact in judge(replace(found, candidates=(first, kept, apart))).facts}


def test_what_seems_to_lose_more_than_is_allowed_needs_a_larger_drop_and_what_is_lost_is_not_told():
    lines = {one.label: one.text for one in judge(with_faster(Word.NOT_DECIDED, 0.0111, 0.0317)).facts}
    assert lines["to get it"] == "--max-drop 0.032 allows what is lost at most"
    lost = {one.label for one in judge(with_faster(Word.LOST, 0.05, 0.08)).facts}
    assert not {"faster", "to get it"} & lost
