"""Answers that keep to a form: JSON by a schema, a regular expression, a grammar; alone, in slots, with guesses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from random_schemas import fits, random_schema
from small_decoders import SHIPPED, byte_tokenizer, write_decoder

from edgeopt.errors import EdgeoptError, UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.export.decoder.llama import read_configuration, write_llama
from edgeopt.export.decoder.tensors_file import TensorFiles
from edgeopt.graph.model import Model
from edgeopt.recipes.texts.byte_pairs import BytePairs
from edgeopt.recipes.texts.tokens import read_tokens
from edgeopt.running.writing import find_language_model
from edgeopt.runtime.decoding.batching.shared_model import SharedModel
from edgeopt.runtime.decoding.generation import AnswerOptions, Writing
from edgeopt.runtime.decoding.grammars import FormError, Grammars, form_of
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.runtime.decoding.pieces import Pieces
from edgeopt.runtime.decoding.sampling import Chooser, Sampling
from edgeopt.steps.convert.weight_only import make_weight_only

pytest.importorskip("llguidance")
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
}
DRAWN = {"temperature": 1.0, "most_tokens": 400}


@pytest.fixture(scope="module")
def float_model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = write_decoder(tmp_path_factory.mktemp("decoder"))
    data = write_llama(read_configuration(folder), TensorFiles(folder), "small").data
    return Model(onnx.load_from_string(data), "small")


@pytest.fixture(scope="module", params=["fp32", "INT4"])
def random_model(request: pytest.FixtureRequest, float_model: Model) -> Iterator[LanguageModel]:
    """A model of random weights, which knows nothing of JSON."""
    made = float_model if request.param == "fp32" else make_weight_only(float_model, 4).model
    assert made is not None
    session = EXECUTOR.open(made.proto.SerializeToString(), SessionOptions(threads=1))
    with LanguageModel(session, byte_tokenizer(), 512, end=[256]) as model:
        yield model


@pytest.fixture(scope="module")
def taught() -> Iterator[LanguageModel]:
    """The shipped model, whose tokens are of several characters."""
    model, _ = open_language_model(find_language_model("tiny_lm"), 1)
    with model:
        yield model


def test_a_check_of_schemas_tells_what_fits_from_what_does_not():
    schema = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 3}}, "required": ["a"]}
    assert fits({"a": 2}, schema)
    assert not any(fits(value, schema) for value in ({}, {"a": 4}, {"a": True}, {"a": 2, "b": 1}, [], None))


def test_every_answer_keeps_to_its_schema_whatever_the_model(random_model, taught):
    rng, whole, ended = np.random.default_rng(0), 0, 0
    for i in range(60):
        schema = random_schema(rng)
        for model in (random_model, taught):
            answer = model.generate([5, 17, 30], schema=schema, seed=i, **DRAWN)
            text = answer.text()
            ended += answer.account.reason == "end"
            if answer.account.reason == "end":
                assert fits(json.loads(text), schema), (schema, text)
                whole += 1
    assert whole == ended > 110, "few may be cut by the length"


def test_the_likeliest_text_in_a_form_is_the_same_alone_with_guesses_and_beside_others(random_model):
    prompts, asked = ([5, 17, 250, 3], [9, 9], list(range(40, 70))), AnswerOptions(200, schema=PERSON)
    alone = [[piece.token for piece in random_model.generate(prompt, asked)] for prompt in prompts]
    for tokens in alone:
        assert fits_person(random_model.tokenizer.decode(tokens))
    with SharedModel(random_model, 3) as shared:
        answers = [shared.generate(prompt, asked) for prompt in prompts]
        assert [[piece.token for piece in answer] for answer in answers] == alone
    exact = AnswerOptions(200, schema=PERSON, guesses=4, exact=True)
    plain = [[piece.token for piece in random_model.generate(prompt, exact.but(guesses=0))] for prompt in prompts]
    assert [[piece.token for piece in random_model.generate(prompt, exact)] for prompt in prompts] == plain


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"repetition_penalty": 1.3},
        {"logit_bias": {40: 9.0, 7: -50.0}},
        {"frequency_penalty": 0.8, "presence_penalty": -0.4},
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 40, "top_p": 0.9},
        {"temperature": 1.5, "min_p": 0.1, "repetition_penalty": 0.8},
    ],
)
def test_a_token_is_that_of_masked_logits_however_it_is_chosen(taught, sampling):
    """The likeliest alone is asked about where it may follow; drawn tokens are ordered among those that may."""
    grammars = Grammars(taught.tokenizer, taught.vocabulary, [0])
    rng, kinds = np.random.default_rng(3), set[bool]()
    for number in range(12):
        form = form_of(random_schema(rng), "", "")
        assert form is not None
        follower, masks, answer = grammars.follower(form), grammars.follower(form), list[int]()
        choosers = [Chooser(Sampling(**sampling, seed=number)) for _ in range(2)]
        for step in range(40):
            allowed = masks.behind(answer).allowed()
            logits = rng.normal(size=taught.vocabulary).astype(np.float32)
            if step % 2:  # a model that knows its form
                logits[allowed] += 6
            if step % 5 == 4:
                logits[rng.integers(0, len(logits), 50)] = np.nan
            kinds.add(bool(allowed[np.nan_to_num(logits, nan=-9).argmax()]))
            token = choosers[1].choose(logits, answer, answer, follower.behind(answer))
            assert allowed[token]
            if not np.isnan(logits[allowed]).all() and np.count_nonzero(allowed) > 1:
                assert token == choosers[0].choose(np.where(allowed, logits, np.float32(-np.inf)), answer, answer)
            answer.append(token)
            if token == 0 or follower.is_whole(answer):
                break
    assert kinds == {True, False}


def test_a_token_is_accepted_where_the_mask_has_it(taught):
    """The package consumes `{` where the mask has `{"` alone, as the form forces both letters."""
    form = form_of(PERSON, "", "")
    assert form is not None
    tokens, answer = taught.tokenizer, list[int]()
    follower = Grammars(tokens, taught.vocabulary, [0]).follower(form)
    for token in tokens.encode('{"name": "x", "age": 1'):
        for place in (answer, [*answer, token], answer):  # there and back, as behind a wrong guess
            allowed = follower.behind(place).allowed()
            assert [follower.accepts(each) for each in range(taught.vocabulary)] == allowed.tolist()
        answer.append(token)
    with pytest.raises(EdgeoptError, match="cannot go on in its form"):
        follower.behind([tokens.encode("x")[0]]).allowed()


def test_an_answer_that_left_its_form_is_never_whole(taught):
    tokens, form = taught.tokenizer, form_of(None, "ab+c", "")
    assert form is not None
    grammars = Grammars(tokens, taught.vocabulary, [0])
    for ask in (lambda follower, answer: follower.is_whole(answer), lambda follower, answer: follower.forced(answer)):
        follower = grammars.follower(form)
        for _ in range(2):
            with pytest.raises(EdgeoptError, match="cannot go on in its form"):
                ask(follower, tokens.encode("z"))
    follower = grammars.follower(form)
    assert [follower.is_whole(tokens.encode(text)) for text in ("abbc", "ab", "abc")] == [True, False, True]


def without(letter: str) -> BytePairs:
    """Return tiny_lm's tokenizer without the tokens that hold a letter."""
    values = json.loads((SHIPPED / "tokenizer.json").read_text("utf-8"))
    model = values["model"]
    model["vocab"] = {token: number for token, number in model["vocab"].items() if letter not in token}
    model["merges"] = [pair for pair in model["merges"] if letter not in str(pair)]
    return BytePairs(SHIPPED / "tokenizer.json", values)


