from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from small_decoders import VOCABULARY, byte_tokenizer, write_decoder

from edgeopt.errors import UnavailableError, UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.decoder import Decoder, cache_parts
from edgeopt.export.decoder.llama import read_configuration, write_llama
from edgeopt.export.decoder.reference import Reference
from edgeopt.export.decoder.tensors_file import TensorFiles
from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.texts.byte_pairs import read_byte_pairs
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.runtime.decoding.sampling import Chooser, Sampling

PROMPT = [5, 17, 250, 3, 99, 17, 250]
LONG = AnswerOptions(most_tokens=256, ends=False)
TOKENIZER = Path(__file__).parents[3] / "models" / "tiny_lm" / "tokenizer.json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_decoder(tmp_path_factory.mktemp("decoder"))


@pytest.fixture(scope="module")
def data(folder: Path) -> bytes:
    return write_llama(read_configuration(folder), TensorFiles(folder), "small").data


@pytest.fixture
def model(data: bytes):
    session = EXECUTOR.open(data, SessionOptions())
    with LanguageModel(session, byte_tokenizer(), 400, end=[256]) as opened:
        yield opened


def tokens_of(model: LanguageModel, asked: AnswerOptions, prompt=PROMPT) -> list[int]:
    return [piece.token for piece in model.generate(prompt, asked)]


@pytest.fixture(scope="module")
def plain(data: bytes) -> list[int]:
    """Return the tokens of greedy decoding, one after the other, from an empty cache."""
    session = EXECUTOR.open(data, SessionOptions())
    with LanguageModel(session, byte_tokenizer(), 400, end=[256]) as opened:
        return tokens_of(opened, LONG)


def test_every_token_of_256_is_the_likeliest_of_plain_numpy(folder, plain):
    logits = Reference(read_configuration(folder), TensorFiles(folder)).logits([*PROMPT, *plain[:-1]])
    assert plain == logits[len(PROMPT) - 1 :].argmax(axis=-1).tolist()


def test_a_recipe_runs_prompts_in_parts_that_are_alike_and_asks_each_for_one_token(data, plain, monkeypatch):
    asked_for = list[tuple[int, int]]()
    run = Decoder.run

    def counted(self, tokens, last=0):
        asked_for.append((len(tokens), last))
        return run(self, tokens, last)

    monkeypatch.setattr(Decoder, "run", counted)
    with LanguageModel(EXECUTOR.open(data, SessionOptions()), byte_tokenizer(), 400, end=[256], chunk=3) as opened:
        assert tokens_of(opened, LONG) == plain
        assert asked_for[:4] == [(2, 1), (2, 1), (3, 1), (1, 0)]
        opened.forget()
        opened.keep_prefix(PROMPT[:4])
        assert asked_for[-2:] == [(2, 1), (2, 1)]


@pytest.mark.parametrize(
    "asked",
    [
        *(AnswerOptions(256, ends=False, chunk_tokens=n) for n in (1, 2, 3)),
        *(AnswerOptions(256, ends=False, guesses=n) for n in (1, 3, 8)),
    ],
)
def test_chunks_and_guesses_change_no_token(asked, model, plain):
    assert tokens_of(model, asked) == plain


def test_guesses_save_runs_and_are_counted(model, plain):
    with model.generate(PROMPT, AnswerOptions(256, ends=False, guesses=4)) as answer:
        assert [piece.token for piece in answer] == plain
    account = answer.account
    assert account.runs < len(plain) - 1
    assert account.computed_tokens > len(PROMPT) + account.runs


def test_a_cache_that_each_run_gives_anew_writes_the_same(data, plain):
    session = EXECUTOR.open(data, SessionOptions())
    decoder = Decoder(session.engine, cache_parts(session.inputs, session.outputs), 400, shares=False)
    found, logits = [], decoder.run(PROMPT[:4])
    decoder.rewind(2)
    logits = decoder.run(PROMPT[2:])
    for _ in range(64):
        found.append(int(logits[-1].argmax()))
        logits = decoder.run(found[-1:])
    assert found == plain[:64]
    assert decoder.cache_bytes == (len(PROMPT) + 64) * 2 * 2 * 2 * 16 * 4


