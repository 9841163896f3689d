"""A time limit ends the optimize of a language model: what is not proven by then is not chosen, and is told."""

from __future__ import annotations

import sys
from pathlib import Path
from time import monotonic
from types import SimpleNamespace

import numpy as np
import pytest

from edgeopt.executors.onnxruntime.decoder import Decoder
from edgeopt.measurement.generation.answer_budget import AnswerBudget
from edgeopt.measurement.generation.sides.turns import PARTS, FormTurns
from edgeopt.measurement.statistics.ratio import Change, Ratio
from edgeopt.optimization.generation import optimize, proof
from edgeopt.optimization.generation.choice import choose_form
from edgeopt.optimization.generation.contest import LEAST_WINDOWS
from edgeopt.optimization.generation.optimize import optimize_language_model
from edgeopt.optimization.generation.options import LanguageOptions
from edgeopt.optimization.generation.result import BASELINE, LanguageForm
from edgeopt.optimization.generation.time_shares import TimeShare, TimeShares
from edgeopt.optimization.run import Silence
from edgeopt.runtime.bundle import read_bundle
from edgeopt.system.processes.time_limit import OutOfTime, require_time, time_left_s

SHIPPED = Path(__file__).parents[3] / "models" / "tiny_lm"
RUN_S = 0.5
"""What one run of the decoder takes, by the clock of these tests."""
ANSWER_S = 4 * RUN_S
ORIGINAL = SimpleNamespace(origin=SimpleNamespace(entries={}))
PROCESS_S = 8 * ANSWER_S
"""A fresh process: four rounds of two models."""


class Clock:
    """Moved by runs of the decoder and by fresh processes alone; the models are real."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, run = monotonic(), Decoder.run

        def slow(decoder: Decoder, *given: object, **more: object) -> object:
            self.now_s += RUN_S
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


@pytest.mark.parametrize("limit_s", [10.0, 60.0, 240.0])
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
    if limit_s == 10.0:
        assert report.windows == LEAST_WINDOWS
        assert f"{LEAST_WINDOWS} of " in told
        assert "not made or not judged: " in told
        assert report.chosen == BASELINE
        assert "time limit reached before a form was proven faster: the bundle holds the original" in written
        assert "give --time-limit more" in written
    else:  # which form is chosen, if any, the machine decides
        assert report.chosen == BASELINE or report.best.windows == report.windows


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
    contest = SimpleNamespace(prompts=[[1]], asked=None, threads=1, original=ORIGINAL)
    found = proof.prove(forms(tmp_path), contest, 6, None, shares)
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


@pytest.mark.parametrize("is_late", [False, True])
def test_a_form_whose_rounds_were_cut_short_is_proven_by_processes_all_the_same(is_late, tmp_path, monkeypatch):
    clock = Clock(monkeypatch)
    shares = TimeShares(1000.0, Silence(), began_s=clock.now_s, is_late=is_late)
    contest = SimpleNamespace(prompts=[[1]], asked=None, threads=1, original=ORIGINAL)
    found = proof.prove(forms(tmp_path, Change.INCONCLUSIVE), contest, 6, None, shares)
    assert choose_form(found) == ("w8" if is_late else BASELINE)


def test_parts_end_in_their_order_and_without_a_limit_none_does():
    shares = TimeShares(100.0, Silence(), began_s=0.0)
    assert [shares.end_s(one) for one in TimeShare] == [10.0, 40.0, pytest.approx(55.0), 65.0, 75.0, 97.0, 105.0]
    assert all(TimeShares(None, Silence()).end_s(one) == float("inf") for one in TimeShare)
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
