"""Calls that a model may make or not (`tool_choice: auto`): the grammar, and the parts of an answer as it grows."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from served import serving

from edgeopt.recipes.texts.call_style import CallStyle, call_style
from edgeopt.runtime.serve.calls import Calls
from edgeopt.runtime.serve.free_calls import CallReader, MadeCall, grammar_of

MODEL = Path(__file__).parents[3] / "models" / "tiny_lm"
WEATHER = {
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"town": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["town", "days"],
    },
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": WEATHER},
    {"type": "function", "function": {"name": "time"}},
]
_SAID = "{{ message.content or message.tool_calls | tojson }}"
TURNS = "{% for message in messages %}{{ message.role }}: " + _SAID + "\n{% endfor %}"
TEMPLATES = {
    CallStyle.HERMES: '{% if tools %}<tool_call>\n{"name": ..., "arguments": ...}\n</tool_call>{% endif %}' + TURNS,
    CallStyle.MISTRAL: "{% if tools %}[AVAILABLE_TOOLS] or [TOOL_CALLS] [{{ tools | tojson }}]{% endif %}" + TURNS,
    CallStyle.LLAMA: 'Respond in the format {"name": function name, "parameters": dictionary of argument name and its '
    "value}. " + TURNS,
}
MARKS = {CallStyle.HERMES: ("<tool_call>", "</tool_call>"), CallStyle.MISTRAL: ("[TOOL_CALLS]",), CallStyle.LLAMA: ()}
FIRST = 1022
"""Rare tokens of the model, from here on, that become marks."""


def folder_with(folder: Path, style: CallStyle, *, is_special: bool) -> Path:
    """Return the small model with a template that writes calls, and marks among its tokens."""
    shutil.copytree(MODEL, folder, ignore=shutil.ignore_patterns("draft", "*.py", "*.md"))
    recipe = (folder / "recipe.toml").read_text("utf-8").replace('draft = "draft/model.onnx"\n', "")
    (folder / "recipe.toml").write_text(recipe, "utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATES[style], "utf-8")
    values = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    vocabulary = values["model"]["vocab"]
    names = {number: name for name, number in vocabulary.items()}
    for number, mark in enumerate(MARKS[style], FIRST):
        lost = names[number]
        del vocabulary[lost]
        vocabulary[mark] = number
        values["model"]["merges"] = [merge for merge in values["model"]["merges"] if _joined(merge) != lost]
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        values["added_tokens"].append({"id": number, "content": mark, "special": is_special, **flags})
    (folder / "tokenizer.json").write_text(json.dumps(values), "utf-8")
    return folder


def _joined(merge: Any) -> str:
    return "".join(merge if isinstance(merge, list) else merge.split(" "))


def asked(**more: Any) -> dict[str, Any]:
    said = [{"role": "user", "content": "def main"}]
    return {"model": "tiny_lm", "messages": said, "tools": TOOLS, "temperature": 0, "max_tokens": 60} | more


FORMS = [(CallStyle.HERMES, True), (CallStyle.HERMES, False), (CallStyle.MISTRAL, True)]


@pytest.fixture(scope="module", params=FORMS, ids=lambda form: f"{form[0]}-{'special' if form[1] else 'plain'}")
def server(request, tmp_path_factory):
    pytest.importorskip("llguidance", reason="the extra grammar is not installed")
    style, is_special = request.param
    if not is_special:
        pytest.importorskip("tokenizers", reason="the extra edgeopt[text] is not installed")
    folder = folder_with(tmp_path_factory.mktemp("model") / "lm", style, is_special=is_special)
    with serving(str(folder)) as running:
        yield running


def require_valid(call: Any) -> None:
    arguments = json.loads(call.function.arguments)
    assert call.type == "function"
    if call.function.name == "time":
        assert arguments == {}
        return
    assert call.function.name == "weather"
    assert arguments.keys() == {"town", "days"}
    assert arguments["town"] in ("Rome", "Oslo")
    assert 1 <= arguments["days"] <= 9


def test_the_model_may_speak_or_call(server):
    openai = pytest.importorskip("openai")
    calling = {"logit_bias": {str(FIRST): 100}, "parallel_tool_calls": False}  # the mark of a call is the likeliest
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0) as client:
        ask = client.chat.completions.create
        plain = ask(**asked(tools=openai.NOT_GIVEN)).choices[0]
        spoken = ask(**asked(tool_choice="auto")).choices[0]
        assert spoken.message.tool_calls is None
        assert spoken.message.content
        assert spoken.finish_reason == plain.finish_reason == "length"
        choice = ask(**asked(**calling)).choices[0]  # auto is what is meant where nothing is said
        (call,) = choice.message.tool_calls
        require_valid(call)
        assert (choice.message.content, choice.finish_reason) == (None, "tool_calls")
        parts = list(ask(**asked(**calling, stream=True)))
        (streamed,) = (delta for part in parts for delta in part.choices[0].delta.tool_calls or [])
        assert (streamed.index, streamed.function) == (0, type(streamed.function)(**call.function.model_dump()))
        assert "".join(part.choices[0].delta.content or "" for part in parts) == ""
        assert parts[-1].choices[0].finish_reason == "tool_calls"
        back = [
            *asked()["messages"],
            {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
            {"role": "tool", "tool_call_id": call.id, "content": "rain"},
        ]
        assert ask(**asked(messages=back, tool_choice="none")).choices[0].message.content
        pieces = [part.choices[0].delta.content or "" for part in ask(**asked(stream=True))]
        assert "".join(pieces) == spoken.message.content
        assert len([piece for piece in pieces if piece]) > 3  # text comes as it is written


def test_an_answer_may_make_several_calls_and_one_that_was_cut_is_none(server):
    calling = {"logit_bias": {str(FIRST): 100}, "max_tokens": 150}
    reply = server.json("/v1/chat/completions", asked(**calling))
    (whole,) = reply["choices"]
    made = whole["message"].get("tool_calls", [])
    status, _, data = server.ask("POST", "/v1/chat/completions", asked(**calling, stream=True))
    assert status == 200
    events = [json.loads(line[6:]) for line in data.decode().split("\n\n") if line.startswith("data: {")]
    deltas = [delta for event in events for delta in event["choices"][0]["delta"].get("tool_calls", [])]
    assert [delta["index"] for delta in deltas] == [*range(len(made))]
    assert [delta["function"] for delta in deltas] == [call["function"] for call in made]
    assert len(made) > 1 or not made  # a list that was cut holds none
    assert whole["finish_reason"] == ("tool_calls" if made and reply["edgeopt"]["ended_by"] == "end" else "length")


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"response_format": {"type": "json_object"}}, "an answer that calls a function"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls: true or false"),
    ],
)
def test_what_does_not_go_together_is_refused(server, more, told):
    status, _, data = server.ask("POST", "/v1/chat/completions", asked(**more))
    assert status == 400
    assert told in json.loads(data)["error"]["message"]


def test_a_call_of_llama_is_the_whole_answer(tmp_path):
    pytest.importorskip("llguidance", reason="the extra grammar is not installed")
    folder = folder_with(tmp_path / "lm", CallStyle.LLAMA, is_special=True)
    brace = json.loads((folder / "tokenizer.json").read_text("utf-8"))["model"]["vocab"]["{"]
    with serving(str(folder)) as server:
        spoken = server.json("/v1/chat/completions", asked())["choices"][0]
        assert spoken["message"]["content"]
        assert "tool_calls" not in spoken["message"]
        called = server.json("/v1/chat/completions", asked(logit_bias={str(brace): 100}))["choices"][0]
        (call,) = called["message"]["tool_calls"]
        assert called["finish_reason"] == "tool_calls"
        assert call["function"]["name"] in ("weather", "time")
        json.loads(call["function"]["arguments"])


def test_a_template_that_tells_no_way_of_calling_is_refused_by_name():
    with serving("tiny_lm") as server:
        status, _, data = server.ask("POST", "/v1/chat/completions", asked())
    assert status == 400
    assert "tool_choice: auto is not done for this model" in json.loads(data)["error"]["message"]


@pytest.mark.parametrize("style", TEMPLATES)
def test_a_template_tells_how_calls_are_written(style):
    assert call_style(TEMPLATES[style]) is style


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages }}",
        "<tool_call>\n<function=name>\n<parameter=a> arguments </tool_call>",  # Qwen3-Coder
        "<tool_call>name\n<arg_key>a</arg_key> arguments </tool_call>",  # GLM 4.5
        "[TOOL_CALLS]name[ARGS]{}",  # Mistral, later
    ],
)
def test_other_ways_of_calling_are_not_known(template):
    assert call_style(template) is None


ANSWERS = [
    (CallStyle.HERMES, 'Well. \n<tool_call>\n{"name": "a", "arguments": {"x": "</b"}}\n</tool_call>\n', ["Well.", "a"]),
    (CallStyle.HERMES, " 1 < 2 <tool_cal", [" 1 < 2 <tool_cal"]),
    (CallStyle.HERMES, 'x <tool_call>\n{"name": "a", "arg', ["x"]),
    (CallStyle.HERMES, "no call \n", ["no call \n"]),
    (CallStyle.MISTRAL, '[TOOL_CALLS] [{"name": "a", "arguments": {}}, {"name": "b", "arguments": {}}]', ["a", "b"]),
    (CallStyle.MISTRAL, 'Hm [TOOL_CALLS] [{"name": "a", ', ["Hm"]),
    (CallStyle.LLAMA, '{"name": "a", "parameters": {"x": 1}}', ["a"]),
    (CallStyle.LLAMA, 'text {"name": "a"} <tool_call>', ['text {"name": "a"} <tool_call>']),
    (CallStyle.LLAMA, '{"name": "a"', []),
]


@pytest.mark.parametrize(("style", "text", "expected"), ANSWERS, ids=lambda value: str(value)[:30])
@pytest.mark.parametrize("step", [1, 2, 7, 1000])
def test_an_answer_has_the_same_parts_however_it_comes(style, text, expected, step):
    reader, parts = CallReader(style), list[str | MadeCall]()
    for place in range(0, len(text), step):
        parts += reader.add(text[place : place + step])
    parts += reader.end()
    joined, previous = list[str](), None
    for part in parts:
        if isinstance(part, MadeCall):
            json.loads(part.arguments)
            joined.append(part.name)
        elif isinstance(previous, str):
            joined[-1] += part
        else:
            joined.append(part)
        previous = part
    assert joined == expected
    assert reader.made == sum(isinstance(part, MadeCall) for part in parts)


def test_definitions_of_parameters_are_found_where_their_references_look():
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"place": {"$ref": "#/$defs/Place"}},
        "$defs": {"Place": {"enum": ["here"]}},
    }
    calls = Calls(({"type": "function", "function": {"name": "go", "parameters": parameters}},), "", CallStyle.HERMES)
    assert calls.schema["$defs"] == parameters["$defs"]
    assert "$defs" not in calls.schema["properties"]["arguments"]
    assert '"$defs"' in grammar_of(calls, CallStyle.MISTRAL, {})
