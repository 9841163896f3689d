"""A conversation as one text: by the template that came with the model, else in a plain form.

Source: Hugging Face's `chat_template`, a template of Jinja in `chat_template.jinja` or `tokenizer_config.json`. A
template is a program that somebody else wrote: it runs in a child (`chat_rendering.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from edgeopt.errors import InvalidFileError
from edgeopt.recipes.texts.call_style import CallStyle, call_style
from edgeopt.system.declared.optional import require
from edgeopt.system.disk.files import read_text
from edgeopt.system.disk.links import files_of
from edgeopt.system.processes.guarded import Guarded, GuardError

TEMPLATE_FILE: Final = "chat_template.jinja"
SETTINGS_FILE: Final = "tokenizer_config.json"
CHAT_FILES: Final = (TEMPLATE_FILE, SETTINGS_FILE)
"""Files that may lie beside a tokenizer."""
_REMEDY: Final = "copy it from where the model came from"
_CHILD: Final = Guarded("edgeopt.recipes.texts.chat_rendering", "the chat template")
_SECONDS: Final = 5.0
"""Seconds for one conversation: a template takes a millisecond."""
_NAMES: Final = {"system": "System", "user": "User", "assistant": "Assistant", "tool": "Function"}
PLAIN_STOP: Final = "\nUser:"
"""Where an answer in the plain form is over: the model begins to write the user's part."""


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn of a conversation."""

    role: str
    """`system`, `user`, `assistant`, or `tool`: what a function returned."""
    content: str
    more: Mapping[str, Any] = field(default_factory=dict)
    """Fields of calls, for templates that write them: `tool_calls`, `tool_call_id`, `name`."""
    parts: tuple[str | None, ...] = ()
    """Texts with pictures between them, each None, where there are any; `content` is the texts alone."""
    pictures: tuple[bytes, ...] = ()
    """Files of these pictures, in their order, where they came with the turn."""


class ChatTemplate:
    """Writes conversations as the model learned them."""

    def __init__(self, source: str, told: str, special: Mapping[str, str]) -> None:
        """Read a template.

        Args:
            source: Of Jinja.
            told: Where it came from.
            special: Texts that it may name: `bos_token`, `eos_token`.

        Raises:
            MissingDependencyError: If jinja2 is not installed.
            InvalidFileError: If it is no template.
        """
        require("jinja2", extra="serve", purpose="a chat template")
        self._source, self._special = source, dict(special)
        try:
            _CHILD.ask({"source": source}, seconds=_SECONDS)
        except GuardError as error:
            raise InvalidFileError(f"{told} is no chat template: {error}", remedy=_REMEDY) from error

    @property
    def call_style(self) -> CallStyle | None:
        """How the model writes calls among other text; None: in no way that is known."""
        return call_style(self._source)

    def text_of(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        in_parts: bool = False,
    ) -> str:
        """Return the conversation, at its end what an answer begins behind.

        Args:
            messages: Its turns; where the last is the assistant's, the answer goes on behind its words.
            tools: Functions that the answer may call, as OpenAI's clients describe them.
            in_parts: Whether each turn is a list of texts and pictures, as models that see have it.

        Raises:
            ValueError: If the template does not take it, or takes too much time or memory.
        """
        plain = [
            {
                "role": message.role,
                "content": _parts_of(message) if in_parts else message.content,
                **_read_arguments(message.more),
            }
            for message in messages
        ]
        question = {"source": self._source, "messages": plain, "special": self._special, "tools": list(tools)}
        try:
            return str(_CHILD.ask(question, seconds=_SECONDS)["text"])
        except GuardError as error:
            raise ValueError(f"the model's chat template does not take it: {error}") from error


def _parts_of(message: ChatMessage) -> list[dict[str, str]]:
    """Return a turn as Hugging Face's templates of models that see take it."""
    parts = message.parts or ((message.content,) if message.content else ())
    return [{"type": "image"} if part is None else {"type": "text", "text": part} for part in parts]


def _read_arguments(more: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message's fields with the arguments of its calls as objects: clients send JSON, templates write it."""
    calls = more.get("tool_calls")
    return {**more, "tool_calls": list(map(_read_call, calls))} if isinstance(calls, list) else more


def _read_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}} if isinstance(arguments, dict) else call


