"""A draft changes no token, of floats and of weights in 4 bits, however an answer is asked for."""

from __future__ import annotations

import shutil
from itertools import islice
from pathlib import Path

import pytest
from small_decoders import bundle_small, byte_tokenizer, export_small

from edgeopt.errors import EdgeoptError, InvalidFileError, UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.sums import Sums
from edgeopt.graph.model import load_model, save_model
from edgeopt.recipes.recipe import read_recipe
from edgeopt.runtime.bundle import read_bundle
from edgeopt.runtime.decoding.binding import bind_language_model
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.language_model import LanguageModel, Origin
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.runtime.decoding.sampling import Sampling
from edgeopt.steps.convert.weight_only import make_weight_only

SHIPPED = Path(__file__).parents[4] / "models" / "tiny_lm"
PROMPT = "import os\n\n\ndef walk(top):\n"
PLAIN = AnswerOptions(200, ends=False, guesses=0, exact=True)


@pytest.fixture(scope="module", params=["fp32", "w4", "w4 in blocks of 128"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("model")
    shutil.copytree(SHIPPED, folder, dirs_exist_ok=True)
    if request.param != "fp32":
        made = make_weight_only(load_model(SHIPPED / "model.onnx"), 4, 128 if "128" in request.param else 32)
        assert made.changes
        save_model(made.model, folder / "model.onnx")
    with open_language_model(folder, 1)[0] as opened:
        assert opened.pairs == (request.param != "fp32")
        if opened.sums is Sums.APART:
            pytest.skip("this processor's kernels sum pairs otherwise too: guesses are not promised to be exact")
        opened.is_exact = True  # as in a bundle that guesses
        yield opened


@pytest.fixture(scope="module")
def plain(model: LanguageModel) -> list[int]:
    return tokens_of(model, PLAIN)


def tokens_of(model: LanguageModel, asked: AnswerOptions, prompt=PROMPT) -> list[int]:
    return [piece.token for piece in model.generate(prompt, asked)]


@pytest.mark.parametrize("uses_draft", [True, False])
@pytest.mark.parametrize(("guesses", "chunk"), [(1, 0), (4, 3), (8, 0)])
def test_guesses_change_no_token(model, plain, guesses, chunk, uses_draft):
    model.forget()
    asked = AnswerOptions(200, chunk_tokens=chunk, guesses=guesses, uses_draft=uses_draft, ends=False)
    answer = model.generate(PROMPT, asked)
    assert [piece.token for piece in answer] == plain
    account = answer.account
    assert 0 < account.accepted_tokens <= account.guessed_tokens
    assert account.runs + account.accepted_tokens == len(plain) - 1
    assert account.computed_tokens == account.prompt_tokens + account.runs + account.guessed_tokens
    assert (account.draft_tokens > account.guessed_tokens) if uses_draft else account.draft_tokens == 0


def test_a_seed_draws_the_same_tokens_with_a_draft(model):
    drawn = Sampling(temperature=0.9, top_k=40, top_p=0.95, repetition_penalty=1.1, seed=7)
    assert tokens_of(model, AnswerOptions(120, drawn, guesses=3)) == tokens_of(
        model, AnswerOptions(120, drawn, guesses=0, exact=True)
    )


def test_a_prompt_that_goes_on_where_an_answer_ended_reuses_both_caches(model, plain):
    model.forget()
    asked = AnswerOptions(60, ends=False, guesses=4)
    first = model.generate(PROMPT, asked)
    text = first.text()
    behind = PROMPT + text + "\n"
    again = model.generate(behind, asked)
    found = [piece.token for piece in again]
    assert again.account.reused_tokens > 40
    assert again.account.draft_tokens - again.account.guessed_tokens < 40  # the prompt is not computed again
    model.forget()
    assert found == tokens_of(model, AnswerOptions(60, ends=False, guesses=0, exact=True), behind)


def test_stop_and_cancel_end_an_answer_at_the_same_token(model, plain):
    text = model.generate(PROMPT, PLAIN).text()
    stop = text[len(text) // 2 :][:6]
    for guesses in (0, 5):
        answer = model.generate(PROMPT, AnswerOptions(200, stop=(stop,), ends=False, guesses=guesses, exact=True))
        assert answer.text() == text[: text.index(stop)]
    answer = model.generate(PROMPT, AnswerOptions(200, ends=False, guesses=5))
    begun = [piece.token for piece in islice(answer, 20)]
    answer.cancel()
    assert list(answer) == []
    assert answer.account.reason == "cancelled"
    assert begun == plain[:20]
    assert tokens_of(model, AnswerOptions(200, ends=False, guesses=5)) == plain


def test_a_draft_of_a_shorter_context_sees_the_end_of_the_text(model, plain):
    draft = LanguageModel(EXECUTOR.open(SHIPPED / "draft" / "model.onnx", SessionOptions()), model.tokenizer, 32, [0])
    recipe = read_recipe(SHIPPED / "recipe.toml")
    with bind_language_model(EXECUTOR.open(model.origin.file, SessionOptions()), recipe, Origin(Path(), 0, 1)) as other:
        other.use_draft(draft)
        other.is_exact = True
        answer = other.generate(PROMPT, AnswerOptions(200, ends=False, guesses=4))
        assert [piece.token for piece in answer] == plain
        assert answer.account.accepted_tokens > 40
        assert tokens_of(other, AnswerOptions(40, ends=False, guesses=64)) == plain[:40]


def test_a_draft_with_another_vocabulary_is_refused(model):
    session = EXECUTOR.open(SHIPPED / "draft" / "model.onnx", SessionOptions())
    draft = LanguageModel(session, byte_tokenizer(), 400, end=[])
    with draft, pytest.raises(UnsupportedError, match="another vocabulary: 256 tokens, the model has 1024"):
        model.use_draft(draft)


def test_a_bundle_carries_its_draft_and_the_number_of_guesses(tmp_path):
    exported = export_small(tmp_path)
    recipe = exported.parent / "recipe.toml"
    told = recipe.read_text("utf-8")
    recipe.write_text(told.replace("[generation]", '[generation]\ndraft = "smaller.onnx"\nguesses = 3'), "utf-8")
    shutil.copyfile(exported, exported.with_name("smaller.onnx"))
    bundle = bundle_small(exported, tmp_path / "bundle")
    shutil.rmtree(exported.parent)
    model, bound = open_language_model(bundle)
    with model:
        assert (bound.generation.draft, bound.generation.guesses) == ("draft.onnx", 3)
        answer = model.generate("abc", AnswerOptions(40, ends=False))
        found = [piece.token for piece in answer]
        account = answer.account
        assert account.accepted_tokens == account.guessed_tokens > 0  # the draft is the model itself
        model.forget()
        assert found == tokens_of(model, AnswerOptions(40, ends=False, guesses=0), "abc")
    (bundle / "draft.onnx").write_bytes(b"another")
    with pytest.raises(InvalidFileError, match=r"draft.onnx differs from its hash"):
        read_bundle(bundle)


def test_a_draft_that_is_missing_is_told_when_guesses_are_asked_for(tmp_path):
    for name in ("model.onnx", "recipe.toml", "tokenizer.json"):
        shutil.copyfile(SHIPPED / name, tmp_path / name)
    with open_language_model(tmp_path, 1)[0] as model:
        assert tokens_of(model, AnswerOptions(3, guesses=2, uses_draft=False))
        with pytest.raises(EdgeoptError, match="draft"):
            model.generate(PROMPT, AnswerOptions(3, guesses=2))
