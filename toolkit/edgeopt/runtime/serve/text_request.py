"""The request of an OpenAI client, read from its body.

Source: OpenAI API reference, `POST /v1/completions` and `POST /v1/chat/completions`. What changes an answer and is not
done here is refused by name; what changes none (`user`, `metadata`) is passed over.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from edgeopt.recipes.texts.call_style import CallStyle
from edgeopt.recipes.texts.chat_template import ChatMessage
from edgeopt.runtime.decoding.generation import MOST_LOGPROBS, AnswerOptions
from edgeopt.runtime.decoding.sampling import Sampling, sampling_options
from edgeopt.runtime.serve.calls import Calls, read_calls
from edgeopt.runtime.serve.limits import Limits
from edgeopt.runtime.serve.message_content import ContentReader
from edgeopt.runtime.serve.refused import RefusedError, wrong
from edgeopt.system.declared.options import Syntax
from edgeopt.system.text import plural, short

_COMPLETION_TOKENS: Final = 16
"""OpenAI's default of a completion; a chat has none."""
_LENGTHS: Final = ("max_completion_tokens", "max_tokens")
"""-1 is as many as the context holds, as llama.cpp's server has it."""
_ROLES: Final = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_OF_CALLS: Final[Mapping[str, type]] = {"tool_calls": list, "tool_call_id": str, "name": str}
"""Fields of a message that templates of models with functions write."""
Prompt = str | tuple[int, ...]
_MOST_CHOICES: Final = 128
"""OpenAI's limit of `n`."""
_MOST_STOPS: Final = 16
_LONGEST_STOP: Final = 1000
_MOST_BIASES: Final = 1024
_LONGEST_NUMBER: Final = 9
_WITHOUT: Final[tuple[Any, ...]] = (None, False, 0, "", [], {})
_NOT_DONE: Final[Mapping[str, tuple[Any, ...]]] = {
    "best_of": (None, 1),
    "modalities": (None, ["text"]),
    "function_call": (None, "none", "auto"),
    **dict.fromkeys(
        (
            "suffix",
            "functions",
            "audio",
            "prediction",
            "reasoning_effort",
            "verbosity",
            "web_search_options",
        ),
        _WITHOUT,
    ),
}
"""Field -> values that ask for nothing."""
_PASSED_OVER: Final = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "parallel_tool_calls",
    }
)
_TAKEN: Final = frozenset(
    {
        "model",
        "n",
        "echo",
        "prompt",
        "messages",
        "max_tokens",
        "max_completion_tokens",
        "context_shift",
        "n_keep",
        "stop",
        "stream",
        "stream_options",
        "ignore_eos",
        "priority",
        "response_format",
        "grammar",
        "logit_bias",
        "logprobs",
        "top_logprobs",
        "tools",
        "tool_choice",
        *sampling_options(),
    }
)
_MOST_TEMPERATURE: Final = 2
"""OpenAI's limit; `Sampling` takes more."""


@dataclass(frozen=True, slots=True)
class TextRequest:
    """One request."""

    model: str
    prompts: tuple[Prompt, ...]
    """Texts, or their tokens; one that is empty in a chat."""
    messages: tuple[ChatMessage, ...]
    """Empty in a completion."""
    asked: AnswerOptions
    streams: bool
    tells_usage: bool
    """Whether a stream ends with the number of its tokens."""
    priority: int
    """Larger goes first."""
    calls: Calls | None = None
    """Functions that the answer calls; None: it is a text."""
    each: int = 1
    """Answers to each prompt."""
    echoes: bool = False
    """Whether the prompt stands before its answer."""
    writes: bool = True
    """Whether anything is written behind the prompt; else it is repeated alone (`max_tokens` 0)."""

    @property
    def prompt(self) -> Prompt:
        """The only prompt."""
        (prompt,) = self.prompts
        return prompt

    def choices(self) -> tuple[TextRequest, ...]:
        """Return a request for each answer, prompt by prompt; each of a prompt's answers has a seed of its own."""
        return tuple(
            replace(self, prompts=(prompt,), each=1, asked=_with_seed(self.asked, number))
            for prompt in self.prompts
            for number in range(self.each)
        )


