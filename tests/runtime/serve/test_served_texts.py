"""Texts over HTTP as OpenAI's own client asks for them, and what becomes of those who ask badly."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event
from time import sleep
from typing import Any

import pytest
from served import Running, serving, until

from edgeopt.executors.onnxruntime.decoder import Decoder
from edgeopt.executors.onnxruntime.rows import SharedRows
from edgeopt.runtime.decoding.batching.batch import Batch
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.runtime.decoding.sampling import odds_of
from edgeopt.runtime.serve.holder import Holder
from edgeopt.runtime.serve.limits import Limits

TINY = Path(__file__).parents[3] / "models" / "tiny_lm" / "model.onnx"
PROMPT = "import os\nimport "
PLAIN = {"model": "tiny_lm", "prompt": PROMPT, "temperature": 0, "max_tokens": 24}
ENDLESS = {"model": "tiny_lm", "prompt": PROMPT, "max_tokens": 900, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def server():
    limits = Limits(body_bytes=200_000, waiting=3, stalled_s=2.0, slots=1)
    with serving("tiny_lm", limits) as running:
        yield running


@pytest.fixture(scope="module")
def model() -> Iterator[LanguageModel]:
    with open_language_model(TINY, 1)[0] as opened:
        yield opened


@pytest.fixture(scope="module")
def expected(model) -> str:
    return model.generate(PROMPT, AnswerOptions(24)).text()


@pytest.fixture(scope="module")
def client(server):
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0) as opened:
        yield opened


@pytest.fixture
def slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the model take 5 ms more a token: an answer of hundreds is not over before a test has looked."""
    step = Batch.step

    def late(self: Batch) -> None:
        sleep(0.005)
        step(self)

    monkeypatch.setattr(Batch, "step", late)


def answers_still(server: Running, expected: str) -> None:
    assert server.json("/v1/completions", PLAIN)["choices"][0]["text"] == expected
    until(lambda: server.json("/healthz")["running"] == 0)


def test_the_official_client_gets_and_streams_the_text_that_the_model_writes(server, expected):
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0) as client:
        assert [one.id for one in client.models.list()] == ["tiny_lm"]
        whole = client.completions.create(model="tiny_lm", prompt=PROMPT, temperature=0, max_tokens=24)
        assert whole.choices[0].text == expected
        assert whole.choices[0].finish_reason == "length"
        assert whole.usage.completion_tokens == 24
        parts = list(
            client.completions.create(
                model="tiny_lm",
                prompt=PROMPT,
                temperature=0,
                max_tokens=24,
                stream=True,
                stream_options={"include_usage": True},
            )
        )
        assert "".join(one.choices[0].text for one in parts if one.choices) == expected
        assert parts[-1].usage == whole.usage.model_copy(
            update={"prompt_tokens_details": parts[-1].usage.prompt_tokens_details}
        )
        assert parts[-2].choices[0].finish_reason == "length"
        asked = {"messages": [{"role": "user", "content": "def f(x):"}], "max_tokens": 9, "seed": 5, "stop": ["zz"]}
        said = client.chat.completions.create(model="tiny_lm", **asked)
        streamed = client.chat.completions.create(model="tiny_lm", stream=True, **asked)
        assert "".join(one.choices[0].delta.content or "" for one in streamed) == said.choices[0].message.content
        several = client.completions.create(
            model="tiny_lm", prompt=[PROMPT, "x = "], n=2, echo=True, max_tokens=3, temperature=0
        )
        assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
        assert [choice.text.startswith(PROMPT) for choice in several.choices] == [True, True, False, False]
        talks = client.chat.completions.create(model="tiny_lm", n=2, stream=True, **asked)
        assert {one.choices[0].index for one in talks} == {0, 1}
        with pytest.raises(openai.NotFoundError, match="no model named 'gpt-4'"):
            client.completions.create(model="gpt-4", prompt="a")
        with pytest.raises(openai.BadRequestError, match="nothing could follow") as error:
            client.completions.create(model="tiny_lm", prompt="word " * 3000)
        assert error.value.code == "context_length_exceeded"


