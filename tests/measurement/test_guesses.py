"""The gain of guesses is predicted from counted rounds and measured costs; those that do not pay are not used."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from edgeopt.errors import UnsupportedError
from edgeopt.executors.onnxruntime.sums import Sums
from edgeopt.graph.model import load_model, save_model
from edgeopt.measurement.generation import guesses
from edgeopt.measurement.generation.guesses import DRAFT, TEXT, RunTimes, forecast_guesses
from edgeopt.optimization.generation.guessing import choose_guesses, with_guesses
from edgeopt.optimization.generation.result import GuessChoice, LanguageForm
from edgeopt.recipes.recipe import read_recipe
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.guessing import notes_of_guesses
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.runtime.devices.availability import find_device
from edgeopt.steps.convert.weight_only import make_weight_only
from edgeopt.steps.quantize.formats.dynamic import make_dynamic

SHIPPED = Path(__file__).parents[2] / "models" / "tiny_lm"
PROMPT = "import os\n\n\ndef walk(top):\n"


@pytest.fixture(scope="module")
def model():
    with open_language_model(SHIPPED, 1)[0] as opened:
        yield opened


def test_rounds_are_those_of_an_answer_with_guesses(model):
    prompt = model.tokenizer.encode(PROMPT)
    forecast = forecast_guesses(model, [prompt], 80, (1, 4))
    assert [(one.by, one.guesses) for one in forecast.plans] == [(DRAFT, 1), (DRAFT, 4), (TEXT, 1), (TEXT, 4)]
    for plan in forecast.plans:
        answer = model.generate(
            prompt, AnswerOptions(80, guesses=plan.guesses, uses_draft=plan.by == DRAFT, ends=False)
        )
        answer.text()
        assert plan.tokens_a_run == pytest.approx(79 / answer.account.runs, rel=0.1)
        assert plan.acceptance == pytest.approx(answer.account.acceptance, abs=0.06)
        assert plan.gain > 0


@pytest.mark.parametrize(("width_ns", "pays"), [(1e6, True), (90e6, False)])
def test_guesses_that_cost_more_than_they_write_are_not_used(model, monkeypatch, width_ns, pays):
    widths, noise = (1, 2, 3, 5, 9), np.random.default_rng(0).uniform(0.97, 1.03, (9, 6))
    costs = np.array([10e6, *(10e6 + (width - 1) * width_ns for width in widths)]) * noise
    monkeypatch.setattr(guesses, "_times_ns", lambda *_: RunTimes(costs[:, 0], widths, costs[:, 1:]))
    prompt = model.tokenizer.encode(PROMPT)
    forecast = forecast_guesses(model, [prompt], 60, (4,), uses_draft=False)
    assert forecast.pays == pays
    (plan,) = forecast.plans
    assert plan.low < plan.gain < plan.high < plan.low * 1.2  # of one text: the times alone scatter
    assert plan.gain_told in str(forecast)
    assert str(forecast).startswith("not used: ") == (not pays)
    if not pays:
        form = LanguageForm("fp32", "", "", 1, 1.0)
        assert choose_guesses(form, model, [prompt], AnswerOptions(60, guesses=0, ends=False), 0.1).guesses == 0


def test_blocks_are_timed_in_pairs_where_single_tokens_sum_otherwise(tmp_path):
    shutil.copytree(SHIPPED, tmp_path, dirs_exist_ok=True)
    save_model(make_weight_only(load_model(SHIPPED / "model.onnx"), 4).model, tmp_path / "model.onnx")
    with open_language_model(tmp_path, 1)[0] as opened:
        prompt = opened.tokenizer.encode(PROMPT)
        forecast = forecast_guesses(opened, [prompt], 20, uses_draft=False)
        is_paired = opened.sums is Sums.PAIRED
        assert [one.guesses for one in forecast.plans] == ([1, 3, 7] if is_paired else [1, 2, 4, 8])
        costs = dict(forecast.costs)
        assert is_paired or costs[1] == 1.0
        assert all(cost > 0 for cost in costs.values())


def test_a_bundle_names_a_draft_only_where_it_guesses():
    recipe = read_recipe(SHIPPED / "recipe.toml")
    assert recipe.generation.draft == "draft/model.onnx"
    assert with_guesses(recipe, GuessChoice(told="not used")).generation.draft == ""
    told = with_guesses(recipe, GuessChoice(DRAFT, 4)).generation
    assert (told.draft, told.guesses) == ("draft/model.onnx", 4)
    assert with_guesses(recipe, GuessChoice(TEXT, 2)).generation.draft == ""


def test_answers_of_w8a8_are_never_guessed(tmp_path):
    shutil.copytree(SHIPPED, tmp_path, dirs_exist_ok=True)
    made = make_dynamic(load_model(SHIPPED / "model.onnx"), find_device("cpu").rules_here)
    save_model(made.model, tmp_path / "model.onnx")
    with open_language_model(tmp_path, 1)[0] as opened:
        found = choose_guesses(LanguageForm("w8a8", "", "", 1, 1.0), opened, [], AnswerOptions(8), 0.1)
        assert (found.guesses, found.told) == (0, "not used: they may change the answers of w8a8")
        assert notes_of_guesses(opened.sums)
        with pytest.raises(UnsupportedError, match="no answer of this model is exact"):
            opened.generate(PROMPT, AnswerOptions(8, exact=True))


@pytest.mark.parametrize("length", ["none", "all but two"])
def test_prompts_of_no_token_and_such_that_fill_the_context_are_forecast_too(model, length):
    texts = model.tokenizer.encode(PROMPT) * 200
    prompt = [] if length == "none" else texts[: model.context - model.begins_with - 3]
    forecast = forecast_guesses(model, [prompt], 2, (2,), uses_draft=False)
    assert forecast.plans[0].gain > 0