def _with_seed(asked: AnswerOptions, number: int) -> AnswerOptions:
    sampling = asked.sampling
    return replace(asked, sampling=replace(sampling, seed=(sampling.seed + number) % (1 << 64)))


def read_text_request(
    body: bytes, limits: Limits, *, is_chat: bool, style: CallStyle | None = None, sees: bool = False
) -> TextRequest:
    """Return what the body of a request asks for.

    Args:
        body: Of the request.
        limits: Of this server.
        is_chat: Whether it is a conversation.
        style: How the model writes calls among other text; None: not known.
        sees: Whether the model sees pictures.

    Raises:
        RefusedError: If it is no JSON object, lacks something, or asks for what is not done here.
    """
    values = read_object(body)
    for name, harmless in _NOT_DONE.items():
        if name in values and not any(_same(values[name], value) for value in harmless):
            text = "n gives several answers, and the client chooses" if name == "best_of" else "not done here"
            raise RefusedError(400, f"{name}: {text}", code="unsupported_value", param=name)
    if unknown := sorted(values.keys() - _NOT_DONE.keys() - _PASSED_OVER - _TAKEN):
        raise RefusedError(400, f"unknown field {short(unknown[0])}", code="unknown_parameter", param=unknown[0][:100])
    given, other = ("messages", "prompt") if is_chat else ("prompt", "messages")
    if other in values:
        where = "/v1/chat/completions takes messages, /v1/completions takes prompt"
        raise RefusedError(400, f"{other}: {where}", code="unknown_parameter", param=other)
    if given not in values:
        raise RefusedError(400, f"{given}: this field is missing", code="missing_required_parameter", param=given)
    options = values.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise wrong("stream_options", 'an object such as {"include_usage": true}')
    calls = read_calls(values, style) if is_chat else None
    if not is_chat and (values.get("tools") or values.get("tool_choice") not in (None, "none", "auto")):
        raise wrong("tools", "/v1/chat/completions calls functions")
    asked = _asked(values, limits, is_chat=is_chat)
    if calls:
        if asked.form:
            raise wrong("response_format", "an answer that calls a function has the form of its parameters")
        asked = asked if calls.style else replace(asked, schema=calls.schema)
    prompts: tuple[Prompt, ...] = ((),) if is_chat else _prompts(values["prompt"])
    each = _whole(values, "n", 1, _MOST_CHOICES) or 1
    if len(prompts) * each > _MOST_CHOICES:
        text = f"{plural(len(prompts), 'prompt')}, {plural(each, 'answer')} to each"
        name = "prompt" if len(prompts) > _MOST_CHOICES else "n"
        raise wrong(name, f"{text}: this server gives {_MOST_CHOICES} a request at most")
    echoes = _flag(values, "echo")
    if echoes and is_chat:
        raise RefusedError(400, "echo: /v1/completions repeats prompts", code="unsupported_value", param="echo")
    return TextRequest(
        model=_text(values, "model"),
        prompts=prompts,
        messages=_messages(values["messages"], limits.picture_pixels if sees else None) if is_chat else (),
        asked=asked,
        streams=_flag(values, "stream"),
        tells_usage=_flag(options or {}, "include_usage"),
        priority=_whole(values, "priority", -1000, 1000) or 0,
        calls=calls,
        each=each,
        echoes=echoes,
        writes=not _repeats_alone(values),
    )