TALK = [{"role": "user", "content": "def f(x):"}]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def test_answers_of_the_official_client_keep_to_a_schema_whole_streamed_and_at_once(server):
    openai = pytest.importorskip("openai")
    pytest.importorskip("llguidance")
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    asked = {"messages": TALK, "max_tokens": 99, "response_format": form}
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0) as client:
        whole = client.chat.completions.create(model="tiny_lm", temperature=0, **asked).choices[0]
        person = json.loads(whole.message.content)
        assert list(person) == ["name", "age"]
        assert 0 <= person["age"] <= 99
        assert whole.finish_reason == "stop"
        streamed = client.chat.completions.create(model="tiny_lm", temperature=0, stream=True, **asked)
        assert "".join(part.choices[0].delta.content or "" for part in streamed) == whole.message.content
        with ThreadPoolExecutor(4) as pool:
            said = pool.map(
                lambda seed: client.chat.completions.create(model="tiny_lm", temperature=1, seed=seed, **asked),
                range(8),
            )
            assert all(list(json.loads(answer.choices[0].message.content)) == ["name", "age"] for answer in said)
        wrong = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "objec"}}}
        with pytest.raises(openai.BadRequestError, match="the schema cannot be kept to") as error:
            client.chat.completions.create(model="tiny_lm", **asked | {"response_format": wrong})
        assert error.value.param == "response_format"


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a place.",
            "parameters": {
                "type": "object",
                "properties": {
                    "place": {"type": "string", "maxLength": 9},
                    "days": {"type": "integer", "minimum": 1, "maximum": 7},
                },
                "required": ["place", "days"],
            },
        },
    },
    {"type": "function", "function": {"name": "now"}},
]


def test_functions_are_called_by_name_or_one_of_them(server):
    openai = pytest.importorskip("openai")
    pytest.importorskip("llguidance")
    asked = {
        "model": "tiny_lm",
        "messages": [{"role": "user", "content": "def f(x):"}],
        "tools": TOOLS,
        "max_tokens": 200,
    }
    named = {"type": "function", "function": {"name": "weather"}}
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0) as client:
        choice = client.chat.completions.create(**asked, temperature=0, tool_choice=named).choices[0]
        (call,) = choice.message.tool_calls
        arguments = json.loads(call.function.arguments)
        assert (call.function.name, choice.message.content, choice.finish_reason) == ("weather", None, "tool_calls")
        assert list(arguments) == ["place", "days"]
        assert 1 <= arguments["days"] <= 7
        parts = list(client.chat.completions.create(**asked, temperature=0, tool_choice=named, stream=True))
        deltas = [delta for part in parts if part.choices for delta in part.choices[0].delta.tool_calls or []]
        assert deltas[0].function.name == "weather"
        assert "".join(delta.function.arguments for delta in deltas) == call.function.arguments
        assert parts[-1].choices[0].finish_reason == "tool_calls"
        for seed in range(4):
            drawn = {"temperature": 1, "seed": seed, "tool_choice": "required"}
            choice = client.chat.completions.create(**asked, **drawn).choices[0]
            (call,) = choice.message.tool_calls
            assert call.function.name in ("weather", "now")
            assert isinstance(json.loads(call.function.arguments), dict)
            (delta,) = [
                delta
                for part in client.chat.completions.create(**asked, **drawn, stream=True)
                for delta in part.choices[0].delta.tool_calls or []
            ]
            assert (delta.function.name, delta.function.arguments) == (call.function.name, call.function.arguments)
        back = [
            *asked["messages"],
            {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
            {"role": "tool", "tool_call_id": call.id, "content": "rain"},
        ]
        said = client.chat.completions.create(
            **asked | {"messages": back, "max_tokens": 4}, tool_choice="none"
        ).choices[0]
        assert said.message.tool_calls is None
        with pytest.raises(openai.BadRequestError, match="auto is not done for this model"):
            client.chat.completions.create(**asked)
        with pytest.raises(openai.BadRequestError, match="no function named 'x' is among tools"):
            client.chat.completions.create(**asked, tool_choice={"type": "function", "function": {"name": "x"}})
        with pytest.raises(openai.BadRequestError, match=r"tools\[0\].function.name"):
            client.chat.completions.create(**asked | {"tools": [{"type": "function", "function": {"name": "a b"}}]})


def test_the_official_client_allows_some_functions_alone(client):
    pytest.importorskip("llguidance")
    asked = {"model": "tiny_lm", "messages": TALK, "tools": TOOLS, "max_tokens": 200}
    own = [{"type": "function", "function": {"name": "now"}}]
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": own}}
    for seed in range(3):
        choice = client.chat.completions.create(**asked, seed=seed, tool_choice=allowed).choices[0]
        assert [call.function.name for call in choice.message.tool_calls] == ["now"]
    any_object = {"anyOf": [{"type": "string"}, {"type": "object", "properties": {}, "additionalProperties": False}]}
    tools = [{"type": "function", "function": {"name": "f", "parameters": any_object}}]
    choice = client.chat.completions.create(**asked | {"tools": tools}, tool_choice="required").choices[0]
    assert json.loads(choice.message.tool_calls[0].function.arguments) == {}


def _tool(name: str, **more: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": name, **more}}


@pytest.mark.parametrize(
    ("tools", "choice", "param", "told"),
    [
        ([_tool("w", parameters={"type": "string"})], "required", "tools[0].function.parameters", "of an object"),
        ([_tool("w"), _tool("v"), _tool("w")], "required", "tools[2].function.name", "two functions are named 'w'"),
        ([_tool("w")], "sometimes", "tool_choice", "none, required, "),
        ([_tool("w")], {"type": "allowed_tools"}, "tool_choice.allowed_tools", '"mode": "auto" or "required"'),
        (
            [_tool("w")],
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [_tool("v")]}},
            "tool_choice",
            "no function named 'v'",
        ),
        (
            [_tool("w")],
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [_tool("w")]}},
            "tool_choice",
            "auto is not done for this model",
        ),
        ([_tool("w", parameters={"const": 3})], "required", "tools", "the schema cannot be kept to"),
    ],
)
def test_functions_that_cannot_be_called_are_refused(client, tools, choice, param, told):
    openai = pytest.importorskip("openai")
    pytest.importorskip("llguidance")
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="tiny_lm", messages=TALK, tools=tools, tool_choice=choice)
    assert refused.value.param == param
    assert told in refused.value.body["message"]