def test_a_prompt_that_begins_alike_is_not_computed_again(model, plain):
    tokens_of(model, LONG)
    again = model.generate([*PROMPT, *plain[:9], 4], AnswerOptions(4, ends=False))
    list(again)
    assert again.account.reused_tokens == len(PROMPT) + 9
    assert again.account.computed_tokens == 1 + 3
    other = model.generate([*PROMPT[:3], 8], AnswerOptions(4, ends=False))
    fresh = [piece.token for piece in other]
    assert other.account.reused_tokens == 3
    model.forget()
    whole = model.generate([*PROMPT[:3], 8], AnswerOptions(4, ends=False))
    assert [piece.token for piece in whole] == fresh
    assert whole.account.reused_tokens == 0
    assert whole.account.computed_tokens == 4 + 3


def test_the_same_prompt_again_computes_its_last_token_only(model, plain):
    tokens_of(model, LONG)
    again = model.generate(PROMPT, LONG)
    assert [piece.token for piece in again] == plain
    assert again.account.reused_tokens == len(PROMPT) - 1


def test_texts_in_threads_do_not_disturb_each_other(model):
    prompts = [[one, one + 1, one + 2] for one in range(0, 60, 5)]
    expected = [tokens_of(model, AnswerOptions(30, ends=False), prompt) for prompt in prompts]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda prompt: tokens_of(model, AnswerOptions(30, ends=False), prompt), prompts))
    assert found == expected


def test_a_cancelled_answer_ends_before_its_next_token(model):
    answer = model.generate(PROMPT, LONG)
    next(answer)
    answer.cancel()
    assert list(answer) == []
    assert answer.account.reason == "cancelled"
    assert len(answer.account.token_at_ns) == 1


def test_a_closed_model_says_so(data):
    session = EXECUTOR.open(data, SessionOptions())
    model = LanguageModel(session, byte_tokenizer(), 100, end=[])
    model.close()
    for _ in range(2):
        with pytest.raises(UnavailableError, match="is closed"):
            model.generate("a")


def test_a_closed_answer_gives_its_cache_back(model, plain):
    with model.generate(PROMPT, LONG) as answer:
        next(answer)
        next(answer)
    assert answer.account.reason == "cancelled"
    again = model.generate(PROMPT, LONG)
    assert [piece.token for piece in again] == plain
    assert again.account.reused_tokens == len(PROMPT) - 1


def test_the_end_token_ends_an_answer(data, plain):
    place = next(i for i, token in enumerate(plain) if token not in plain[:i] and i >= 3)
    session = EXECUTOR.open(data, SessionOptions())
    with LanguageModel(session, byte_tokenizer(), 400, end=[plain[place]]) as model:
        for guesses in (0, 4):
            answer = model.generate(PROMPT, AnswerOptions(256, guesses=guesses))
            assert [piece.token for piece in answer] == plain[: place + 1]
            assert answer.account.reason == "end"


def test_the_context_ends_an_answer(data):
    session = EXECUTOR.open(data, SessionOptions())
    with LanguageModel(session, byte_tokenizer(), 20, end=[]) as model:
        for guesses in (0, 6):
            answer = model.generate(PROMPT, AnswerOptions(256, guesses=guesses))
            assert len(list(answer)) == 20 - len(PROMPT)
            assert answer.account.reason == "length"
        with pytest.raises(ValueError, match="the prompt has 20 tokens, the context 20"):
            model.generate(list(range(20)))


def test_times_rise_and_are_named(model):
    answer = model.generate(PROMPT, AnswerOptions(12, ends=False))
    list(answer)
    account = answer.account
    assert list(account.token_at_ns) == sorted(account.token_at_ns)
    assert account.ttft_ms is not None
    assert account.ttft_ms >= account.prefill_ns / 1e6
    assert account.tpot_ms == pytest.approx((account.token_at_ns[-1] - account.token_at_ns[0]) / 1e6 / 11)


def test_the_same_seed_draws_the_same_tokens_with_guesses_too(model):
    sampling = Sampling(temperature=0.9, top_k=40, top_p=0.95, repetition_penalty=1.1, seed=3)
    drawn = tokens_of(model, AnswerOptions(80, sampling, ends=False))
    assert drawn == tokens_of(model, AnswerOptions(80, sampling, ends=False, guesses=4))
    assert drawn != tokens_of(model, AnswerOptions(80, Sampling(0.9, 40, 0.95, 1.1, seed=4), ends=False))