def read_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a body.

    Raises:
        RefusedError: If it is none.
    """

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is no JSON")

    try:
        values = json.loads(body.decode("utf-8"), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        why = str(error)[:120] if not isinstance(error, RecursionError) else "it is nested too deep"
        raise RefusedError(400, f"the body is no JSON: {why}", code="invalid_json") from error
    if not isinstance(values, dict):
        raise RefusedError(400, "the body is JSON, but no object", code="invalid_json")
    return values


def _same(value: Any, harmless: Any) -> bool:
    if isinstance(value, bool) or isinstance(harmless, bool):
        return value is harmless
    return bool(value == harmless)


def _text(values: Mapping[str, Any], name: str) -> str:
    value = values.get(name)
    if not isinstance(value, str):
        raise wrong(name, "a text is needed")
    return value


def _flag(values: Mapping[str, Any], name: str) -> bool:
    value = values.get(name)
    if value is not None and not isinstance(value, bool):
        raise wrong(name, "true or false")
    return bool(value)


def _number(values: Mapping[str, Any], name: str, low: float, high: float) -> float | None:
    value = values.get(name)
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not low <= value <= high or not math.isfinite(value):
        raise wrong(name, f"a number from {low:g} to {high:g}, not {short(value)}")
    return float(value)


def _whole(values: Mapping[str, Any], name: str, low: int, high: int) -> int | None:
    value = values.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise wrong(name, f"a whole number from {low} to {high}, not {short(value)}")
    return value


def _prompts(value: Any) -> tuple[Prompt, ...]:
    """Return the prompts of a text, a list of tokens, or a list of either."""
    if isinstance(value, list) and value and all(isinstance(entry, str | list) for entry in value):
        return tuple(_prompt(entry) for entry in value)
    return (_prompt(value),)


def _prompt(value: Any) -> Prompt:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(type(entry) is int and 0 <= entry < 1 << 31 for entry in value):
        return tuple(value)
    raise wrong("prompt", "a text, a list of tokens, or a list of these")


def _messages(value: Any, most_pixels: int | None) -> tuple[ChatMessage, ...]:
    """Return the turns of a conversation; `most_pixels`: of all pictures together, None where the model sees none."""
    if not isinstance(value, list) or not value:
        raise wrong("messages", "a list of one message or more")
    reader = ContentReader(most_pixels)
    return tuple(_message(entry, f"messages[{i}]", reader) for i, entry in enumerate(value))


def _message(value: Any, place: str, reader: ContentReader) -> ChatMessage:
    if not isinstance(value, dict):
        raise wrong(place, "an object with role and content")
    role = value.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise wrong(f"{place}.role", f"one of {', '.join(_ROLES)}, not {short(role)}")
    for name in ("function_call", "audio"):
        if value.get(name):
            raise RefusedError(400, f"{place}.{name}: not done here", code="unsupported_value", param=f"{place}.{name}")
    more = {name: value[name] for name in _OF_CALLS if value.get(name)}
    for name, wanted in _OF_CALLS.items():
        if name in more and not isinstance(more[name], wanted):
            raise wrong(f"{place}.{name}", "a list of calls" if wanted is list else "a text")
    content = value.get("content")
    if content is None and "tool_calls" in more:
        return ChatMessage(_ROLES[role], "", more)
    said = reader.read(content, f"{place}.content")
    if said.pictures and role != "user":
        raise wrong(f"{place}.content", "pictures belong to what the user says")
    return ChatMessage(_ROLES[role], said.text, more, said.parts if said.pictures else (), said.pictures)


def _asked(values: Mapping[str, Any], limits: Limits, *, is_chat: bool) -> AnswerOptions:
    most = 1 << 24
    given = {name: value for name, value in values.items() if not (name in _LENGTHS and value == -1)}
    if not is_chat and _repeats_alone(values):
        given |= dict.fromkeys(_LENGTHS)
        if not _flag(values, "echo"):
            raise wrong(_LENGTHS[1], "0 writes nothing: echo: true repeats the prompt, with logprobs its probabilities")
    lengths = {name: _whole(given, name, 1, most) for name in _LENGTHS}
    name, length = next(((name, other) for name, other in lengths.items() if other is not None), ("max_tokens", None))
    allowed = limits.answer_tokens or most
    if length is not None and length > allowed:
        raise RefusedError(400, f"{name}: this server writes {allowed} at most", code="invalid_value", param=name)
    sampling = _sampling(values)
    shifts, keep = _flag(values, "context_shift"), _whole(values, "n_keep", 0, most) or 0
    if shifts and not length:
        raise wrong("context_shift", f"an answer beyond the context has no other end: say {_LENGTHS[1]}")
    if keep and not shifts:
        raise wrong("n_keep", "it belongs to context_shift: true")
    is_open = is_chat or any(values.get(name) == -1 for name in _LENGTHS)
    return AnswerOptions(
        most_tokens=length or (allowed if is_open else min(_COMPLETION_TOKENS, allowed)),
        sampling=sampling,
        stop=_stops(values.get("stop")),
        ends=not _flag(values, "ignore_eos"),
        shifts=shifts,
        keep=keep,
        logprobs=_logprobs(values, is_chat=is_chat),
        **_form(values),
    )


def _sampling(values: Mapping[str, Any]) -> Sampling:
    """Return how tokens are drawn: the numbers of `Sampling` by their names, with OpenAI's temperature and limits."""
    drawn: dict[str, Any] = {"temperature": 1.0}
    for name, limits in sampling_options().items():
        if limits.least is None or limits.most is None:  # the seed: OpenAI's may be negative
            continue
        most = _MOST_TEMPERATURE if name == "temperature" else limits.most
        read: Callable[..., float | None] = _whole if limits.syntax is Syntax.WHOLE else _number
        value = read(values, name, limits.least, most)
        if value is not None:
            drawn[name] = value
    seed = _whole(values, "seed", -(1 << 63), (1 << 63) - 1)
    drawn["seed"] = secrets.randbits(63) if seed is None else seed % (1 << 64)
    return Sampling(logit_bias=_bias(values.get("logit_bias")), **drawn)