def test_as_many_tokens_as_the_context_holds_and_an_answer_that_goes_on(client):
    asked = {"model": "tiny_lm", "temperature": 0}
    said = client.completions.create(**asked, prompt=[5] * 1000, max_tokens=-1)
    assert said.usage.total_tokens <= 1024
    assert said.usage.completion_tokens > 16
    talk = [*TALK, {"role": "assistant", "content": "return"}]
    chat = client.chat.completions.create(**asked, messages=talk, max_tokens=4).choices[0].message.content
    text = client.completions.create(**asked, prompt="User: def f(x):\nAssistant: return", max_tokens=4).choices[0].text
    assert chat == text
    other = client.chat.completions.create(**asked, messages=TALK, max_tokens=4).choices[0].message.content
    assert other != chat


def test_any_object_and_a_grammar_of_llama_cpp(client, server, expected):
    openai = pytest.importorskip("openai")
    pytest.importorskip("llguidance")
    asked = {"model": "tiny_lm", "messages": TALK, "max_tokens": 200}
    for seed in range(3):
        said = client.chat.completions.create(**asked, seed=seed, response_format={"type": "json_object"}).choices[0]
        assert isinstance(json.loads(said.message.content), dict)
    grammar = 'root ::= "yes" | "no"'
    said = client.chat.completions.create(**asked, extra_body={"grammar": grammar}).choices[0]
    assert said.message.content in ("yes", "no")
    loads = server.metric("edgeopt_loads_total")
    with pytest.raises(openai.BadRequestError, match="the grammar cannot be kept to") as refused:
        client.chat.completions.create(**asked, extra_body={"grammar": "root ::= ("})
    assert refused.value.param == "grammar"
    answers_still(server, expected)
    assert server.metric("edgeopt_loads_total") == loads, "what was wrong with a request opened the model anew"


def test_each_penalty_alone_is_that_of_the_model_itself(client, model, expected):
    asked = {"model": "tiny_lm", "prompt": PROMPT, "temperature": 0, "max_tokens": 24}
    frequency = client.completions.create(**asked, frequency_penalty=0.5).choices[0].text
    presence = client.completions.create(**asked, presence_penalty=1.5).choices[0].text
    assert frequency == model.generate(PROMPT, most_tokens=24, frequency_penalty=0.5).text()
    assert presence == model.generate(PROMPT, most_tokens=24, presence_penalty=1.5).text()
    assert len({expected, frequency, presence}) == 3


def test_the_likeliest_token_alone_is_drawn_where_min_p_says_so(client, expected):
    asked = {"model": "tiny_lm", "prompt": PROMPT, "temperature": 2, "seed": 3, "max_tokens": 24}
    free = client.completions.create(**asked).choices[0].text
    assert client.completions.create(**asked, extra_body={"min_p": 0}).choices[0].text == free != expected
    assert client.completions.create(**asked, extra_body={"min_p": 1}).choices[0].text == expected