@pytest.mark.parametrize("letter", ["Ã", "©"])  # the bytes of é, either of which the vocabulary may lack
def test_a_text_that_no_token_writes_ends_an_answer_in_a_line(letter):
    tokens, answer = without(letter), list[int]()
    drink = {"drink": {"enum": ["café", "thé", "tea"]}}
    form = form_of({"type": "object", "properties": drink, "required": ["drink"]}, "", "")
    assert form is not None
    follower = Grammars(tokens, 1024, [0]).follower(form)
    answer += follower.forced(answer)
    answer += tokens.encode("ca")
    answer += follower.forced(answer)
    assert tokens.decode(answer).startswith('{"drink": "caf')
    with pytest.raises(EdgeoptError, match="form: no token of this model continues the answer\n"):
        follower.behind(answer).allowed()
    other = Grammars(tokens, 1024, [0]).follower(form)
    assert other.is_whole(tokens.encode('{"drink": "tea"}'))


def test_forced_text_is_written_as_it_is_where_a_tokenizer_begins_texts_with_a_space(tmp_path):
    package = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    made = package.Tokenizer(package.models.BPE(byte_fallback=True, unk_token="<unk>"))
    made.normalizer = package.normalizers.Sequence(
        [package.normalizers.Prepend("\u2581"), package.normalizers.Replace(" ", "\u2581")]
    )
    trainer = package.trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<unk>", *(f"<0x{i:02X}>" for i in range(256))], show_progress=False
    )
    made.train_from_iterator([json.dumps(PERSON)], trainer)
    values = json.loads(made.to_str())
    values["added_tokens"] = [each for each in values["added_tokens"] if each["content"] == "<unk>"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(values), "utf-8")
    tokens = read_tokens(tmp_path / "tokenizer.json")
    assert tokens.decode(tokens.encode("name")) == " name"
    form = form_of({"type": "object", "properties": {"name": {"const": "é x"}}, "required": ["name"]}, "", "")
    assert form is not None
    end = tokens.special["<unk>"]
    follower, answer = Grammars(tokens, tokens.size, [end]).follower(form), list[int]()
    while not follower.is_whole(answer):
        answer += follower.forced(answer) or [int(follower.behind(answer).allowed().argmax())]
    assert tokens.decode(answer) == '{"name": "é x"}'


