"""Calls of an app's functions: `tools` and `tool_choice` of OpenAI's clients.

The answer keeps to a schema that is made of the functions' parameters, so that each call can be made. Where the model
chooses whether to call (`tool_choice: auto`), that holds from the mark of a call on (`free_calls.py`).

Source: OpenAI API reference, `POST /v1/chat/completions`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from edgeopt.recipes.texts.call_style import CallStyle
from edgeopt.runtime.serve.refused import RefusedError, wrong
from edgeopt.system.text import short

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_MOST_TOOLS: Final = 128
_NO_PARAMETERS: Final[Mapping[str, Any]] = {"type": "object", "properties": {}, "additionalProperties": False}
"""As OpenAI has it, a function that names no parameters has none."""
_CHOICES: Final = 'none, required, {"type": "function", "function": {"name": ...}} or {"type": "allowed_tools", ...}'
_ALLOWED: Final = '{"mode": "auto" or "required", "tools": [{"type": "function", "function": {"name": ...}}]}'


@dataclass(frozen=True, slots=True)
class Calls:
    """The functions that an answer may call."""

    tools: tuple[Mapping[str, Any], ...]
    """As they came, for the model's chat template."""
    name: str
    """Name of the function that is called; empty: one of them."""
    style: CallStyle | None = None
    """How the model writes calls where it chooses whether to call; None: it must."""
    makes_several: bool = True
    """Whether one answer may make several calls, where the model chooses."""
    allowed: frozenset[str] | None = None
    """Names of the functions that may be called, where the request allows some alone; None: all."""

    @property
    def schema(self) -> Mapping[str, Any]:
        """The schema that the answer keeps to: arguments, or an object of name and arguments."""
        if self.name:
            return dict(self._parameters[self.name])
        return self.schema_of("arguments")

    @property
    def _parameters(self) -> Mapping[str, Mapping[str, Any]]:
        functions = {tool["function"]["name"]: tool["function"] for tool in self.tools}
        allowed = functions.keys() if self.allowed is None else self.allowed
        # a schema that says nothing of its type allows any value, and arguments are an object
        own = {
            name: {"type": "object", **(each.get("parameters") or _NO_PARAMETERS)} for name, each in functions.items()
        }
        return {name: parameters for name, parameters in own.items() if name in allowed}

    def schema_of(self, field: str) -> Mapping[str, Any]:
        """Return the schema of an object with the name of a function, and its arguments in a field.

        What the parameters define for themselves (`$defs`) is put where their references look for it.
        """
        definitions, calls = dict[str, Any](), list[dict[str, Any]]()
        for name, parameters in self._parameters.items():
            own = dict(parameters)
            shared = own.get("$defs")
            if isinstance(shared, dict) and all(definitions.get(k, v) == v for k, v in shared.items()):
                definitions |= own.pop("$defs")
            calls.append(
                {
                    "type": "object",
                    "properties": {"name": {"const": name}, field: own},
                    "required": ["name", field],
                    "additionalProperties": False,
                }
            )
        schema = calls[0] if len(calls) == 1 else {"anyOf": calls}
        return {**schema, "$defs": definitions} if definitions else schema

    def call_of(self, text: str) -> Mapping[str, Any] | None:
        """Return the call that an answer makes, as OpenAI writes it; None: it was cut before its name was there."""
        name, arguments = self.name, text
        if not name:
            try:
                values = json.loads(text)
            except ValueError:
                return None
            name, arguments = values["name"], json.dumps(values["arguments"], ensure_ascii=False)
        return self.named(name, arguments)

    def named(self, name: str, arguments: str) -> Mapping[str, Any]:
        """Return a call as OpenAI writes it."""
        function = {"name": name, "arguments": arguments}
        number = uuid4().hex
        known = number[:9] if self.style is CallStyle.MISTRAL else f"call_{number[:24]}"  # its template takes 9 letters
        return {"id": known, "type": "function", "function": function}


def read_calls(values: Mapping[str, Any], style: CallStyle | None = None) -> Calls | None:
    """Return which functions a request lets the answer call; None: none.

    Args:
        values: The body of a request.
        style: How the model writes calls among other text; None: not known.

    Raises:
        RefusedError: If `tools` or `tool_choice` are none, or leave it to a model whether to call whose way of writing
            calls is not known.
    """
    tools, choice = values.get("tools"), values.get("tool_choice")
    if not tools:
        if choice not in (None, "none", "auto"):
            raise wrong("tool_choice", "it belongs to tools")
        return None
    if not isinstance(tools, list) or len(tools) > _MOST_TOOLS:
        raise wrong("tools", f"a list of up to {_MOST_TOOLS} functions")
    known = tuple(_tool(tool, f"tools[{i}]") for i, tool in enumerate(tools))
    names = [tool["function"]["name"] for tool in known]
    if double := next((i for i, name in enumerate(names) if name in names[:i]), None):
        raise wrong(f"tools[{double}].function.name", f"two functions are named {short(names[double])}")
    allowed: frozenset[str] | None = None
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed, choice = _allowed(choice.get("allowed_tools"), names)
    if choice == "none":
        return None
    if choice == "required":
        return Calls(known, "", allowed=allowed)
    if (function := _function_of(choice)) is not None:
        return Calls(known, _known_name(function, names))
    if choice not in (None, "auto"):
        raise wrong("tool_choice", f"{'auto, ' if style else ''}{_CHOICES}")
    if style is not None:
        several = values.get("parallel_tool_calls")
        if several is not None and not isinstance(several, bool):
            raise wrong("parallel_tool_calls", "true or false")
        return Calls(known, "", style, several is not False, allowed)
    text = (
        "tool_choice: auto is not done for this model, whose chat template writes calls in no way that is known here: "
        'ask for "required", or for a function by its name'
    )
    raise RefusedError(400, text, code="unsupported_value", param="tool_choice")


def _function_of(choice: Any) -> Mapping[str, Any] | None:
    """Return the function that a choice, or a tool, is; None: it is none."""
    function = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    return function if isinstance(function, dict) else None


def _known_name(function: Mapping[str, Any], names: Sequence[str]) -> str:
    name = function.get("name")
    if not isinstance(name, str) or name not in names:
        raise wrong("tool_choice", f"no function named {short(name)} is among tools")
    return name


def _allowed(said: Any, names: Sequence[str]) -> tuple[frozenset[str], str]:
    """Return the functions that a choice allows, and whether one of them must be called: `auto` or `required`."""
    mode, tools = (said.get("mode"), said.get("tools")) if isinstance(said, dict) else (None, None)
    functions = [_function_of(tool) for tool in tools] if isinstance(tools, list) else []
    if mode not in ("auto", "required") or not functions:
        raise wrong("tool_choice.allowed_tools", _ALLOWED)
    allowed = set[str]()
    for function in functions:
        if function is None:
            raise wrong("tool_choice.allowed_tools", _ALLOWED)
        allowed.add(_known_name(function, names))
    return frozenset(allowed), mode


def _tool(tool: Any, place: str) -> Mapping[str, Any]:
    function = _function_of(tool)
    if function is None:
        raise wrong(place, '{"type": "function", "function": {"name": ..., "parameters": {...}}}')
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise wrong(f"{place}.function.name", "a name of letters, digits, . _ and -, 64 at most")
    if parameters is not None and not (isinstance(parameters, dict) and parameters.get("type", "object") == "object"):
        raise wrong(f"{place}.function.parameters", 'a JSON schema of an object, {"type": "object", ...}')
    assert isinstance(tool, dict)
    return tool
