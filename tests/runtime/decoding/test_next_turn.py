"""The next turn of a conversation begins where the cache stands, and an answer goes on beyond the context."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from served import until

from edgeopt.graph.model import load_model, save_model
from edgeopt.runtime.decoding.batching.shared_model import SharedModel
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.steps.convert.last_logits import keep_last_logits
from edgeopt.steps.convert.weight_only import make_weight_only

SHIPPED = Path(__file__).parents[3] / "models" / "tiny_lm"
PROMPT = "def walk(top):\n    for"
ASKED = AnswerOptions(40, ends=False, guesses=0)
CONTEXT = 64
SHIFTED = replace(ASKED, most_tokens=100, shifts=True)


@pytest.fixture(scope="module", params=[0, 4])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped model, in float and in blocks of 4 bits, whose single tokens sum otherwise than several."""
    place = tmp_path_factory.mktemp("model")
    shutil.copytree(SHIPPED, place, dirs_exist_ok=True)
    if request.param:
        made = make_weight_only(load_model(SHIPPED / "model.onnx"), request.param, 128, tables=True).model
        save_model(keep_last_logits(made).model, place / "model.onnx")
    return place


@pytest.fixture
def model(folder: Path):
    opened, _ = open_language_model(folder, 1)
    with opened:
        yield opened


@pytest.fixture
def small(folder: Path):
    opened, _ = open_language_model(folder, 1, CONTEXT)
    with opened:
        yield opened


def written(model: LanguageModel, prompt: list[int], asked: AnswerOptions) -> list[int]:
    return [piece.token for piece in model.generate(prompt, asked)]


def next_prompt(model: LanguageModel) -> tuple[list[int], list[int], list[int]]:
    prompt = model.tokenizer.encode(PROMPT)
    answer = written(model, prompt, ASKED)
    return prompt, answer, [*prompt, *answer, *model.tokenizer.encode("\n\nclass")]


def test_a_turn_that_was_expected_computes_its_own_words_alone_and_writes_the_tokens_of_the_whole_text(model):
    prompt, answer, turn = next_prompt(model)
    model.forget()
    alone = written(model, turn, ASKED)
    model.forget()
    assert written(model, prompt, ASKED) == answer
    begun = len(prompt) + len(answer)
    model.expect(turn[:begun])
    with model.generate(turn, ASKED) as next_answer:
        assert [piece.token for piece in next_answer] == alone
    assert next_answer.account.reused_tokens == model.begins_with + begun


def test_a_part_of_an_expected_turn_is_kept_where_somebody_asks_before_its_end(model):
    turn = next_prompt(model)[2]
    model.forget()
    alone = written(model, turn, ASKED)
    model.forget()
    asked = iter([True, True, False])
    computed = model.expect(turn, lambda: next(asked))
    assert 0 < computed < len(turn)
    with model.generate(turn, ASKED) as answer:
        assert [piece.token for piece in answer] == alone
    assert answer.account.reused_tokens == computed


def test_what_cannot_be_a_prompt_is_not_expected(small):
    for wrong in ([], [1] * CONTEXT, [10**6]):
        with pytest.raises(ValueError, match="token"):
            small.expect(wrong)


def test_slots_compute_an_expected_turn_while_nobody_asks(model):
    prompt, answer, turn = next_prompt(model)
    model.forget()
    alone = written(model, turn, ASKED)
    begun = len(prompt) + len(answer)
    with SharedModel(model, 2) as shared:
        assert [piece.token for piece in shared.generate(prompt, ASKED)] == answer
        shared.expect(turn[:begun], prompt)
        until(lambda: bool(shared.work.ahead_tokens) and shared.is_idle)
        next_answer = shared.generate(turn, ASKED)
        assert [piece.token for piece in next_answer] == alone
        assert next_answer.account.reused_tokens == model.begins_with + begun


def test_a_turn_whose_row_another_text_took_is_not_computed_ahead(model):
    prompt, _, turn = next_prompt(model)
    with SharedModel(model, 1) as shared:
        shared.generate(prompt, ASKED).text()
        shared.generate(model.tokenizer.encode("import os"), ASKED).text()
        shared.expect(turn, prompt)
        until(lambda: shared.is_idle)
        assert shared.work.ahead_tokens == 0


def expected_tokens(model: LanguageModel, prompt: list[int], count: int, kept: int = 0) -> list[int]:
    """Return the tokens of an answer beyond the context: each part is that of a prompt which is what stayed."""
    text, answer, context = list(prompt), list[int](), model.context - model.begins_with
    while len(answer) < count:
        most = min(context - len(text), count - len(answer))
        model.forget()
        new = written(model, text, replace(ASKED, most_tokens=most))
        answer += new
        text += new
        if len(text) >= context:
            del text[kept : kept + (len(text) - kept) // 2]
    return answer


@pytest.mark.parametrize("kept", [0, 3])
def test_an_answer_beyond_the_context_goes_on_as_behind_a_prompt_of_what_stayed(small, kept):
    prompt = small.tokenizer.encode(PROMPT)
    expected = expected_tokens(small, prompt, 100, kept)
    small.forget()
    asked = replace(SHIFTED, keep=kept, chunk_tokens=7)
    with small.generate(prompt, asked) as answer:
        assert [piece.token for piece in answer] == expected
    account = answer.account
    assert account.reason == "length"
    assert account.shifts == 2
    assert len(account.token_at_ns) == 100
    assert written(small, prompt, ASKED) == expected[:40]  # the cache that it gave back is that of its own text


def test_slots_shift_a_text_beside_another(small):
    prompts = [small.tokenizer.encode(text) for text in (PROMPT, "import os\n")]
    expected = [expected_tokens(small, prompt, 100) for prompt in prompts]
    small.forget()
    with SharedModel(small, 2, chunk_tokens=5) as shared:
        answers = [shared.generate(prompt, SHIFTED) for prompt in prompts]
        assert [[piece.token for piece in answer] for answer in answers] == expected


def test_guesses_of_a_shifted_text_change_no_token(small):
    prompt = small.tokenizer.encode(PROMPT)
    exact = replace(SHIFTED, exact=True)
    plain = written(small, prompt, exact)
    small.forget()
    assert written(small, prompt, replace(exact, guesses=3)) == plain


def test_an_answer_without_a_shift_is_over_with_its_context(small):
    prompt = small.tokenizer.encode(PROMPT)
    with small.generate(prompt, replace(SHIFTED, shifts=False)) as answer:
        count = len(list(answer))
    assert count == CONTEXT - small.begins_with - len(prompt)
    assert answer.account.shifts == 0


def test_a_text_that_may_not_be_cut_ends_with_its_context(small):
    prompt = small.tokenizer.encode(PROMPT) * 6
    prompt = prompt[: CONTEXT - 1 - small.begins_with]
    with small.generate(prompt, replace(SHIFTED, keep=CONTEXT)) as answer:
        list(answer)
    assert answer.account.reason == "length"