QUESTION = {
    "type": "object",
    "properties": {"kind": {"enum": ["question", "complaint"]}, "n": {"type": "integer"}},
}
ASKED = '{"kind": "question", "n": 4821}\n' * 2 + '{"kind": "question", "n": 77}\n'


@pytest.mark.parametrize("logprobs", [None, 2])
def test_guesses_change_no_drawn_answer_in_a_form(taught, logprobs):
    accepted = 0
    for seed in range(6):
        wish = AnswerOptions(80, Sampling(1.0, seed=seed), schema=QUESTION, logprobs=logprobs, uses_draft=False)
        plain = [(piece.token, len(piece.likely)) for piece in taught.generate(ASKED, wish.but(guesses=0))]
        answer = taught.generate(ASKED, wish.but(guesses=4))
        assert [(piece.token, len(piece.likely)) for piece in answer] == plain
        accepted += answer.account.accepted_tokens
    assert accepted


def test_a_whole_answer_ends_behind_a_guess_too_where_the_model_has_no_end():
    source = find_language_model("tiny_lm")
    session = EXECUTOR.open(source.read_bytes(), SessionOptions(threads=1))
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    with LanguageModel(session, read_tokens(SHIPPED / "tokenizer.json"), 1024, end=[], begin=[0]) as model:
        for guesses in (0, 4):
            answer = model.generate('{"n": 4821}\n' * 3, schema=schema, guesses=guesses, exact=False, most_tokens=40)
            assert json.loads(answer.text())
            assert answer.account.reason == "end"
            assert bool(answer.account.accepted_tokens) == bool(guesses)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("logprobs", [None, 3])
def test_a_token_outside_the_form_never_comes_where_the_others_have_no_number(taught, logprobs, temperature):
    form = form_of(None, "(ab|cd)", "")
    assert form is not None
    asked = AnswerOptions(9, Sampling(temperature), regex=form.text, logprobs=logprobs)
    follower = Grammars(taught.tokenizer, taught.vocabulary, [0]).follower(form)
    writing = Writing(
        [1], Pieces(taught.tokenizer), asked, end=[0], capacity=90, begun_ns=0, tokenize_ns=0, follower=follower
    )
    allowed = follower.behind([]).allowed()
    logits = np.where(allowed, np.float32(np.nan), np.float32(1.0))
    token = writing.choose(logits)
    assert allowed[token]
    assert writing.take(token).likely == ()