def test_a_bias_gives_a_token_or_forbids_it(client, model, expected):
    asked = {"model": "tiny_lm", "prompt": PROMPT, "max_tokens": 5}
    (wanted,) = model.tokenizer.encode("\n")
    first = next(iter(model.generate(PROMPT, AnswerOptions(1)))).token
    biased = client.completions.create(**asked, temperature=1, logit_bias={str(wanted): 100}).choices[0].text
    assert biased == "\n" * 5
    odds = client.completions.create(**asked, temperature=0, logprobs=1, logit_bias={str(first): -100}).choices[0]
    name = model.tokenizer.token_bytes(first).decode()
    assert expected.startswith(name)
    assert name not in odds.logprobs.tokens


def test_tokens_of_a_prompt_have_the_probabilities_that_the_model_gives_them(client, model):
    prompt = "import os\nimport sys\n\ndef walk(top):" * 8  # more than one run of tokens
    tokens = model.tokenizer.encode(prompt)
    logits = model.logits([*model.begin_tokens, *tokens])[model.begins_with - 1 :]
    told = [odds_of(row, token, 1) for row, token in zip(logits, tokens, strict=False)]
    asked = {"model": "tiny_lm", "prompt": tokens, "temperature": 0, "echo": True, "logprobs": 1}
    alone = client.completions.create(**asked, max_tokens=0)
    (choice,) = alone.choices
    assert (choice.text, choice.finish_reason) == (prompt, "length")
    assert (alone.usage.prompt_tokens, alone.usage.completion_tokens) == (len(tokens) + model.begins_with, 0)
    odds = choice.logprobs
    assert "".join(odds.tokens) == prompt
    assert odds.token_logprobs == pytest.approx([each.logprob for each in told], abs=1e-4)
    assert [max(likely.values()) for likely in odds.top_logprobs] == pytest.approx(
        [each.likely[0][1] for each in told], abs=1e-4
    )
    assert [prompt[at:].startswith(token) for at, token in zip(odds.text_offset, odds.tokens, strict=True)]
    # as lm-evaluation-harness asks for it: one token more, which it leaves out
    more = client.completions.create(**asked, max_tokens=1)
    assert more.choices[0].logprobs.token_logprobs[:-1] == odds.token_logprobs
    assert more.choices[0].text == prompt + model.generate(prompt, AnswerOptions(1)).text()
    assert more.choices[0].logprobs.text_offset[-1] == len(prompt)
    parts = list(client.completions.create(**asked, max_tokens=1, stream=True))
    assert "".join(part.choices[0].text for part in parts) == more.choices[0].text
    streamed = [each for part in parts if part.choices[0].logprobs for each in part.choices[0].logprobs.token_logprobs]
    assert streamed == pytest.approx(more.choices[0].logprobs.token_logprobs, abs=1e-4)


def test_probabilities_penalties_and_biases_of_the_official_client(server, expected):
    openai = pytest.importorskip("openai")
    asked = {"model": "tiny_lm", "prompt": PROMPT, "temperature": 0, "max_tokens": 24}
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0) as client:
        told = client.completions.create(**asked, logprobs=3).choices[0]
        assert told.text == expected
        odds = told.logprobs
        assert "".join(odds.tokens) == expected
        assert len(odds.tokens) == 24
        assert all(logprob <= 0 for logprob in odds.token_logprobs)
        for token, logprob, likely in zip(odds.tokens, odds.token_logprobs, odds.top_logprobs, strict=True):
            assert max(likely.values()) == pytest.approx(likely[token]) == pytest.approx(logprob)
            assert 1 <= len(likely) <= 3
        assert [expected[at:].startswith(token) for at, token in zip(odds.text_offset, odds.tokens, strict=True)]
        parts = client.completions.create(**asked, logprobs=0, stream=True)
        streamed = [part.choices[0].logprobs for part in parts]
        assert [token for each in streamed if each for token in each.tokens] == odds.tokens
        chat = {"model": "tiny_lm", "messages": [{"role": "user", "content": "def f(x):"}], "max_tokens": 6}
        said = client.chat.completions.create(**chat, temperature=0, logprobs=True, top_logprobs=2).choices[0]
        entries = said.logprobs.content
        assert "".join(entry.token for entry in entries).startswith(said.message.content)
        assert all(bytes(entry.bytes).decode() == entry.token for entry in entries)
        assert all(len(entry.top_logprobs) == 2 for entry in entries)
        assert said.logprobs.content[0].logprob == pytest.approx(entries[0].top_logprobs[0].logprob)
        plain = client.chat.completions.create(**chat, temperature=0).choices[0]
        assert plain.logprobs is None
        with pytest.raises(openai.BadRequestError, match="belongs to logprobs"):
            client.chat.completions.create(**chat, top_logprobs=2)
        punished = client.completions.create(**asked | {"max_tokens": 60}, frequency_penalty=2, presence_penalty=2)
        free = client.completions.create(**asked | {"max_tokens": 60})
        assert len(set(punished.choices[0].text.split())) > len(set(free.choices[0].text.split()))


