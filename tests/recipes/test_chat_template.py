"""Conversations as a model's own template writes them, or in a plain form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

import pytest

from edgeopt.errors import InvalidFileError
from edgeopt.recipes.texts.chat_template import ChatMessage, plain_text_of, read_chat_template
from edgeopt.recipes.texts.conversation import ConversationReader

CHATML = """{%- for message in messages %}
    {%- if message['role'] == 'system' and not loop.first %}
        {{- raise_exception('a system message stands first') }}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content | trim + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""
TALK = (ChatMessage("system", "Be brief."), ChatMessage("user", " 1 + 1? "))


def test_without_a_template_a_talk_is_plain():
    assert plain_text_of(TALK) == "System: Be brief.\nUser:  1 + 1? \nAssistant:"


def test_an_answer_goes_on_behind_the_words_of_the_assistant():
    begun = (*TALK, ChatMessage("assistant", "It is"))
    assert plain_text_of(begun) == "System: Be brief.\nUser:  1 + 1? \nAssistant: It is"


def test_functions_and_what_they_returned_are_written_without_a_template():
    tools = [{"type": "function", "function": {"name": "add"}}]
    call = ChatMessage("assistant", "", {"tool_calls": [{"function": {"name": "add"}}]})
    said = plain_text_of((*TALK[1:], call, ChatMessage("tool", "2")), tools)
    assert said == (
        'Function: {"name": "add"}\nUser:  1 + 1? \nAssistant: [{"function": {"name": "add"}}]\nFunction: 2\nAssistant:'
    )


def test_functions_that_the_template_leaves_out_stand_in_the_words_of_the_user(tmp_path: Path):
    pytest.importorskip("jinja2")
    source = "{% for m in messages %}|{{ m.role }}:{{ m.content }}{% endfor %}"
    (tmp_path / "chat_template.jinja").write_text(source, "utf-8")

    class Letters:
        special: ClassVar[dict[str, int]] = {}

    tools = [{"type": "function", "function": {"name": "add"}}]
    call = ChatMessage("assistant", "", {"tool_calls": [{"function": {"name": "add"}}]})
    talk = (*TALK, call, ChatMessage("tool", "2"))
    reader = ConversationReader(Letters(), (), read_chat_template(tmp_path))
    assert reader.text_of(talk, tools) == (
        '|system:Be brief.|user:Function: {"name": "add"}\n\n 1 + 1? |assistant:[{"function": {"name": "add"}}]|tool:2'
    )
    assert reader.text_of(TALK) == "|system:Be brief.|user: 1 + 1? "
    said = '|assistant:[{"function": {"name": "add"}}]|tool:2'
    assert reader.text_of(talk) == "|system:Be brief.|user: 1 + 1? " + said, "calls are told without functions too"
    assert reader.text_of(TALK[:1], tools) == '|system:Function: {"name": "add"}\n\nBe brief.', "no user speaks"
    (tmp_path / "chat_template.jinja").write_text("{{ tools | length }}" + source, "utf-8")
    reader = ConversationReader(Letters(), (), read_chat_template(tmp_path))
    assert reader.text_of(TALK, tools) == "1|system:Be brief.|user: 1 + 1? "
    calls = "{% for call in m.tool_calls or [] %}<{{ call.function.name }}>{% endfor %}"
    (tmp_path / "chat_template.jinja").write_text(source.replace("{% endfor %}", calls + "{% endfor %}"), "utf-8")
    reader = ConversationReader(Letters(), (), read_chat_template(tmp_path))
    assert reader.text_of(talk, tools) == (
        '|system:Be brief.|user:Function: {"name": "add"}\n\n 1 + 1? |assistant:<add>|tool:2'
    ), "a call that the template writes is told once"


def test_a_template_gets_functions_and_calls(tmp_path: Path):
    pytest.importorskip("jinja2")
    source = "{{ tools | tojson }}{% for m in messages %}|{{ m.role }}:{{ m.content }}{{ m.tool_call_id }}{% endfor %}"
    (tmp_path / "chat_template.jinja").write_text(source, "utf-8")
    template = read_chat_template(tmp_path)
    assert template is not None
    talk = (ChatMessage("user", "a"), ChatMessage("tool", "2", {"tool_call_id": "c1"}))
    assert template.text_of(talk, [{"name": "add"}]) == '[{"name": "add"}]|user:a|tool:2c1'


def test_arguments_that_a_client_sends_as_json_are_an_object_for_the_template(tmp_path: Path):
    pytest.importorskip("jinja2")
    source = "{% for call in messages[0].tool_calls %}{{ call.function.arguments | tojson }};{% endfor %}"
    (tmp_path / "chat_template.jinja").write_text(source, "utf-8")
    template = read_chat_template(tmp_path)
    assert template is not None
    calls = [{"function": {"name": "add", "arguments": arguments}} for arguments in ('{"a": 1}', "cut {", '"b"')]
    told = template.text_of((ChatMessage("assistant", "", {"tool_calls": calls}),))
    assert told == '{"a": 1};"cut {";"\\"b\\"";'