def test_drawn_tokens_follow_their_shares():
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    chooser = Chooser(Sampling(temperature=1.0))
    counts = np.bincount([chooser.choose(logits, ()) for _ in range(4000)], minlength=4) / 4000
    np.testing.assert_allclose(counts, [0.5, 0.3, 0.15, 0.05], atol=0.03)
    kept = {Chooser(Sampling(1.0, top_k=2, seed=seed)).choose(logits, ()) for seed in range(60)}
    assert kept == {0, 1}
    kept = {Chooser(Sampling(1.0, top_p=0.79, seed=seed)).choose(logits, ()) for seed in range(60)}
    assert kept == {0, 1}


@pytest.mark.filterwarnings("error")
def test_a_temperature_near_nothing_chooses_the_likeliest():
    logits = np.array([1.0, 30.0, 29.9], np.float32)
    assert {Chooser(Sampling(1e-310, seed=seed)).choose(logits, ()) for seed in range(20)} == {1}


def test_min_p_keeps_what_is_likely_enough_beside_the_likeliest():
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    kept = {Chooser(Sampling(1.0, min_p=0.29, seed=seed)).choose(logits, ()) for seed in range(80)}
    assert kept == {0, 1, 2}
    kept = {Chooser(Sampling(1.0, min_p=0.61, seed=seed)).choose(logits, ()) for seed in range(80)}
    assert kept == {0}


def test_penalties_count_the_answer_alone_and_biases_every_token():
    logits = np.array([3.0, 2.5, 0.0, -9.0], np.float32)
    chosen = Chooser(Sampling(presence_penalty=1.0))
    assert chosen.choose(logits, [0, 0, 0], []) == 0, "the prompt has it, the answer has not"
    assert chosen.choose(logits, [0], [0]) == 1
    often = Chooser(Sampling(frequency_penalty=0.3))
    assert often.choose(logits, [0], [0]) == 0
    assert often.choose(logits, [0, 0], [0, 0]) == 1
    assert Chooser(Sampling(logit_bias={3: 100.0})).choose(logits, ()) == 3
    with pytest.raises(ValueError, match="logit_bias has the token 99, the model has 0 to 3"):
        Chooser(Sampling(logit_bias={99: 5.0})).choose(logits, ())
    assert logits.tolist() == [3.0, 2.5, 0.0, -9.0], "the model's own numbers are left alone"