def test_text_ends_before_a_stop_and_sampling_is_as_asked(server, expected):
    stop = expected[4:7]
    cut = server.json("/v1/completions", PLAIN | {"stop": stop})["choices"][0]
    assert cut == {"index": 0, "logprobs": None, "text": expected[: expected.index(stop)], "finish_reason": "stop"}
    drawn = [server.json("/v1/completions", PLAIN | {"temperature": 1.5, "seed": seed}) for seed in (1, 1, 2)]
    first, again, other = (one["choices"][0]["text"] for one in drawn)
    assert first == again != other


WRONG = [
    (b"{", 400, "no JSON"),
    (b"\xff\xfe", 400, "no JSON"),
    (b"[" * 100_000, 400, "nested too deep"),
    (b'{"model": NaN}', 400, "NaN is no JSON"),
    (b"[]", 400, "no object"),
    ({"model": "tiny_lm"}, 400, "prompt: this field is missing"),
    (PLAIN | {"model": 3}, 400, "model: a text is needed"),
    (PLAIN | {"model": "other"}, 404, "only 'tiny_lm'"),
    (PLAIN | {"prompt": ""}, 200, ""),
    (PLAIN | {"prompt": []}, 400, "prompt: a text"),
    (PLAIN | {"prompt": ["a", "b"]}, 200, ""),
    (PLAIN | {"prompt": ["a", 5]}, 400, "prompt: a text"),
    (PLAIN | {"prompt": ["a"] * 65, "n": 2}, 400, "n: 65 prompts, 2 answers to each: this server gives 128 a request"),
    (PLAIN | {"prompt": ["a"] * 200}, 400, "prompt: 200 prompts, 1 answer to each"),
    (PLAIN | {"prompt": [99999]}, 400, "tokens that the model has not"),
    (PLAIN | {"prompt": [True]}, 400, "prompt: a text"),
    (PLAIN | {"prompt": "\ud800 a"}, 200, ""),
    (PLAIN | {"prompt": "a" * 150_000}, 400, "the context 1024"),
    (PLAIN | {"max_tokens": 0}, 400, "max_tokens: 0 writes nothing: echo: true repeats the prompt"),
    (PLAIN | {"max_tokens": 0, "max_completion_tokens": 5, "echo": True}, 400, "max_tokens: a whole number"),
    (PLAIN | {"max_tokens": -2}, 400, "max_tokens: a whole number"),
    (PLAIN | {"max_tokens": True}, 400, "max_tokens: a whole number"),
    (PLAIN | {"max_tokens": "9"}, 400, "max_tokens: a whole number"),
    (PLAIN | {"temperature": 3}, 400, "temperature: a number from 0 to 2"),
    (PLAIN | {"temperature": 10**400}, 400, "temperature: a number from 0 to 2"),
    (PLAIN | {"top_p": -1}, 400, "top_p: a number"),
    (PLAIN | {"stream": "yes"}, 400, "stream: true or false"),
    (PLAIN | {"stop": [""]}, 400, "stop: texts of 1"),
    (PLAIN | {"stop": 5}, 400, "stop: a text"),
    (PLAIN | {"n": 0}, 400, "n: a whole number from 1 to 128"),
    (PLAIN | {"best_of": 2}, 400, "best_of: n gives several answers"),
    (PLAIN | {"logprobs": 21}, 400, "logprobs: a whole number from 0 to 20"),
    (PLAIN | {"top_logprobs": 2}, 400, "top_logprobs: /v1/completions takes logprobs"),
    (PLAIN | {"logit_bias": {"x": 1}}, 400, "logit_bias: 'x' is no number of a token"),
    (PLAIN | {"logit_bias": {"5": 101}}, 400, "logit_bias.5: a number from -100 to 100"),
    (PLAIN | {"logit_bias": [1]}, 400, "logit_bias: an object"),
    (PLAIN | {"frequency_penalty": 3}, 400, "frequency_penalty: a number from -2 to 2"),
    (PLAIN | {"min_p": 2}, 400, "min_p: a number from 0 to 1"),
    (PLAIN | {"tools": [{}]}, 400, "tools: /v1/chat/completions calls functions"),
    (PLAIN | {"n_keep": 5}, 400, "n_keep: it belongs to context_shift"),
    (PLAIN | {"n_keep": 1024, "context_shift": True}, 400, "n_keep: 1024 first tokens fill the context of 1024"),
    (PLAIN | {"logit_bias": {"99999": 1}}, 400, "logit_bias: the model has no token 99999"),
    (PLAIN | {"suffix": "."}, 400, "suffix: not done here"),
    (PLAIN | {"response_format": {"type": "xml"}}, 400, "response_format: "),
    (PLAIN | {"response_format": "json"}, 400, "response_format: "),
    (PLAIN | {"response_format": {"type": "json_schema", "json_schema": {}}}, 400, "response_format.json_schema: "),
    (PLAIN | {"grammar": 5}, 400, "grammar: a grammar as text"),
    (PLAIN | {"grammar": "a", "response_format": {"type": "json_object"}}, 400, "grammar: an answer has one form"),
    (PLAIN | {"tempreature": 1}, 400, "unknown field 'tempreature'"),
    (PLAIN | {"messages": []}, 400, "/v1/completions takes prompt"),
    (PLAIN | {"n": 1, "logprobs": None, "user": "u", "presence_penalty": 0.0}, 200, ""),
    (b" " * 300_000, 413, "more than 200000 bytes"),
]