def plain_text_of(messages: Sequence[ChatMessage], tools: Sequence[Mapping[str, Any]] = (), *, mark: str = "") -> str:
    """Return a conversation without a template: `System: ...`, `User: ...`; at the end `Assistant:`, or its words.

    Args:
        messages: Its turns.
        tools: Functions that the answer may call.
        mark: The text at whose places pictures stand.
    """
    messages = [
        replace(message, content="".join(mark if part is None else part for part in message.parts))
        if message.parts
        else message
        for message in messages
    ]
    parts = [*_functions_of(tools), *map(_plain_turn, messages)]
    is_begun = bool(messages) and messages[-1].role == "assistant" and not messages[-1].more
    return "\n".join(parts if is_begun else [*parts, "Assistant:"])


def _functions_of(tools: Sequence[Mapping[str, Any]]) -> list[str]:
    return [f"Function: {json.dumps(tool.get('function'), ensure_ascii=False)}" for tool in tools]


def with_functions(
    messages: Sequence[ChatMessage], tools: Sequence[Mapping[str, Any]], *, calls: bool
) -> list[ChatMessage]:
    """Return a conversation whose words tell of functions or calls, for a template that leaves them out.

    Args:
        messages: Its turns.
        tools: Functions that the answer may call: they stand before the first words of the user, or before all
            where the user says nothing. Empty: the template writes them, or there are none.
        calls: Whether earlier calls stand in the words of their turns.
    """
    turns = list(messages)
    if calls:
        turns = [replace(turn, content=_plain(turn), more=without_calls(turn.more)) for turn in turns]
    if tools and turns:
        first = next((i for i, turn in enumerate(turns) if turn.role == "user"), 0)
        before = "\n".join(_functions_of(tools)) + "\n\n"
        parts = (before, *turns[first].parts) if turns[first].parts else ()
        turns[first] = replace(turns[first], content=before + turns[first].content, parts=parts)
    return turns


def without_calls(more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a turn without its calls."""
    return {name: value for name, value in more.items() if name != "tool_calls"}


def _plain_turn(message: ChatMessage) -> str:
    """Return a turn; an answer that the model began with a blank stands as it wrote it, and its cache holds."""
    said = _plain(message)
    is_begun = message.role == "assistant" and said[:1].isspace()
    return f"{_NAMES[message.role]}:{'' if is_begun else ' '}{said}"


def _plain(message: ChatMessage) -> str:
    """Return what a turn says, its calls too."""
    calls = message.more.get("tool_calls")
    return " ".join(filter(None, (message.content, json.dumps(calls, ensure_ascii=False) if calls else "")))


def chat_files(tokenizer: Path | None) -> list[Path]:
    """Return the files beside a tokenizer that say how conversations are written."""
    return [] if tokenizer is None else files_of(tokenizer.parent, CHAT_FILES, tokenizer)


def read_chat_template(folder: Path) -> ChatTemplate | None:
    """Return the template of a tokenizer's folder; None where it has none.

    Raises:
        InvalidFileError: If a file there is damaged.
        MissingDependencyError: If there is one, and jinja2 is not installed.
    """
    settings = read_settings(folder / SETTINGS_FILE)
    file = folder / TEMPLATE_FILE
    told = settings.get("chat_template")
    if isinstance(told, list):  # several, by name
        named = {value.get("name"): value.get("template") for value in told if isinstance(value, dict)}
        told = named.get("default") or next(iter(named.values()), None)
    has_file = bool(files_of(folder, (TEMPLATE_FILE,)))
    source = read_text(file, remedy=_REMEDY) if has_file else told
    if not isinstance(source, str) or not source.strip():
        return None
    special = {name: _token(settings.get(name)) for name in ("bos_token", "eos_token", "unk_token", "pad_token")}
    return ChatTemplate(source, str(file if has_file else folder / SETTINGS_FILE), special)


def read_settings(file: Path) -> Mapping[str, Any]:
    """Return what a tokenizer's settings say, whose numbers may be of any size; empty where there is no such file.

    Raises:
        InvalidFileError: If it is no JSON.
    """
    if not file.is_file():
        return {}
    try:
        values = json.loads(read_text(file, remedy=_REMEDY))
    except (ValueError, RecursionError) as error:
        raise InvalidFileError(f"{file} is no JSON", remedy=_REMEDY) from error
    return values if isinstance(values, dict) else {}


def _token(value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""