def _repeats_alone(values: Mapping[str, Any]) -> bool:
    """Return whether no token is asked for behind the prompt."""
    lengths = [values[name] for name in _LENGTHS if values.get(name) is not None]
    return bool(lengths) and all(type(length) is int and length == 0 for length in lengths)


def _bias(value: Any) -> dict[int, float]:
    """Return what is added to logits, by token."""
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > _MOST_BIASES:
        raise wrong("logit_bias", f"an object of up to {_MOST_BIASES} tokens and numbers")
    biases = dict[int, float]()
    for token in value:
        if not token.isdecimal() or len(token) > _LONGEST_NUMBER:
            raise wrong("logit_bias", f"{short(token)} is no number of a token")
        named = f"logit_bias.{token}"
        biases[int(token)] = _number({named: value[token]}, named, -100, 100) or 0.0
    return biases


def _logprobs(values: Mapping[str, Any], *, is_chat: bool) -> int | None:
    """Return how many alternatives stand beside each token's probability; None: no probability is told."""
    if not is_chat:
        if values.get("top_logprobs") is not None:
            raise wrong("top_logprobs", "/v1/completions takes logprobs, a number")
        asked = values.get("logprobs")
        return None if asked is False else _whole(values, "logprobs", 0, MOST_LOGPROBS)
    count = _whole(values, "top_logprobs", 0, MOST_LOGPROBS)
    if not _flag(values, "logprobs"):
        if count:
            raise wrong("top_logprobs", "it belongs to logprobs: true")
        return None
    return count or 0


def _form(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the form of the answer, as fields of `AnswerOptions`: by OpenAI's `response_format` or by a `grammar`."""
    asked, grammar = values.get("response_format"), values.get("grammar")
    if grammar is not None and not isinstance(grammar, str):
        raise wrong("grammar", "a grammar as text, in llama.cpp's words (GBNF) or Lark's")
    kind = asked.get("type") if isinstance(asked, dict) else "text" if asked is None else None
    if kind == "text":
        return {"grammar": grammar} if grammar else {}
    if grammar:
        raise wrong("grammar", "an answer has one form: leave grammar or response_format out")
    if kind == "json_object":
        return {"schema": True}
    if kind != "json_schema" or not isinstance(asked, dict):
        raise wrong("response_format", '{"type": "text"}, {"type": "json_object"} or {"type": "json_schema", ...}')
    named = asked.get("json_schema")
    if not isinstance(named, dict) or not isinstance(named.get("schema"), dict):
        raise wrong("response_format.json_schema", "an object with name and schema")
    return {"schema": named["schema"]}


def _stops(value: Any) -> tuple[str, ...]:
    texts = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts) or len(texts) > _MOST_STOPS:
        raise wrong("stop", f"a text, or up to {_MOST_STOPS} of them")
    if any(not 0 < len(text) <= _LONGEST_STOP for text in texts):
        raise wrong("stop", f"texts of 1 to {_LONGEST_STOP} characters")
    return tuple(texts)
