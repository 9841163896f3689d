"""A time limit ends the optimize of a language model: what is not proven by then is not chosen, and is told."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from time import monotonic
from types import SimpleNamespace

import numpy as np
import pytest

from edgeopt.errors import EdgeoptError, Note
from edgeopt.executors.onnxruntime.decoder import Decoder
from edgeopt.measurement.generation import long_windows
from edgeopt.measurement.generation.answer_budget import AnswerBudget
from edgeopt.measurement.generation.perplexity import TextScore
from edgeopt.measurement.generation.sides.turns import PARTS, FormTurns
from edgeopt.measurement.statistics.ratio import Change, Ratio
from edgeopt.optimization.generation import contest, optimize, proof
from edgeopt.optimization.generation.choice import choose_form
from edgeopt.optimization.generation.contest import FormContest
from edgeopt.optimization.generation.optimize import optimize_language_model
from edgeopt.optimization.generation.options import LanguageOptions
from edgeopt.optimization.generation.result import BASELINE, LANGUAGE_RUN, LanguageForm
from edgeopt.optimization.generation.time_shares import TimeShare, TimeShares
from edgeopt.optimization.run import Silence
from edgeopt.runtime.bundle import read_bundle
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.system.processes import time_limit
from edgeopt.system.processes.time_limit import OutOfTime, limited, require_time, time_left_s

SHIPPED = Path(__file__).parents[3] / "models" / "tiny_lm"
RUN_S = 0.5
"""Seconds that one run of the decoder takes, by the clock of these tests."""
ANSWER_S = 4 * RUN_S
ORIGINAL = SimpleNamespace(origin=SimpleNamespace(entries={}))
PROCESS_S = 8 * ANSWER_S
"""A fresh process: four rounds of two models."""


class Clock:
    """Moved by runs of the decoder and by fresh processes alone; the models are real."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, run_s: float = RUN_S) -> None:
        self.now_s, run = monotonic(), Decoder.run

        def slow(decoder: Decoder, *given: object, **more: object) -> object:
            self.now_s += run_s
            return run(decoder, *given, **more)

        def fresh(*_: object) -> tuple[FormTurns, FormTurns]:
            if time_left_s() < PROCESS_S:
                self.now_s += max(time_left_s(), 0.0)
                raise OutOfTime
            self.now_s += PROCESS_S
            jitter = 1e5 * (self.now_s % 7)
            return FormTurns(np.full((3, 3), 4e9 + jitter)), FormTurns(np.full((3, 3), 2e9))

        monkeypatch.setattr(Decoder, "run", slow)
        for name, module in [*sys.modules.items()]:
            if name.startswith("edgeopt.") and getattr(module, "monotonic", None) is monotonic:
                monkeypatch.setattr(module, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(proof, "answer_fresh", fresh)
        monkeypatch.setattr(optimize, "FORMS", tuple(one for one in optimize.FORMS if one.name in ("w8a8", "w8")))


@pytest.mark.parametrize("limit_s", [20.0, 60.0, 240.0])
def test_a_model_of_seconds_an_answer_ends_in_time(limit_s, tmp_path, monkeypatch):
    text = tmp_path / "short.txt"
    text.write_text((SHIPPED / "held_out.txt").read_text("utf-8")[:12000], "utf-8")
    options = LanguageOptions(
        prompt_tokens=8, output_tokens=4, threads=1, seconds=5.0, eval=str(text), time_limit_s=limit_s
    )
    clock = Clock(monkeypatch)
    began_s = clock.now_s
    report = optimize_language_model("tiny_lm", target="cpu", out=tmp_path / "lm", options=options, listener=Silence())
    assert clock.now_s - began_s <= 1.1 * limit_s + 4 * ANSWER_S, "within a tenth, and a few answers of the model"
    assert read_bundle(report.folder).expected["form"] == report.chosen
    assert not report.was_cut
    assert report.exit_code == 0
    told = " ".join(note.detail for note in report.notes)
    written = (tmp_path / "lm" / "report.md").read_text("utf-8")
    if limit_s == 20.0:
        assert report.windows == 2, "of 10 s a half is over when the text is read"
        assert f"2 of {2 + report.left_windows} windows of 256 tokens judge" in told
        assert "2 windows of 256 tokens of short.txt" in written
        assert "not made, as no time was left to judge them: w8a8, w8" in told
        assert not [*(tmp_path / "lm" / "candidates").glob("*/model.onnx")], "nothing is made that is not judged"
        assert report.chosen == BASELINE
        assert "time limit reached before a form was proven faster: the bundle holds the original" in written
        assert "give --time-limit more" in written
    else:  # which form is chosen, if any, the machine decides
        assert report.chosen == BASELINE or report.best.windows == report.windows


@pytest.mark.parametrize(
    ("limit_s", "run_s", "prompt_tokens", "problem", "needed"),
    [
        (10.0, RUN_S, 8, r"opening the model and reading the texts took \d+ s", "--time-limit"),
        (55.0, 1.5, 400, r"reading a window of 404 tokens takes the original about 3 s", ""),
    ],
)
def test_a_limit_that_two_windows_do_not_fit_into_ends_in_a_line(
    limit_s, run_s, prompt_tokens, problem, needed, tmp_path, monkeypatch
):
    text = tmp_path / "short.txt"
    text.write_text((SHIPPED / "held_out.txt").read_text("utf-8"), "utf-8")
    before = tmp_path / "lm" / "bundle" / "manifest.json"
    before.parent.mkdir(parents=True)
    for file in (before, tmp_path / "lm" / LANGUAGE_RUN):
        file.write_text("{}", "utf-8")
    options = LanguageOptions(
        prompt_tokens=prompt_tokens, output_tokens=4, threads=1, seconds=5.0, eval=str(text), time_limit_s=limit_s
    )
    clock = Clock(monkeypatch, run_s)
    began_s = clock.now_s
    with pytest.raises(EdgeoptError) as refused:
        optimize_language_model("tiny_lm", target="cpu", out=tmp_path / "lm", options=options, listener=Silence())
    assert clock.now_s - began_s <= limit_s + 2 * run_s
    assert re.match(problem, refused.value.problem)
    assert f"too long for the time limit of {limit_s:.0f}s" in refused.value.problem
    assert (needed or "--prompt-tokens") in refused.value.remedy
    assert before.read_text("utf-8") == "{}", "what an earlier run left stays"


def test_as_many_long_windows_judge_as_fit(monkeypatch):
    clock = SimpleNamespace(now_s=0.0)
    monkeypatch.setattr(contest, "monotonic", lambda: clock.now_s)
    monkeypatch.setattr(time_limit, "monotonic", lambda: clock.now_s)

    def score(_: object, windows: list[int]) -> TextScore:
        require_time()
        clock.now_s += 20.0
        return TextScore((2.0,) * len(windows), (np.zeros(1, np.int64),) * len(windows))

    def judged(limit_s: float) -> FormContest:
        clock.now_s, shares = 0.0, TimeShares(limit_s, Silence(), began_s=0.0)
        with limited(shares.end_s(TimeShare.FORMS)):
            return FormContest(
                original=None,
                windows=[[0] * 4004] * 8,
                prompts=[[0] * 4000],
                asked=AnswerOptions(),
                threads=1,
                max_rise=0.02,
                seconds=0.0,
                parts=("answer",),
                listener=Silence(),
                score=score,
                judged_s=shares.end_s(TimeShare.JUDGED),
                fewer_s=shares.end_s(TimeShare.FEWER),
            )

    assert [len(judged(limit_s).windows) for limit_s in (120.0, 240.0, 400.0, 1600.0, 1e6)] == [2, 3, 5, 8, 8]
    assert judged(240.0).left_windows == 5
    entered = judged(240.0).entering_s([])
    assert entered == pytest.approx(3 * 20.0 + 4 * 1.25 * 4000 * 20.0 / 4004), "three windows, four prompts"
    with pytest.raises(OutOfTime) as over:
        judged(60.0)
    assert over.value.whole_s == 6 * 20.0
    assert clock.now_s == 20.0, "the second is not begun"


def test_a_long_window_that_does_not_end_in_time_is_left_at_its_pace(monkeypatch):
    clock = SimpleNamespace(now_s=0.0)
    for module in (long_windows, time_limit):
        monkeypatch.setattr(module, "monotonic", lambda: clock.now_s)

    class Decoder:
        def run(self, tokens: list[int]) -> np.ndarray:
            clock.now_s += 3.0
            return np.zeros((len(tokens), 4), np.float32)

    model = SimpleNamespace(decoder=lambda _: Decoder(), plan=SimpleNamespace(is_split=False))
    with limited(48.0):
        assert len(long_windows.score_long_text(model, [[1] * 4096]).losses) == 1
    assert clock.now_s == 48.0
    clock.now_s = 0.0
    with limited(40.0), pytest.raises(OutOfTime) as over:
        long_windows.score_long_text(model, [[1] * 4096])
    assert clock.now_s == 3.0, "a part of sixteen is enough"
    assert over.value.whole_s == 48.0


def forms(folder: Path, verdict: Change = Change.FASTER) -> list[LanguageForm]:
    ratio = Ratio(2.0, 1.9, 2.1, verdict)
    return [
        LanguageForm(name, "", str(folder / name), 1, 9.0, times_ms=dict.fromkeys(PARTS, ms), speed=speed)
        for name, ms, speed in ((BASELINE, 4000.0, {}), ("w8", 2000.0, dict.fromkeys(PARTS, ratio)))
    ]


@pytest.mark.parametrize(("limit_s", "processes"), [(1.0, 0), (40.0, 2), (1000.0, 6)])
def test_a_proof_has_as_many_processes_as_fit(limit_s, processes, tmp_path, monkeypatch):
    clock = Clock(monkeypatch)
    monkeypatch.setattr(proof, "_process_s", lambda *_: PROCESS_S)
    shares = TimeShares(limit_s, Silence(), began_s=clock.now_s)
    asked_of = SimpleNamespace(prompts=[[1]], asked=None, threads=1, original=ORIGINAL, clients=1)
    found = proof.prove(forms(tmp_path), asked_of, 6, None, shares)
    assert clock.now_s - shares.began_s <= limit_s
    told = proof.told_of_end(found, 6, None, shares)
    if processes == 0:
        assert choose_form(found) == BASELINE
        assert found[1].speed["answer"].verdict is Change.UNCONFIRMED
        assert "before a form was proven faster" in told.detail
    else:
        assert choose_form(found) == "w8"
        assert found[1].speed["answer"].processes == processes
        assert (told is None) == (processes == 6)
        assert told is None or told.detail == "time limit reached: w8 is proven faster by 2 of 6 fresh processes"


@pytest.mark.parametrize("keeps", [False, True], ids=["", "forms take what proofs should not need"])
@pytest.mark.parametrize("limit_s", [1.0, 40.0, 100.0])
def test_the_limit_that_is_told_leaves_time_for_all_processes(limit_s, keeps, tmp_path, monkeypatch):
    clock = Clock(monkeypatch)
    monkeypatch.setattr(proof, "_process_s", lambda *_: PROCESS_S)
    asked_of = SimpleNamespace(prompts=[[1]], asked=None, threads=1, original=ORIGINAL, clients=1)

    def told_under(seconds: float) -> Note | None:
        shares = TimeShares(seconds, Silence(), began_s=clock.now_s)
        if keeps:
            shares.keep(10.0, 2.0)
        clock.now_s = shares.end_s(TimeShare.ROUNDS)
        return proof.told_of_end(proof.prove(forms(tmp_path), asked_of, 6, None, shares), 6, None, shares)

    enough = told_under(limit_s).hint.removeprefix("give --time-limit ").removesuffix("s or more")
    assert told_under(float(enough)) is None


@pytest.mark.parametrize("is_late", [False, True])
def test_a_form_whose_rounds_were_cut_short_is_proven_by_processes_all_the_same(is_late, tmp_path, monkeypatch):
    clock = Clock(monkeypatch)
    shares = TimeShares(1000.0, Silence(), began_s=clock.now_s, is_late=is_late)
    asked_of = SimpleNamespace(prompts=[[1]], asked=None, threads=1, original=ORIGINAL, clients=1)
    found = proof.prove(forms(tmp_path, Change.INCONCLUSIVE), asked_of, 6, None, shares)
    assert choose_form(found) == ("w8" if is_late else BASELINE)


def test_parts_end_in_their_order_and_without_a_limit_none_does():
    shares = TimeShares(100.0, Silence(), began_s=0.0)
    ends_s = [10.0, 25.0, 40.0, pytest.approx(55.0), 65.0, 75.0, 97.0, 105.0]
    assert [shares.end_s(one) for one in TimeShare] == ends_s
    assert all(TimeShares(None, Silence()).end_s(one) == float("inf") for one in TimeShare)
    kept = (
        (5.0, 20.0, [67.0, 77.0]),
        (5.0, 2.0, [71.0, 81.0]),
        (60.0, 30.0, [pytest.approx(55.0), 67.0]),
    )
    for rounds_s, proofs_s, wanted_s in kept:
        shares.keep(rounds_s, proofs_s)
        assert [shares.end_s(one) for one in (TimeShare.FORMS, TimeShare.ROUNDS)] == wanted_s
    others = [one for one in TimeShare if one not in (TimeShare.FORMS, TimeShare.ROUNDS)]
    assert [shares.end_s(one) for one in others] == [10.0, 25.0, 40.0, 75.0, 97.0, 105.0]
    late = TimeShares(1.0, Silence(), began_s=monotonic() - 10)
    with late.part(TimeShare.FORMS, "no form was made"):
        require_time()
    assert late.is_late
    assert [one.detail for one in late.notes] == ["time limit reached: no form was made"]


def test_a_budget_that_the_time_limit_leaves_open_is_told(tmp_path, monkeypatch):
    text = tmp_path / "short.txt"
    text.write_text((SHIPPED / "held_out.txt").read_text("utf-8")[:6500], "utf-8")
    clock = Clock(monkeypatch)
    options = LanguageOptions(
        prompt_tokens=8,
        output_tokens=4,
        threads=1,
        seconds=5.0,
        eval=str(text),
        time_limit_s=20.0,
        budget=AnswerBudget({"TTFT": 1e9}),
    )
    began_s = clock.now_s
    report = optimize_language_model("tiny_lm", target="cpu", out=tmp_path / "lm", options=options, listener=Silence())
    assert clock.now_s - began_s <= 1.1 * 20.0 + 4 * ANSWER_S
    assert report.exit_code == 3
    assert any(one.detail == "time limit reached: the budget is not decided" for one in report.notes)


@pytest.mark.parametrize(
    ("windows", "limit_s", "forms_s"),
    [(18, 720.0, 477.4), (48, 720.0, 396.0), (18, 100.0, 55.0)],
    ids=["few windows", "many, by which the fastest are judged still", "a limit that proofs take whole"],
)
def test_forms_have_the_time_that_proofs_and_judging_leave(windows, limit_s, forms_s):
    answers = list[object]()

    def times(entrants: object, *, is_hurried: bool) -> SimpleNamespace:
        assert is_hurried
        answers.append(entrants)
        return SimpleNamespace(median_ms=lambda part: {"answer": 1500.0, "TPOT": 15.0}[part])

    asked_of = SimpleNamespace(
        seconds=20.0, token_s=0.001, window_s=0.25, windows=[[0] * 256] * windows, times_of_original=times
    )
    options = LanguageOptions(prompt_tokens=128, output_tokens=64)
    shares = TimeShares(limit_s, Silence(), began_s=monotonic())
    optimize._keep_time(asked_of, options, shares, weights_bytes=600_000_000)
    assert shares.end_s(TimeShare.FORMS) - shares.began_s == pytest.approx(forms_s, abs=1.0)
    assert bool(answers) == (limit_s > 100)
    judged_s = 3 * max(windows - 12, 0) * (0.25 + 128 * 0.015)
    between_s = shares.end_s(TimeShare.ROUNDS) - shares.end_s(TimeShare.FORMS)
    assert between_s >= min(20.0 + judged_s, 0.1 * limit_s)