@pytest.mark.parametrize("place", ["file", "settings", "named"])
def test_the_models_own_template_writes_it(tmp_path: Path, place: str):
    pytest.importorskip("jinja2")
    text = "{{ bos_token }}" + CHATML
    settings = {"bos_token": {"content": "<s>"}}
    if place == "file":
        (tmp_path / "chat_template.jinja").write_text(text, "utf-8")
    settings |= {"chat_template": text} if place == "settings" else {}
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": text}]
    settings |= {"chat_template": named} if place == "named" else {}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    template = read_chat_template(tmp_path)
    assert template is not None
    expected = "<s><|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n1 + 1?<|im_end|>\n<|im_start|>assistant\n"
    assert template.text_of(TALK) == expected
    with pytest.raises(ValueError, match="a system message stands first"):
        template.text_of(TALK[::-1])


def test_it_writes_what_transformers_writes(tmp_path: Path):
    pytest.importorskip("jinja2")
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    plain = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(tokenizers.models.BPE()), bos_token="<s>", chat_template=CHATML
    )
    (tmp_path / "chat_template.jinja").write_text(CHATML, "utf-8")
    template = read_chat_template(tmp_path)
    assert template is not None
    talk = [{"role": one.role, "content": one.content} for one in TALK]
    expected = plain.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
    assert template.text_of(TALK) == expected
    begun = [*talk, {"role": "assistant", "content": "It is"}]
    expected = plain.apply_chat_template(begun, tokenize=False, continue_final_message=True)
    assert template.text_of((*TALK, ChatMessage("assistant", "It is"))) == expected


def test_a_folder_has_none_or_a_damaged_one(tmp_path: Path):
    pytest.importorskip("jinja2")
    assert read_chat_template(tmp_path) is None
    (tmp_path / "chat_template.jinja").write_text("{% if %}", "utf-8")
    with pytest.raises(InvalidFileError, match="is no chat template"):
        read_chat_template(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    (tmp_path / "tokenizer_config.json").write_text("{", "utf-8")
    with pytest.raises(InvalidFileError, match="is no JSON"):
        read_chat_template(tmp_path)


def test_a_template_reaches_nothing_of_the_program(tmp_path: Path):
    pytest.importorskip("jinja2")
    (tmp_path / "chat_template.jinja").write_text("{{ messages.__class__.__mro__ }}", "utf-8")
    template = read_chat_template(tmp_path)
    assert template is not None
    with pytest.raises(ValueError, match="unsafe"):
        template.text_of(TALK)


HOSTILE = """{%- set case, letter = messages[0].content, messages[0].role[:1] -%}
{%- if case == 'loops' -%}{% for i in range(99999) %}{% for k in range(99999) %}{% endfor %}{% endfor %}
{%- elif case == 'time' -%}{{ strftime_now(('%s' + letter) * 1000000) | length }}
{%- elif case == 'memory' -%}{{ (letter * 99999999) * 999 }}
{%- elif case == 'length' -%}{{ letter * 20000000 }}
{%- elif case == 'circle' -%}{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}
{%- else -%}well{%- endif -%}"""


def test_a_template_that_never_ends_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The child ends at most, and the next conversation is written by another one."""
    pytest.importorskip("jinja2")
    monkeypatch.setattr("edgeopt.recipes.texts.chat_template._SECONDS", 1.0)
    (tmp_path / "chat_template.jinja").write_text(HOSTILE, "utf-8")
    template = read_chat_template(tmp_path)
    assert template is not None
    cases = {
        "loops": "takes more than 1 s",
        "time": "the chat template takes|it writes|codec",
        "memory": "too much memory",
        "length": "it writes 20000000 characters",
        "circle": "nested too deeply",
    }
    for case, told in cases.items():
        with pytest.raises(ValueError, match=told):
            template.text_of([ChatMessage("user", case)])
        assert template.text_of(TALK) == "well"


@pytest.mark.parametrize("nested", ["{{ " + "(" * 3000 + ")" * 3000 + " }}"])
def test_a_template_of_brackets_is_one_line(tmp_path: Path, nested: str):
    pytest.importorskip("jinja2")
    (tmp_path / "chat_template.jinja").write_text(nested, "utf-8")
    with pytest.raises(InvalidFileError, match="is no chat template: it is nested too deeply") as refused:
        read_chat_template(tmp_path)
    assert len(str(refused.value)) < 600