def events_of(data: bytes) -> list[dict[str, Any]]:
    lines = [line.removeprefix(b"data: ") for line in data.split(b"\n\n") if line]
    assert lines[-1] == b"[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_several_prompts_and_several_answers_are_choices_of_one_reply(server):
    more = {"temperature": 1.5, "seed": 7, "max_tokens": 6}
    alone = {
        (prompt, seed): server.json("/v1/completions", PLAIN | more | {"prompt": prompt, "seed": seed})
        for prompt in ("one", "two words")
        for seed in (7, 8)
    }
    body = PLAIN | more | {"prompt": ["one", "two words"], "n": 2}
    whole = server.json("/v1/completions", body)
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3]
    texts = [reply["choices"][0]["text"] for reply in alone.values()]
    assert [choice["text"] for choice in whole["choices"]] == texts, "as each alone, with a seed of its own"
    assert len(set(texts)) > 2
    counted = [alone[prompt, 7]["usage"]["prompt_tokens"] for prompt in ("one", "two words")]
    assert whole["usage"]["prompt_tokens"] == sum(counted), "a prompt counts once"
    assert whole["usage"]["completion_tokens"] == sum(r["usage"]["completion_tokens"] for r in alone.values())
    assert len(whole["edgeopt"]["choices"]) == 4
    streamed = events_of(server.ask("POST", "/v1/completions", body | {"stream": True})[2])
    said = dict.fromkeys(range(4), "")
    for each in streamed:
        (choice,) = each["choices"]
        said[choice["index"]] += choice["text"]
    assert [*said.values()] == texts
    assert sum(each["choices"][0]["finish_reason"] is not None for each in streamed) == 4


def test_a_prompt_is_repeated_before_its_answer(server):
    plain = server.json("/v1/completions", PLAIN)["choices"][0]["text"]
    echoed = server.json("/v1/completions", PLAIN | {"echo": True})["choices"][0]["text"]
    assert echoed == PLAIN["prompt"] + plain
    streamed = events_of(server.ask("POST", "/v1/completions", PLAIN | {"echo": True, "stream": True})[2])
    assert "".join(each["choices"][0]["text"] for each in streamed) == echoed


def test_answers_of_one_request_wait_for_slots_and_leave_with_their_client():
    with serving("tiny_lm", Limits(slots=2, waiting=1)) as server:
        whole = server.json("/v1/completions", PLAIN | {"n": 5, "max_tokens": 4})
        assert len(whole["choices"]) == 5
        long = PLAIN | {"n": 5, "max_tokens": 900, "stream": True, "ignore_eos": True}
        with server.raw(server.post("/v1/completions", long)) as leaving:
            assert leaving.recv(15) == b"HTTP/1.1 200 OK"
        until(lambda: server.json("/healthz")["running"] == 0)
        assert server.json("/v1/completions", PLAIN)["choices"]


