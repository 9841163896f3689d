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
from edgeopt.measurement.generation.perplexity import TextScore, agreement_between, rise_between, windows_of
from edgeopt.measurement.generation.turns import Turns, ratio_between
from edgeopt.measurement.statistics.ratio import Change, Ratio
from edgeopt.pipeline.generation.optimize import LanguageOptions, _choose, optimize_language_model
from edgeopt.pipeline.generation.result import BASELINE, LanguageForm
from edgeopt.pipeline.run import Silence
from edgeopt.runtime.decoding.generation import Asked
from edgeopt.runtime.decoding.opening import open_language_model

BRIEF = LanguageOptions(prompt_tokens=8, output_tokens=4, threads=1, seconds=0.0)
SHIPPED = Path(__file__).parents[3] / "models" / "tiny_lm"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("out") / "lm"
    return optimize_language_model("tiny_lm", target="cpu", out=folder, options=BRIEF, listener=Silence())


def test_forms_of_eight_bits_lose_next_to_nothing_and_four_bits_more(report):
    by_name = {one.name: one for one in report.forms}
    assert list(by_name) == [BASELINE, "w8a8", "w8", "w4+head", "w4"]
    assert by_name[BASELINE].rise is None
    assert abs(by_name["w8"].rise.value) < 0.002
    assert abs(by_name["w8a8"].rise.value) < 0.01
    assert by_name["w8"].rise.value < by_name["w4+head"].rise.value < by_name["w4"].rise.value < 0.05
    assert 0.8 < by_name["w4"].agreement < by_name["w8"].agreement < 1.0
    assert by_name["w4"].size_bytes < by_name["w8"].size_bytes < by_name[BASELINE].size_bytes / 2


def test_what_loses_too_much_is_refused_and_not_measured(report):
    for one in report.forms[1:]:
        assert bool(one.unfit) == (one.rise.value > 0.02)
        assert bool(one.speed) == (not one.unfit)


def test_the_written_folder_answers_as_the_chosen_form(report):
    assert {"model.onnx", "tokenizer.json", "recipe.toml", "report.json", "report.html"} <= {
        one.name for one in report.folder.iterdir()
    }
    assert (report.folder / "model.onnx").read_bytes() == Path(report.best.file).read_bytes()
    model, _ = open_language_model(report.folder / "model.onnx", 1)
    with model:
        assert model.generate("import os", Asked(most_tokens=8)).text()
    stored = json.loads((report.folder / "report.json").read_text("utf-8"))
    assert stored["chosen"] == report.chosen


def test_guesses_change_no_token_of_blocks_of_four_bits(report):
    file = next(Path(one.file) for one in report.forms if one.name == "w4")
    model, _ = open_language_model(file, 1)
    with model:
        plain = [one.token for one in model.generate("def read(", Asked(96, ends=False))]
        model.forget()
        assert [one.token for one in model.generate("def read(", Asked(96, ends=False, guesses=4))] == plain


def test_two_runs_make_the_same_bytes_and_where_nothing_is_allowed_the_original_stays(report, tmp_path):
    text = tmp_path / "short.txt"
    text.write_text((SHIPPED / "held_out.txt").read_text("utf-8")[:4500], "utf-8")
    options = replace(BRIEF, text=str(text), max_rise=-1.0)
    again = optimize_language_model("tiny_lm", target="cpu", out=tmp_path / "lm", options=options, listener=Silence())
    for one, other in zip(report.forms[1:], again.forms[1:], strict=True):
        assert Path(one.file).read_bytes() == Path(other.file).read_bytes()
        assert other.unfit
    assert again.chosen == BASELINE
    assert (again.folder / "model.onnx").read_bytes() == (SHIPPED / "model.onnx").read_bytes()


def form(name: str, speedup: float, verdict: Change, unfit: str = "") -> LanguageForm:
    speed = Ratio(speedup, 0.9 * speedup, 1.1 * speedup, verdict)
    return LanguageForm(name, "", "", 1, 20.0, None, 1.0, {"answer": 1.0}, {"answer": speed}, unfit)


def test_only_what_is_proven_faster_and_fits_is_chosen():
    base = LanguageForm(BASELINE, "", "", 1, 20.0)
    maybe, sure = form("maybe", 3.0, Change.INCONCLUSIVE), form("sure", 1.4, Change.FASTER)
    assert _choose([base, maybe, sure, form("lossy", 5.0, Change.FASTER, "too much")]) == "sure"
    assert _choose([base, maybe, form("slow", 0.7, Change.SLOWER)]) == BASELINE


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


def test_a_ratio_of_turns_is_of_the_part_asked_for():
    base = np.tile([100.0, 40.0, 10.0], (10, 1)) * 1e6
    other = base / np.array([2.0, 0.5, 4.0])
    ratios = {part: ratio_between(Turns(base), Turns(other), part).speedup for part in ("answer", "TTFT", "TPOT")}
    assert ratios == pytest.approx({"answer": 2.0, "TTFT": 0.5, "TPOT": 4.0})
    assert Turns(base).median_ms("TTFT") == 40.0


def test_a_model_without_a_text_needs_one(tmp_path):
    for name in ("model.onnx", "tokenizer.json", "recipe.toml"):
        shutil.copyfile(SHIPPED / name, tmp_path / name)
    recipe = (tmp_path / "recipe.toml").read_text("utf-8").replace('calib = "held_out.txt"\n', "")
    (tmp_path / "recipe.toml").write_text(recipe, "utf-8")
    with pytest.raises(EdgeoptError, match="no text judges"):
        optimize_language_model(str(tmp_path), target="cpu", out=tmp_path / "o", options=BRIEF, listener=Silence())
    short = tmp_path / "short.txt"
    short.write_text("import os\n", "utf-8")
    options = replace(BRIEF, text=str(short))
    with pytest.raises(EdgeoptError, match="tokens: 1 window of"):
        optimize_language_model(str(tmp_path), target="cpu", out=tmp_path / "o", options=options, listener=Silence())


def test_what_does_not_fit_is_refused_before_work(tmp_path):
    with pytest.raises(UnsupportedError, match="on a processor so far"):
        optimize_language_model("tiny_lm", target="nvidia-cuda", out=tmp_path / "o", options=BRIEF, listener=Silence())
    (tmp_path / "mine.txt").write_text("keep", "utf-8")
    with pytest.raises(InvalidFileError, match="holds something else"):
        optimize_language_model("tiny_lm", target="cpu", out=tmp_path, options=BRIEF, listener=Silence())
    done = CliRunner().invoke(cli, ["optimize", "tiny_lm", "-t", "cpu", "--prune", "off"])
    assert "--prune is not for language models" in done.output
    done = CliRunner().invoke(cli, ["optimize", "digits_detector", "-t", "cpu", "--prompt-tokens", "9"])
    assert "are for a language model, and this is none" in done.output