def test_what_may_not_follow_is_never_drawn_however_sums_are_rounded():
    logits = np.full(1000, -np.inf, np.float32)
    logits[::2] = 0.0
    drawn = {Chooser(Sampling(1.0, seed=seed)).choose(logits, ()) for seed in range(300)}
    assert all(token % 2 == 0 for token in drawn)


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_p": 1.1},
        {"frequency_penalty": 3},
        {"presence_penalty": -3},
        {"logit_bias": {-1: 0}},
        {"logit_bias": {1: 101}},
    ],
)
def test_no_sampling_has_such_a_value(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Sampling(**wrong)


def test_the_probabilities_of_tokens_sum_to_one_and_name_the_token_itself(model):
    pieces = list(model.generate([5, 17, 250], most_tokens=5, logprobs=20))
    for piece in pieces:
        assert piece.logprob == piece.likely[0][1]
        assert piece.token == piece.likely[0][0]
        assert len(piece.likely) == 20
        assert sum(np.exp(logprob) for _, logprob in piece.likely) < 1
    assert all(piece.logprob is None for piece in model.generate([5, 17, 250], most_tokens=5))
    with pytest.raises(ValueError, match="logprobs is 21"):
        AnswerOptions(logprobs=21)


def test_repetition_is_penalised_and_nan_is_never_chosen():
    logits = np.array([3.0, 2.9, np.nan, -1.0], np.float32)
    assert Chooser(Sampling()).choose(logits, [0]) == 0
    assert Chooser(Sampling(repetition_penalty=1.2)).choose(logits, [0]) == 1


@pytest.mark.parametrize(
    "wrong", [{"temperature": -1.0}, {"top_p": 1.5}, {"top_k": -1}, {"seed": -1}, {"temperature": float("nan")}]
)
def test_wrong_sampling_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Sampling(**wrong)


def test_an_empty_prompt_is_refused(model):
    with pytest.raises(ValueError, match="empty"):
        model.generate("")


@pytest.mark.parametrize("wrong", [VOCABULARY, -1, 10**30])
def test_a_token_that_the_model_has_not_is_one_line(model, wrong):
    with pytest.raises(ValueError, match=rf"{wrong}\b"):
        model.generate([3, wrong])


@pytest.mark.parametrize("wrong", [[1.5], [True], [[1], [2, 3]], [[1]], None, ["a"]])
def test_a_prompt_that_is_no_tokens_is_one_line(model, wrong):
    with pytest.raises(ValueError, match="whole numbers"):
        model.generate(wrong)


@pytest.mark.parametrize(
    ("wish", "told"),
    [
        ({"stop": "os"}, r"write stop=\('os',\)"),
        ({"stop": ("",)}, "one character or more"),
        ({"stop": (3,)}, "one character or more"),
        ({"most_tokens": 0}, "1 or more"),
        ({"most_tokens": 2.0}, "whole number"),
        ({"most_tokens": True}, "whole number"),
        ({"guesses": -1}, "0 or more"),
        ({"chunk_tokens": -1}, "0 or more"),
        ({"keep": -1}, "0 or more"),
        ({"temperature": -1.0}, "temperature is -1"),
        ({"top_k": 2.5}, "top_k is 2.5, and must be a whole number"),
        ({"seed": 1.5}, "whole number"),
    ],
)
def test_a_wish_of_no_sense_is_one_line(model, wish, told):
    with pytest.raises(ValueError, match=told):
        model.generate("import os", **wish)


def test_wishes_are_those_of_asked_and_of_its_sampling(model):
    asked = AnswerOptions(7, Sampling(temperature=1.0, seed=3), ends=False)
    by_name = model.generate([3, 4], most_tokens=7, temperature=1.0, seed=3, ends=False)
    assert [one.token for one in by_name] == [one.token for one in model.generate([3, 4], asked)]
    assert asked.but(seed=4) == AnswerOptions(7, Sampling(temperature=1.0, seed=4), ends=False)
    assert asked.but() is asked
    assert AnswerOptions(np.int64(5)).but(guesses=None).most_tokens == 5
    with pytest.raises(TypeError, match="no 'max_tokens'"):
        model.generate([3], max_tokens=4)


def test_a_tokenizer_of_another_model_is_refused(data):
    session = EXECUTOR.open(data, SessionOptions())
    with pytest.raises(UnsupportedError, match=f"tokenizer has 1024 tokens, the model {VOCABULARY}"):
        LanguageModel(session, read_byte_pairs(TOKENIZER), 100, end=[])


def test_a_model_without_a_cache_is_refused():
    ids = TensorSpec("input_ids", "int64", (1, "length"))
    with pytest.raises(UnsupportedError, match="no decoder with a cache: it takes input_ids"):
        cache_parts([ids], [TensorSpec("logits", "float32", (1, "length", 10))])
    past = TensorSpec("past_key_values.0.key", "float32", (1, 2, "past", 8))
    with pytest.raises(UnsupportedError, match=r"is no cache that an output present\.0\.key continues"):
        cache_parts([ids, past], [TensorSpec("logits", "float32", (1, "length", 10))])


@pytest.mark.parametrize("run", [1, 2, 3])
def test_ctrl_c_that_is_raised_behind_a_run_leaves_a_model_that_answers(model, monkeypatch, run):
    """Python delivers a signal when the engine's run returns: the parts of the next prompt have other lengths."""
    cut = AnswerOptions(most_tokens=4, ends=False, chunk_tokens=5)
    after = model.generate(PROMPT[:4], cut).text()
    real, runs = onnxruntime.InferenceSession.run_with_iobinding, [0]

    def interrupted(session, binding, options=None):
        real(session, binding, options)
        runs[0] += 1
        if runs[0] == run:
            raise KeyboardInterrupt

    monkeypatch.setattr(onnxruntime.InferenceSession, "run_with_iobinding", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.generate(PROMPT, cut).text()
    monkeypatch.undo()
    assert model.generate(PROMPT[:4], cut).text() == after