@pytest.mark.parametrize(("body", "status", "told"), WRONG, ids=range(len(WRONG)))
def test_what_is_wrong_is_said_in_one_line(server, body, status, told):
    found, _, data = server.ask("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    assert found == status, data
    if status != 200:
        error = json.loads(data)["error"]
        assert told in error["message"]
        assert "\n" not in error["message"]
        assert error["type"] == "invalid_request_error"


def test_a_body_that_is_far_too_large_is_refused_before_it_comes(server):
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with server.raw(head + b"Content-Length: 99999999\r\n\r\n{") as sending:
        assert sending.recv(12) == b"HTTP/1.1 413"


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([], "a list of one message"),
        ("hello", "a list of one message"),
        ([{"role": "judge", "content": "a"}], "messages[0].role: one of system"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "reads no pictures"),
        ([{"role": "user"}], "messages[0].content: a text"),
    ],
)
def test_a_conversation_that_cannot_be_is_refused(server, messages, told):
    status, _, data = server.ask("POST", "/v1/chat/completions", {"model": "tiny_lm", "messages": messages})
    assert status == 400
    assert told in json.loads(data)["error"]["message"]


def test_other_paths_methods_kinds_and_hosts_are_refused(server):
    assert server.ask("GET", "/v1/nothing")[0] == 404
    status, _, data = server.ask("POST", "/v1/responses", {"model": "tiny_lm", "input": "a"})
    assert (status, json.loads(data)["error"]["message"].split(": ")[1]) == (404, "ask /v1/chat/completions")
    assert server.ask("GET", "/v1/completions")[0] == 405
    assert server.ask("POST", "/v1/completions", b"{}", {"Content-Type": "text/plain"})[0] == 415
    assert server.ask("GET", "/v1/models/other")[0] == 404
    assert server.json("/v1/models/tiny_lm")["id"] == "tiny_lm"
    status, _, data = server.ask("GET", "/healthz", headers={"Host": "attacker.example"})
    assert (status, json.loads(data)["error"]["code"]) == (403, "wrong_host")


def test_an_answer_whose_client_leaves_ends_and_nothing_is_lost_for_others(server, slowly, expected):
    lost = server.metric('edgeopt_frames_total{outcome="dropped"}')
    with server.raw(server.post("/v1/completions", ENDLESS)) as streaming:
        assert streaming.recv(15) == b"HTTP/1.1 200 OK"
        behind = server.raw(server.post("/v1/completions", ENDLESS | {"stream": False}))  # it waits in the line
        until(lambda: server.json("/healthz")["waiting"] == 1)
        behind.close()
        until(lambda: server.json("/healthz")["waiting"] == 0)
    answers_still(server, expected)
    assert server.metric('edgeopt_frames_total{outcome="dropped"}') == lost + 2
    assert server.metric("edgeopt_waiting_frames") == 0


def test_too_many_who_wait_are_refused_and_the_others_get_their_answers(server, slowly, expected):
    body = server.post("/v1/completions", ENDLESS | {"max_tokens": 60})
    waiting = [server.raw(body) for _ in range(4)]
    until(lambda: server.json("/healthz")["waiting"] == 3)
    status, headers, data = server.ask("POST", "/v1/completions", PLAIN)
    assert (status, headers["retry-after"]) == (429, "1")
    assert json.loads(data)["error"]["type"] == "rate_limit_error"
    for one in waiting:
        with one, one.makefile("rb") as reply:
            events = []
            while not events or b"[DONE]" not in events[-1]:
                events.append(reply.readline())
            assert events[0] == b"HTTP/1.1 200 OK\r\n"
    answers_still(server, expected)


