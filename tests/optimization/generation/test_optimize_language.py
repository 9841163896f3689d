"""A language model goes through optimize: forms, what they lose and gain, and one that is written."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from edgeopt.cli import cli
from edgeopt.errors import EdgeoptError, InvalidFileError, UnsupportedError
from edgeopt.executors.onnxruntime.decoder import takes_last
from edgeopt.executors.onnxruntime.sums import Sums
from edgeopt.graph.model import load_model
from edgeopt.measurement.generation.answer_budget import AnswerBudget, parse_answer_budget
from edgeopt.measurement.generation.long_windows import score_long_text
from edgeopt.measurement.generation.perplexity import (
    Rise,
    TextScore,
    agreement_between,
    rise_between,
    score_text,
    windows_of,
)
from edgeopt.measurement.generation.sides.turns import FormTurns, ratio_between
from edgeopt.measurement.statistics.ratio import Change, Ratio
from edgeopt.optimization.folder.workspace import lock_run
from edgeopt.optimization.generation import optimize, writer_run
from edgeopt.optimization.generation.choice import choose_form
from edgeopt.optimization.generation.contest import Entrant, _is_slower
from edgeopt.optimization.generation.forms.kinds import CHUNK_TOKENS, FORMS, SPLIT_CHUNK_TOKENS
from edgeopt.optimization.generation.optimize import optimize_language_model
from edgeopt.optimization.generation.options import LanguageOptions
from edgeopt.optimization.generation.result import BASELINE, STORED, LanguageForm, LanguageReport
from edgeopt.optimization.generation.summary import summarize_language
from edgeopt.optimization.generation.texts import read_texts
from edgeopt.optimization.report.result import read_report
from edgeopt.optimization.run import Silence
from edgeopt.recipes.recipe import read_recipe
from edgeopt.report.formats import Paper, render
from edgeopt.runtime.bundle import read_bundle
from edgeopt.runtime.bundles.targets import measured_on, this_machine
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.opening import open_language_model

BRIEF = LanguageOptions(prompt_tokens=8, output_tokens=4, threads=1, seconds=0.0, processes=2)
SHIPPED = Path(__file__).parents[3] / "models" / "tiny_lm"
LEFT_OUT = ("+parts", "+parts512", "+short")
"""Forms of wider layers and larger heads than `tiny_lm` has."""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("out") / "lm"
    return optimize_language_model("tiny_lm", target="cpu", out=folder, options=BRIEF, listener=Silence())


def test_a_stored_report_is_shown_again_with_its_exit_code(report):
    assert read_report(report.folder, LanguageReport) == report
    shown = CliRunner().invoke(cli, ["report", str(report.folder)])
    assert shown.exit_code == report.exit_code
    assert report.best.name in shown.stdout
    together = CliRunner().invoke(cli, ["report", str(report.folder), str(report.folder)])
    assert "the report of a language model is shown alone" in together.stderr


@pytest.mark.parametrize(
    ("spoil", "lacks"),
    [
        (lambda values: values.update(chosen="w2"), "none of the candidates"),
        (lambda values: values.update(candidates=[]), "none of the candidates"),
        (lambda values: values["candidates"][1].update(times_ms={"TTFT": 1.0}), "no time of answer of the form"),
        (lambda values: values["candidates"][1].update(speed={}, times_ms={}, rise=None), "no figures of the form"),
    ],
    ids=["chosen", "candidates", "times", "figures"],
)
def test_a_damaged_report_is_one_line(report, tmp_path, spoil, lacks):
    values = json.loads((report.folder / "report.json").read_text("utf-8"))
    values["chosen"] = values["candidates"][1]["name"]
    spoil(values)
    (tmp_path / "report.json").write_text(json.dumps(values), "utf-8")
    shown = CliRunner().invoke(cli, ["report", str(tmp_path)])
    assert shown.exit_code == 1
    assert lacks in " ".join(shown.stderr.split())


def test_forms_of_eight_bits_lose_next_to_nothing_and_four_bits_more(report):
    by_name = {one.name: one for one in report.candidates}
    small = [name for name in by_name if name.endswith("+cache8")]
    split = [one.name for one in report.candidates if one.prompts_by and one.name not in small]
    assert list(by_name) == [BASELINE, *(one.name for one in FORMS if not one.name.endswith(LEFT_OUT)), *split, *small]
    assert any("w8a8+parts: no layer has more than 2048 neurons" in note.detail for note in report.notes)
    assert any("w8a8+parts512: no layer has more than 512 neurons" in note.detail for note in report.notes)
    assert all(
        abs(by_name[name].rise.value - by_name[name.removesuffix("+cache8")].rise.value) < 0.01 for name in small
    )
    assert {"w8a8", "w8", "w4", "w4+head", "w4+long"} <= set(by_name)
    assert by_name[BASELINE].rise is None
    assert abs(by_name["w8"].rise.value) < 0.004
    assert abs(by_name["w8a8"].rise.value) < 0.01
    assert by_name["w8"].rise.value < by_name["w4+head"].rise.value + 0.005 < by_name["w4"].rise.value + 0.015 < 0.06
    assert 0.8 < by_name["w4"].agreement < by_name["w4+head"].agreement + 0.01 < by_name["w8"].agreement + 0.01
    assert by_name["w4"].size_bytes < by_name["w8"].size_bytes < by_name[BASELINE].size_bytes / 2


def test_the_most_sensitive_matrices_in_eight_bits_keep_more(report):
    by_name = {one.name: one for one in report.candidates}
    mixed, long = by_name["w4+mixed"], by_name["w4+long"]
    assert mixed.agreement > long.agreement
    assert mixed.rise.value < long.rise.value + 0.003
    assert long.size_bytes < mixed.size_bytes < by_name["w8"].size_bytes


def test_four_bits_are_below_a_megabyte(report):
    sizes = {
        one.name: one.size_bytes for one in report.candidates if one.precision == "w4"
    }  # of two graphs it is that of both
    assert len(sizes) >= 3
    assert max(sizes.values()) < 1_000_000


def test_what_loses_too_much_is_refused(report):
    for one in report.candidates[1:]:
        assert bool(one.out) >= bool(one.unfit)
        assert not one.unfit or one.rise.value > 0.02 or one.rise.low > 0.02
        assert one.windows == report.windows or one.out


def test_the_written_bundle_answers_as_the_chosen_form(report):
    assert {"bundle", "candidates", "report.json", "report.html"} <= {one.name for one in report.folder.iterdir()}
    bundle = read_bundle(report.folder)
    assert report.bundle == bundle.folder
    assert {one.name for one in bundle.folder.iterdir()} == {
        "manifest.json",
        "model.onnx",
        "selftest.npz",
        "tokenizer.json",
    }
    assert bundle.artefacts[0].precision == report.best.precision
    assert bundle.expected["perplexity"] == report.best.perplexity
    assert measured_on(bundle.expected) == this_machine()
    assert bundle.expected["original"] == load_model(Path(report.candidates[0].file)).fingerprint
    proof, rise = bundle.expected["proof"], report.best.rise
    assert (proof is None) is (rise is None), "the original, which a busy machine may choose, needs no proof"
    if proof is not None and rise is not None:
        assert (proof["word"], proof["rise_most"]) == (report.best.word, rise.high)
    answers = []
    for path in (report.folder, bundle.folder, bundle.folder / "model.onnx", Path(report.best.file)):
        model, recipe = open_language_model(path, 1)
        with model:
            assert recipe.generation.context == model.context
            answers.append(model.generate("import os", AnswerOptions(most_tokens=8)).text())
    assert answers[0]
    assert len(set(answers)) == 1
    stored = json.loads((report.folder / "report.json").read_text("utf-8"))
    assert stored["chosen"] == report.chosen


def test_attention_of_prompts_is_computed_in_the_bundle_as_it_was_timed(report):
    told = {one.name: read_recipe(Path(one.file).parent / "recipe.toml").generation for one in report.candidates[1:]}
    floats = {one.flash_attention for name, one in told.items() if not name.endswith("+cache8")}
    assert len(floats) == 1, "they have the same attention"
    expected = True if report.chosen == BASELINE else told[report.chosen].flash_attention
    assert read_bundle(report.folder).recipe.generation.flash_attention == expected


def test_forms_run_prompts_in_parts_and_the_last_layer_for_the_last_token(report):
    for one in report.candidates[1:]:
        model, recipe = open_language_model(Path(one.file), 1)
        with model:
            assert model.chunk == recipe.generation.chunk == (SPLIT_CHUNK_TOKENS if one.prompts_by else CHUNK_TOKENS)
            assert takes_last(model.session.engine)


@pytest.mark.parametrize("name", ["w4", "w4+mixed"])
def test_guesses_chunks_and_rewinding_change_no_token_of_blocks_of_four_bits(report, name):
    file = next(Path(one.file) for one in report.candidates if one.name == name)
    model, _ = open_language_model(file, 1)

    def tokens(**asked: object) -> list[int]:
        return [one.token for one in model.generate("def read(", AnswerOptions(96, ends=False, **asked))]

    with model:
        if model.sums is Sums.APART:
            pytest.skip("this processor's kernels sum pairs otherwise too")
        plain = tokens()
        for chunk in (1, 2, 3):
            model.forget()
            assert tokens(chunk_tokens=chunk) == plain
        again = model.generate(
            "def read(", AnswerOptions(96, ends=False)
        )  # its last prompt token alone, on the cache kept
        assert [one.token for one in again] == plain
        assert again.account.reused_tokens == again.account.prompt_tokens - 1
        exact = tokens(exact=True)
        for guesses in (1, 4):
            model.forget()
            assert tokens(guesses=guesses, exact=True) == exact


def test_two_runs_make_the_same_bytes_and_where_nothing_is_allowed_the_original_stays(report, tmp_path):
    options = replace(BRIEF, max_drop=-1.0)
    again = optimize_language_model("tiny_lm", target="cpu", out=tmp_path / "lm", options=options, listener=Silence())
    for one, other in zip(
        report.candidates[1:], again.candidates[1:], strict=False
    ):  # the last one's base is found by speed
        is_same = Path(one.file).read_bytes() == Path(other.file).read_bytes()
        assert is_same or one.name == "w4+mixed", "which matrices it has in 8 bits follows what is allowed"
        assert other.unfit
    assert again.chosen == BASELINE
    assert read_bundle(again.folder).artefacts[0].precision == "fp32"
    assert read_bundle(again.folder).model.read_bytes() == load_model(SHIPPED / "model.onnx").data


def only(monkeypatch: pytest.MonkeyPatch, *forms: str) -> None:
    """Let `optimize` make these forms alone, where a test looks at no other."""
    monkeypatch.setattr(optimize, "FORMS", tuple(form for form in FORMS if form.name in forms))


def test_a_model_in_blocks_keeps_them_in_one_form_and_is_rounded_again_in_others(report, tmp_path, monkeypatch):
    source = next(form.file for form in report.candidates if form.name == "w4+head")
    only(monkeypatch, "w8a8", "w8", "w4")
    again = optimize_language_model(source, target="cpu", out=tmp_path / "lm", options=BRIEF, listener=Silence())
    by_name = {form.name: form for form in again.candidates}
    assert list(by_name)[:4] == [STORED, "w4+stored", "w8a8", "w8"]
    assert (by_name[STORED].precision, by_name[STORED].rise) == ("w4", None)
    assert abs(by_name["w4+stored"].rise.value) < 0.001  # this one rounded what it multiplies before, too
    assert abs(by_name["w4+stored"].size_bytes - by_name[STORED].size_bytes) < 2000
    assert by_name["w4"].rise.value > by_name["w8"].rise.value
    assert any("most in 4 bits: w4+stored keeps them" in note.detail for note in again.notes)
    stored = {constant.name: constant for constant in load_model(Path(source)).proto.graph.initializer}
    kept = {constant.name: constant for constant in load_model(Path(by_name["w4+stored"].file)).proto.graph.initializer}
    assert all(kept[name] == constant for name, constant in stored.items())
    assert read_bundle(again.folder).artefacts[0].precision.startswith("w")


def form(name: str, speedup: float, verdict: Change, unfit: str = "") -> LanguageForm:
    speed = Ratio(speedup, 0.9 * speedup, 1.1 * speedup, verdict)
    return LanguageForm(name, "", "", 1, 20.0, None, 1.0, {"answer": 1.0}, {"answer": speed}, unfit)


def test_only_what_is_proven_faster_and_fits_is_chosen():
    base = LanguageForm(BASELINE, "", "", 1, 20.0)
    maybe, sure = form("maybe", 3.0, Change.INCONCLUSIVE), form("sure", 1.4, Change.FASTER)
    assert choose_form([base, maybe, sure, form("lossy", 5.0, Change.FASTER, "too much")]) == "sure"
    assert choose_form([base, maybe, form("slow", 0.7, Change.SLOWER)]) == BASELINE


def judged(name: str, speedup: float, value: float, half: float) -> LanguageForm:
    rise = Rise(value, value - half, value + half)
    fast = form(name, speedup, Change.FASTER)
    parts = dict.fromkeys(("answer", "TTFT", "TPOT"), fast.speed["answer"])
    return replace(fast, rise=rise, word=rise.word(0.02), speed=parts, times_ms=dict.fromkeys(parts, 1.0))


def test_the_fastest_that_is_kept_is_chosen_else_the_safest_that_is_open():
    base = LanguageForm(BASELINE, "", "", 1, 20.0)
    kept, lost = judged("kept", 1.2, 0.005, 0.01), judged("lost", 3.0, 0.06, 0.02)
    lucky, safer = judged("lucky", 2.0, 0.015, 0.02), judged("safer", 1.5, 0.01, 0.015)
    assert [one.word for one in (kept, lost, lucky, safer)] == ["KEPT", "LOST", "NOT DECIDED", "NOT DECIDED"]
    assert choose_form([base, lucky, kept, lost]) == "kept"
    assert choose_form([base, lucky, safer, lost]) == "safer"
    assert choose_form([base, lost]) == BASELINE


def test_a_cache_in_8_bits_is_chosen_in_place_of_the_form_than_which_it_is_no_slower():
    base, kept = LanguageForm(BASELINE, "", "", 1, 20.0), judged("kept", 2.0, 0.005, 0.01)
    small = replace(judged("kept+cache8", 1.99, 0.006, 0.01), replaces="kept")
    assert choose_form([base, kept, small]) == "kept+cache8"
    assert choose_form([base, kept, replace(small, replaces="")]) == "kept"
    open_still = judged("kept+cache8", 1.99, 0.015, 0.01)
    assert choose_form([base, kept, replace(open_still, replaces="kept")]) == "kept"
    faster = judged("other", 3.0, 0.005, 0.01)
    assert choose_form([base, kept, small, faster]) == "other"


def test_accuracy_that_was_asked_for_and_is_not_decided_is_no_success(report):
    lucky = judged("lucky", 2.0, 0.015, 0.02)
    undecided = replace(report, candidates=(report.candidates[0], lucky), chosen="lucky", max_drop=0.02, windows=20)
    assert undecided.exit_code == 0
    asked = replace(undecided, accuracy_asked=True)
    assert asked.exit_code == 3
    shown = render(summarize_language(asked), "terminal", Paper(80))
    assert "NOT DECIDED: perplexity +1.5% [-0.5%, +3.5%], 2.0% allowed" in " ".join(shown.split())
    assert "--max-drop 0.035 is what this proves" in shown
    assert "lucky gives whole answers 2.00x as fast as the original" in shown
    kept = replace(asked, candidates=(report.candidates[0], judged("kept", 1.2, 0.005, 0.01)), chosen="kept")
    assert kept.exit_code == 0


def test_words_that_are_not_decided_are_shown_and_weigh_in_the_choice(report):
    heard = replace(judged("heard", 2.0, 0.005, 0.005), word="NOT DECIDED", words=Rise(0.009, -0.01, 0.06))
    shown = replace(report, candidates=(report.candidates[0], heard), chosen="heard", max_drop=0.02, windows=20)
    text = " ".join(render(summarize_language(shown), "terminal", Paper(80)).split())
    assert "word error rate +0.9 [-1.0, +6.0] points, 2.0% allowed" in text
    assert "--max-drop 0.06 is what this proves" in text
    read = replace(heard, name="read", words=Rise(0.0, -0.03, 0.03), rise=Rise(0.01, 0.0, 0.02))
    assert choose_form([report.candidates[0], heard, read]) == "read"


def test_a_form_that_loses_more_than_is_allowed_is_seldom_kept():
    """Windows of 24 texts, a rise of a hair more than 2 %: KEPT is wrong, in 2.5 % of cases and a little more."""
    chance = np.random.default_rng(5)
    wrong = 0
    for _ in range(400):
        before = chance.normal(2.5, 0.3, 24)
        after = before + np.log1p(0.0201) + chance.normal(0, 0.02, 24)
        wrong += rise_between(TextScore(tuple(before), ()), TextScore(tuple(after), ())).word(0.02) == "KEPT"
    assert wrong <= 20


def test_what_keeps_the_budget_comes_before_what_is_faster():
    def one(name: str, ttft: float, tpot: float, **verdicts: Change) -> LanguageForm:
        times = {"TTFT": ttft, "TPOT": tpot, "answer": ttft + 63 * tpot}
        speed = {}
        if name != BASELINE:
            ratios = {"TTFT": 100 / ttft, "TPOT": 10 / tpot, "answer": 730 / times["answer"]}
            words = {part: verdicts.get(part, Change.INCONCLUSIVE) for part in ratios}
            speed = {part: Ratio(value, value, value, words[part]) for part, value in ratios.items()}
        return LanguageForm(name, "", "", 1, 20.0, None, 1.0, times, speed)

    both = {"answer": Change.FASTER, "TPOT": Change.FASTER}
    base, w4 = one(BASELINE, 100, 10), one("w4", 90, 4, **both)
    w8a8 = one("w8a8", 40, 10, TTFT=Change.FASTER)
    forms = [base, w4, w8a8]
    assert choose_form(forms) == "w4"
    assert choose_form(forms, AnswerBudget({"TTFT": 50})) == "w8a8"  # its answers are not proven, its TTFT is
    assert choose_form(forms, AnswerBudget({"TTFT": 95, "TPOT": 5})) == "w4"
    assert choose_form(forms, AnswerBudget({"TTFT": 50, "TPOT": 5})) == "w4"  # none keeps it: the fastest
    assert choose_form([base, w8a8], AnswerBudget({"TTFT": 200, "TPOT": 20})) == BASELINE
    assert choose_form([base, one("lucky", 40, 9)], AnswerBudget({"TTFT": 50})) == BASELINE


def test_a_budget_is_judged_on_answers_of_the_chosen_form(tmp_path, monkeypatch):
    wide = parse_answer_budget("ttft:1h,tpot:1h")
    options = replace(BRIEF, budget=replace(wide, limits_ms={**wide.limits_ms, "TPOT": 1e-6}), seconds=1.0)
    only(monkeypatch, "w8")
    monkeypatch.setattr(writer_run, "BUDGET_SECONDS", 60)  # however slow the machine: it ends when all is decided
    found = optimize_language_model("tiny_lm", target="cpu", out=tmp_path / "lm", options=options, listener=Silence())
    assert found.exit_code == 2
    assert [str(one.counted.verdict) for one in found.judged.limits] == ["pass", "fail"]
    assert read_report(tmp_path / "lm", LanguageReport) == found
    text = (tmp_path / "lm" / "report.md").read_text("utf-8")
    assert "missed: TPOT 0.000001 ms; met: TTFT 3600000 ms" in text
    assert "TTFT met: p50" in text


def test_a_rise_is_paired_by_window():
    chance = np.random.default_rng(0)
    losses = chance.uniform(2, 4, 40)
    tokens = tuple(np.zeros(3, np.int64) for _ in losses)
    before = TextScore(tuple(losses), tokens)
    rise = rise_between(before, TextScore(tuple(losses + 0.01), tokens))
    assert rise.value == pytest.approx(np.expm1(0.01))
    assert rise.low == pytest.approx(rise.high)  # the windows differ by 2 nats, the two models by 0.01 in each
    assert rise_between(before, TextScore((*losses[1:], float("nan")), tokens)).value == float("inf")
    assert agreement_between(before, before) == 1.0


def test_windows_lie_side_by_side():
    assert windows_of(list(range(600)), 1024) == [list(range(256)), list(range(256, 512))]
    assert len(windows_of(list(range(100_000)), 1024)) == 48
    assert [len(one) for one in windows_of(list(range(100)), 32)] == [32] * 3


@pytest.mark.parametrize(("length", "windows"), [(192, 48), (1024, 12), (4096, 8), (8192, 8)])
def test_windows_as_long_as_prompt_and_answer_are_fewer(length, windows):
    assert [len(one) for one in windows_of(list(range(100_000)), 8192, length)] == [length] * windows


def test_long_windows_are_scored_part_by_part_as_at_once():
    model, _ = open_language_model(SHIPPED / "model.onnx", 1)
    with model:
        tokens = model.tokenizer.encode((SHIPPED / "held_out.txt").read_text("utf-8"))
        windows = [tokens[:600], tokens[600:1113]]  # the last part of the second is one token, which predicts nothing
        whole, parts = score_text(model, windows), score_long_text(model, windows)
    np.testing.assert_allclose(parts.losses, whole.losses, rtol=1e-4)
    assert [len(rows) for rows in parts.likeliest] == [len(window) for window in windows]
    assert [len(nats) for nats in parts.nats] == [len(window) - 1 for window in windows]
    assert agreement_between(whole, parts) > 0.99


def test_the_text_judges_at_the_lengths_asked_for_as_far_as_it_reaches(tmp_path):
    text = tmp_path / "text.txt"
    whole = (SHIPPED / "held_out.txt").read_text("utf-8")
    text.write_text(whole, "utf-8")
    model, recipe = open_language_model(SHIPPED / "model.onnx", 1)
    with model:
        short, long = (read_texts(recipe, model, str(text), "", length) for length in (192, 700))
        own = read_texts(recipe, model, "", "", 700)
        text.write_text(whole[: len(whole) // 3], "utf-8")
        little = read_texts(recipe, model, str(text), "", 900)
    assert {len(window) for window in short.windows} == {256}
    assert {len(window) for window in long.windows} == {len(own.windows[0])} | {700} == {700}
    assert short.short is long.short is own.short is None
    joined = [*own.calibration[-1], *own.windows[0]]
    assert len(own.calibration[-1]) == 256
    assert len(joined) == 956
    assert 256 < len(little.windows[0]) < 900
    assert len(little.windows) >= 6
    assert little.short.detail.startswith(
        f"forms are judged by windows of {len(little.windows[0])} tokens, not of the 900"
    )
    assert "--eval with a text of 5,400 tokens" in little.short.hint


def test_a_ratio_of_turns_is_of_the_part_asked_for():
    base = np.tile([100.0, 40.0, 10.0], (10, 1)) * 1e6
    other = base / np.array([2.0, 0.5, 4.0])
    ratios = {
        part: ratio_between(FormTurns(base), FormTurns(other), part).speedup for part in ("answer", "TTFT", "TPOT")
    }
    assert ratios == pytest.approx({"answer": 2.0, "TTFT": 0.5, "TPOT": 4.0})
    assert FormTurns(base).median_ms("TTFT") == 40.0


def test_a_model_without_a_text_needs_one(tmp_path):
    for name in ("model.onnx", "tokenizer.json", "recipe.toml"):
        shutil.copyfile(SHIPPED / name, tmp_path / name)
    recipe = (tmp_path / "recipe.toml").read_text("utf-8").replace('calib = "held_out.txt"\n', "")
    (tmp_path / "recipe.toml").write_text(recipe, "utf-8")
    with pytest.raises(EdgeoptError, match="no text judges"):
        optimize_language_model(str(tmp_path), target="cpu", out=tmp_path / "o", options=BRIEF, listener=Silence())
    short = tmp_path / "short.txt"
    short.write_text("import os\n", "utf-8")
    options = replace(BRIEF, eval=str(short))
    with pytest.raises(EdgeoptError, match="tokens: 1 window of"):
        optimize_language_model(str(tmp_path), target="cpu", out=tmp_path / "o", options=options, listener=Silence())


def test_one_text_does_not_calibrate_and_judge(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text((SHIPPED / "held_out.txt").read_text("utf-8"), "utf-8")
    model, recipe = open_language_model(SHIPPED / "model.onnx", 1)
    with model:
        with pytest.raises(EdgeoptError, match="to calibrate and to judge"):
            read_texts(recipe, model, str(text), str(text))
        own, other = read_texts(recipe, model, "", ""), read_texts(recipe, model, str(text), "")
    assert (other.judging, other.calibrating) == ("text.txt", "held_out.txt")
    assert own.calibration == other.windows[: len(own.calibration)]
    assert own.windows == other.windows[len(own.calibration) :]
    assert len(own.windows) > len(own.calibration) > 5


def test_who_is_proven_slower_goes_out():
    before = np.tile([100.0, 40.0, 10.0], (6, 1)) * 1e6 * np.linspace(1, 3, 6)[:, None]  # the machine gets slower
    fast, slow, close = (Entrant(name, "", "", Path()) for name in ("fast", "slow", "close"))
    for one, speed in ((fast, 3.0), (slow, 2.0), (close, 2.99)):
        one.turns = FormTurns(before), FormTurns(before / speed)
    assert _is_slower(slow, fast, "answer")
    assert not _is_slower(close, fast, "answer")
    assert not _is_slower(fast, slow, "answer")


def test_what_does_not_fit_is_refused_before_work(tmp_path):
    with pytest.raises(UnsupportedError, match="on a processor so far"):
        optimize_language_model("tiny_lm", target="nvidia-cuda", out=tmp_path / "o", options=BRIEF, listener=Silence())
    (tmp_path / "mine.txt").write_text("keep", "utf-8")
    with pytest.raises(InvalidFileError, match="holds something else"):
        optimize_language_model("tiny_lm", target="cpu", out=tmp_path, options=BRIEF, listener=Silence())
    with lock_run(tmp_path / "held"), pytest.raises(EdgeoptError, match="another run writes into"):
        optimize_language_model("tiny_lm", target="cpu", out=tmp_path / "held", options=BRIEF, listener=Silence())
    done = CliRunner().invoke(cli, ["optimize", "tiny_lm", "-t", "cpu", "--prune", "off"])
    assert "--prune is for a single model of frames or a pipeline" in done.output
    done = CliRunner().invoke(cli, ["optimize", "digits_detector", "-t", "cpu", "--prompt-tokens", "9"])
    assert "--prompt-tokens is for a language model, and digits_detector is a single model of frames" in done.output


def test_lengths_hold_what_begins_every_text_and_may_fill_the_context(tmp_path, monkeypatch):
    only(monkeypatch, "w8")
    options = replace(BRIEF, prompt_tokens=1016, output_tokens=8)
    found = optimize_language_model("tiny_lm", target="cpu", out=tmp_path / "lm", options=options, listener=Silence())
    base = found.candidates[0]
    assert base.name == BASELINE
    assert base.times_ms["TPOT"] > 0
    assert "error" not in found.guessing.told if found.guessing else True
    with open_language_model(tmp_path / "lm" / "bundle", 1)[0] as opened:
        asked = AnswerOptions(8, guesses=0, ends=False)
        answer = opened.generate([9] * (1016 - opened.begins_with), asked)
        assert len(list(answer)) == 8
