"""A model of weights in blocks writes the same tokens in slots as alone, exact or not, and behind its own answers."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgeopt.errors import UnsupportedError
from edgeopt.executors.onnxruntime.decoder import takes_last
from edgeopt.executors.onnxruntime.rows import SharedRows
from edgeopt.executors.onnxruntime.sums import Sums, texts_are_alike
from edgeopt.graph.model import load_model, save_model
from edgeopt.optimization.generation.forms.kinds import EIGHT_BITS_BLOCK
from edgeopt.runtime.decoding.batching import shared_model
from edgeopt.runtime.decoding.batching.shared_model import SharedModel
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.runtime.devices.availability import find_device
from edgeopt.steps.convert.last_logits import keep_last_logits
from edgeopt.steps.convert.weight_only import make_weight_only
from edgeopt.steps.quantize.formats.dynamic import make_dynamic

SHIPPED = Path(__file__).parents[4] / "models" / "tiny_lm"
PROMPTS = ("import os\n", "def walk(top):\n    for", "class", "import os\n\n\ndef read(")
ASKED = AnswerOptions(40, ends=False, guesses=0)


def test_slots_of_an_exact_model_write_what_each_text_writes_alone(tmp_path, monkeypatch):
    shutil.copytree(SHIPPED, tmp_path, dirs_exist_ok=True)
    save_model(make_weight_only(load_model(SHIPPED / "model.onnx"), 4, 128).model, tmp_path / "model.onnx")
    with open_language_model(tmp_path, 1)[0] as model:
        if model.sums is Sums.APART:
            pytest.skip("this processor's kernels sum pairs otherwise too")
        if model.sums is Sums.PAIRED:
            for takes_rows in (lambda *_: True, lambda *_: False):
                monkeypatch.setattr(shared_model, "takes_rows", takes_rows)
                with SharedModel(model, 2) as shared, pytest.raises(UnsupportedError, match="slots are not exact"):
                    shared.generate(PROMPTS[0], AnswerOptions(4, exact=True))
        monkeypatch.undo()
        exact = replace(ASKED, exact=True)
        alone = [[piece.token for piece in model.generate(prompt, exact)] for prompt in PROMPTS]
        with SharedModel(model, 4, chunk_tokens=3, exact=True) as shared:
            assert shared.is_together == (model.sums is Sums.ALIKE)
            answers = [shared.generate(prompt, ASKED) for prompt in PROMPTS]
            assert [[piece.token for piece in one] for one in answers] == alone


FORMS = {"w4": (4, 32), "w4+long": (4, 128), "w8": (8, EIGHT_BITS_BLOCK)}


@pytest.fixture(scope="module", params=FORMS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("model")
    shutil.copytree(SHIPPED, folder, dirs_exist_ok=True)
    made = make_weight_only(load_model(SHIPPED / "model.onnx"), *FORMS[request.param], tables=True)
    save_model(keep_last_logits(made.model).model, folder / "model.onnx")  # as optimize's forms are
    with open_language_model(folder, 1)[0] as opened:
        assert takes_last(opened.session.engine)
        yield opened


def tokens_of(model: LanguageModel, prompt: str | list[int], asked: AnswerOptions = ASKED) -> list[int]:
    return [piece.token for piece in model.generate(prompt, asked)]


def test_a_text_has_the_same_tokens_beside_others_as_alone(model):
    alone = []
    for prompt in PROMPTS:
        model.forget()
        alone.append(tokens_of(model, prompt))
    with SharedModel(model, 3, chunk_tokens=2) as shared:
        assert shared.is_together == (not shared.turns_told)
        answers = [shared.generate(prompt, ASKED) for prompt in PROMPTS]
        assert [[piece.token for piece in one] for one in answers] == alone


def test_rows_that_share_a_run_have_the_bits_of_each_alone_where_it_is_said(model):
    is_alike = texts_are_alike(model.session.engine, model.parts, 4)
    rows = SharedRows(model.session.engine, model.parts, 4, 64, pairs=True)
    texts = [model.tokenizer.encode(prompt) for prompt in PROMPTS]
    for row, text in enumerate(texts):
        rows.run(row, text, is_prompt=True)
    is_same = True
    for step in range(8):
        for count in (1, 2, 3, 4):
            tokens = [(7 * step + 11 * row + count) % 1024 for row in range(count)]
            alone = np.stack([rows.run(row, [token])[-1] for row, token in enumerate(tokens)])
            for row in range(count):
                rows.rewind(row, rows.past(row) - 1)
            is_same &= np.array_equal(rows.run_first(tokens), alone)
    assert is_same == is_alike


@pytest.mark.parametrize("exact", [None, True])
def test_a_prompt_behind_an_answer_has_the_tokens_of_the_whole_prompt_at_once(model, exact):
    if model.sums is Sums.APART:
        pytest.skip("this processor's kernels sum pairs otherwise too")
    asked = replace(ASKED, exact=exact)
    model.forget()
    prompt = model.tokenizer.encode(PROMPTS[1])
    answer = tokens_of(model, prompt, asked)
    again = [*prompt, *answer, *model.tokenizer.encode("\n\n")]
    behind = model.generate(again, asked)
    found = [piece.token for piece in behind]
    reused = model.begins_with + len(prompt)
    if exact or model.sums is not Sums.PAIRED:
        reused += len(answer) - 1
    assert behind.account.reused_tokens == reused
    model.forget()
    assert found == tokens_of(model, again, asked)
    with SharedModel(model, 2, exact=exact) as shared:
        assert [one.token for one in shared.generate(prompt, ASKED)] == answer
        behind = shared.generate(again, ASKED)
        assert [one.token for one in behind] == found
        assert behind.account.reused_tokens == reused


def test_guesses_that_would_change_a_plain_answer_are_refused(model):
    if model.sums is not Sums.PAIRED:
        pytest.skip("guesses change no token on this processor")
    with pytest.raises(UnsupportedError, match="guesses change no token of exact answers alone"):
        model.generate(PROMPTS[0], replace(ASKED, guesses=3))
    model.forget()
    exact = tokens_of(model, PROMPTS[0], replace(ASKED, exact=True))
    assert tokens_of(model, PROMPTS[0], replace(ASKED, guesses=3, exact=True)) == exact


def test_slots_of_a_model_that_guesses_are_exact_as_it_is_alone(model):
    if model.sums is Sums.APART:
        pytest.skip("this processor's kernels sum pairs otherwise too")
    model.forget()
    alone = tokens_of(model, PROMPTS[1], replace(ASKED, exact=True))
    model.is_exact = True
    try:
        with SharedModel(model, 2) as shared:
            answers = [shared.generate(prompt, AnswerOptions(40, ends=False)) for prompt in (PROMPTS[1], PROMPTS[0])]
            assert [piece.token for piece in answers[0]] == alone
            answers[1].close()
    finally:
        model.is_exact = False


def test_slots_are_not_exact_where_one_grid_is_for_all_tokens_of_a_run(tmp_path):
    shutil.copytree(SHIPPED, tmp_path, dirs_exist_ok=True)
    made = make_dynamic(load_model(SHIPPED / "model.onnx"), find_device("cpu").rules_here)
    save_model(made.model, tmp_path / "model.onnx")
    with open_language_model(tmp_path, 1)[0] as model:
        with pytest.raises(UnsupportedError, match="no answer of this model is exact"):
            SharedModel(model, 2, exact=True)
        with SharedModel(model, 2) as shared, pytest.raises(UnsupportedError, match="no answer of this model"):
            shared.generate(PROMPTS[0], AnswerOptions(4, exact=True))