def test_who_reads_or_sends_nothing_is_cut_off_and_holds_nobody_up(server, expected):
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.connect(server.place)
    slow.sendall(server.post("/v1/completions", ENDLESS))
    half = server.raw(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Le")
    body = server.raw(server.post("/v1/completions", PLAIN)[:-5])
    with closing(slow), half, body:
        until(lambda: server.metric('edgeopt_frames_total{outcome="served"}') > 0)
        answers_still(server, expected)
        assert b"408" in body.recv(100)
        assert half.recv(1) == b""  # closed by the server


def test_clients_who_share_the_model_get_what_each_would_get_alone(expected):
    with serving("tiny_lm", Limits(slots=3)) as server, ThreadPoolExecutor(8) as pool:
        prompts = [PROMPT, "def f(x):", "class A"] * 3
        alone = {one: server.json("/v1/completions", PLAIN | {"prompt": one}) for one in prompts[:3]}
        found = list(pool.map(lambda one: server.json("/v1/completions", PLAIN | {"prompt": one}), prompts))
        assert [one["choices"] for one in found] == [alone[one]["choices"] for one in prompts]
        assert found[0]["choices"][0]["text"] == expected
        assert server.metric('edgeopt_tokens_total{kind="output"}') == 24 * 12


@pytest.mark.parametrize("guesses", [None, 2])
def test_a_request_alone_runs_its_prompt_in_the_parts_that_the_model_was_made_for(monkeypatch, guesses):
    counts, decoder, rows = list[int](), Decoder.run, SharedRows.run

    def in_decoder(self: Decoder, tokens: list[int], last: int = 0) -> object:
        counts.append(len(tokens))
        return decoder(self, tokens, last)

    def in_rows(self: SharedRows, row: int, tokens: list[int], *, is_prompt: bool = False) -> object:
        counts.append(len(tokens))
        return rows(self, row, tokens, is_prompt=is_prompt)

    with serving("tiny_lm", Limits(slots=1 if guesses else 2), guesses=guesses) as running:
        monkeypatch.setattr(Decoder, "run", in_decoder)
        monkeypatch.setattr(SharedRows, "run", in_rows)
        asked = {**PLAIN, "prompt": list(range(300, 500)), "max_tokens": 2, "ignore_eos": True}
        running.json("/v1/completions", asked)
    assert counts[0] >= 200


def test_a_model_that_nobody_asks_frees_its_memory_and_comes_back(expected):
    with serving("tiny_lm", keep_s=0.3) as server:
        until(lambda: not server.json("/healthz")["loaded"])
        answers_still(server, expected)
        assert server.metric("edgeopt_loads_total") == 2


def test_time_until_the_model_is_loaded_again_is_time_in_the_queue(monkeypatch):
    held = Holder.held

    @contextmanager
    def slow(self: Holder) -> Iterator[object]:
        with held(self) as model:
            sleep(0.2)  # as opening a large one
            yield model

    with serving("tiny_lm") as server:
        monkeypatch.setattr(Holder, "held", slow)
        told = server.json("/v1/completions", {**PLAIN, "max_tokens": 2})["edgeopt"]
        assert told["queue_ms"] >= 200
        assert server.metric("edgeopt_time_to_first_token_seconds_sum") >= 0.2


def test_time_runs_out_for_an_answer_and_what_was_written_is_kept(slowly):
    with serving("tiny_lm", Limits(seconds=0.3)) as server:
        found = server.json("/v1/completions", ENDLESS | {"stream": False})
        assert found["edgeopt"]["ended_by"] == "time"
        assert found["choices"][0]["finish_reason"] == "length"
        assert 0 < found["usage"]["completion_tokens"] < 900


def test_the_time_limit_binds_while_nothing_arrives(monkeypatch):
    goes_on, run = Event(), SharedRows.run

    def hang(self: SharedRows, row: int, tokens: list[int], **told: bool):
        assert goes_on.wait(30)
        return run(self, row, tokens, **told)

    with serving("tiny_lm", Limits(seconds=0.2, slots=1)) as server:
        monkeypatch.setattr(SharedRows, "run", hang)
        status, _, data = server.ask("POST", "/v1/completions", PLAIN)
        assert (status, json.loads(data)["error"]["code"]) == (503, "time_limit")
        status, _, data = server.ask("POST", "/v1/completions", PLAIN | {"stream": True})
        assert (status, json.loads(data)["error"]["code"]) == (503, "queue_timeout")  # the run is not over yet
        goes_on.set()
        until(lambda: server.json("/healthz")["running"] == 0)
        until(lambda: server.ask("POST", "/v1/completions", PLAIN | {"max_tokens": 1})[0] == 200)


def test_the_end_waits_for_answers_on_their_way(slowly):
    with serving("tiny_lm") as server:
        with server.raw(server.post("/v1/completions", ENDLESS | {"max_tokens": 100})) as streaming:
            assert streaming.recv(15) == b"HTTP/1.1 200 OK"
            server.stop()
            said = b"".join(iter(lambda: streaming.recv(65536), b""))
        assert said.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert server.result[0].answered == 1


def test_a_trace_continues_the_callers(monkeypatch, expected):
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    provider, memory = sdk.TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    monkeypatch.setattr("opentelemetry.trace.get_tracer_provider", lambda: provider)
    caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with serving("tiny_lm") as server:
        status, _, _ = server.ask("POST", "/v1/completions", PLAIN, {"traceparent": caller})
        assert status == 200
        until(lambda: len(memory.get_finished_spans()) == 4)
    *parts, whole = memory.get_finished_spans()
    assert format(whole.context.trace_id, "032x") == caller.split("-")[1]
    assert format(whole.parent.span_id, "016x") == caller.split("-")[2]
    assert whole.attributes["gen_ai.usage.output_tokens"] == 24
    assert [one.name for one in parts] == ["queue", "prefill", "decode"]
    assert all(one.parent.span_id == whole.context.span_id for one in parts)
    assert parts[0].start_time == whole.start_time
    assert parts[-1].end_time <= whole.end_time