def fits_person(text: str) -> bool:
    person = json.loads(text)
    is_named = list(person) == ["name", "age", "tags"] and len(person["name"]) <= 12
    return is_named and 0 <= person["age"] <= 120 and {*person["tags"]} <= {"red", "green", "blue"}


def test_forced_tokens_run_together(taught):
    answer = taught.generate("import os\n", schema=PERSON, most_tokens=200)
    text, account = answer.text(), answer.account
    assert fits_person(text)
    assert account.reason == "end"
    assert account.forced_tokens > 10
    assert account.runs <= len(account.token_at_ns) - account.forced_tokens
    assert account.computed_tokens <= account.prompt_tokens + len(account.token_at_ns)


def test_after_an_answer_in_a_form_the_cache_goes_on_as_ever(taught):
    prompt = taught.tokenizer.encode("import os\n")
    before = [piece.token for piece in taught.generate(prompt, most_tokens=12)]
    taught.generate(prompt, schema=PERSON, most_tokens=60).text()
    assert [piece.token for piece in taught.generate(prompt, most_tokens=12)] == before


def test_regular_expressions_grammars_and_any_object(taught):
    assert re.fullmatch(r"[a-z]{3,8}@[a-z]{1,9}\.(org|com)", said(taught, regex=r"[a-z]{3,8}@[a-z]{1,9}\.(org|com)"))
    assert said(taught, grammar='root ::= "yes" | "no"') in ("yes", "no")
    assert re.fullmatch(r"a+b", said(taught, grammar='start: /a{1,5}/ "b"'))
    assert isinstance(json.loads(said(taught, schema=True, seed=7, temperature=0.7)), dict)
    free = {**PERSON, "additionalProperties": {"type": "integer"}}
    assert said(taught, schema=json.dumps(free)).startswith('{"name": ')


def said(model: LanguageModel, **asked: Any) -> str:
    return model.generate("import os\n", **{"most_tokens": 300, **asked}).text()


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"schema": {"type": "objec"}}, "the schema cannot be kept to: .*objec"),
        ({"schema": {"type": "object", "properties": {"a": {"$ref": "#/none"}}}}, "the schema cannot be kept to"),
        ({"regex": "(a"}, "the regex cannot be kept to"),
        ({"grammar": 'root ::= "a" | b'}, "the grammar cannot be kept to: .*'b'"),
        ({"grammar": "start: NOTHING"}, "the grammar cannot be kept to: .*NOTHING"),
        ({"grammar": "root ::= root"}, "the grammar cannot be kept to: no text fits it"),
    ],
)
def test_a_form_that_is_none_is_refused_in_a_line(taught, asked, why):
    with pytest.raises(FormError, match=why) as refused:
        taught.generate("import", **asked)
    assert "\n" not in refused.value.problem


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"schema": "{"}, "is no JSON schema"),
        ({"schema": "[1]"}, "is no JSON schema: it must be an object"),
        ({"schema": {"maximum": float("nan")}}, "is no JSON schema"),
        ({"schema": True, "regex": "a"}, "one form: schema or regex, not both"),
        ({"grammar": "x" * (1 << 20 | 1)}, "longer than 1 MiB"),
    ],
)
def test_what_is_no_form_is_a_wrong_value(asked, why):
    with pytest.raises(ValueError, match=why):
        AnswerOptions(**asked)


def test_objects_hold_what_a_schema_names_unless_it_says_more():
    form = form_of(PERSON, "", "")
    assert form is not None
    assert json.loads(form.text)["additionalProperties"] is False
    joined = form_of({"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}, "", "")
    assert joined is not None
    assert "additionalProperties" not in joined.text
    assert form_of(None, "", "") is form_of(False, "", "") is None


def test_an_encoder_with_a_decoder_keeps_to_no_form(tmp_path):
    from exported_pairs import unpacked

    from edgeopt.runtime.decoding.encoder_decoder import open_encoder_decoder

    with (
        open_encoder_decoder(unpacked("marian", tmp_path / "marian"), 1) as opened,
        pytest.raises(UnsupportedError, match="keep to no schema or grammar"),
    ):
        opened.generate("a text", schema=True)
