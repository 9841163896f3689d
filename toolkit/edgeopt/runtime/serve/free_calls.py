"""Calls among free text (`tool_choice: auto`): the grammar that holds from a call's mark on, and the calls made.

Until its mark the model writes what it wants; behind it only a call that can be made may follow. Source: llguidance's
syntax of grammars (special tokens by number, lazy lexemes), as its own StructTag writes them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from edgeopt.recipes.texts.call_style import HERMES_MARKS, LLAMA_MARK, MISTRAL_MARK, CallStyle
from edgeopt.runtime.decoding.grammars import SEPARATORS, closed_schema
from edgeopt.runtime.decoding.pieces import overlap
from edgeopt.runtime.serve.calls import Calls

_TEXT: Final = r"TEXT: /(.|\n)*/"
_BARE: Final = r"BARE: /([^{](.|\n)*)?/"
"""Text that is no call of Llama's: it does not begin as an object does."""
_BEGIN: Final[Mapping[CallStyle, str]] = {CallStyle.HERMES: HERMES_MARKS[0], CallStyle.MISTRAL: MISTRAL_MARK}
_ARGUMENTS: Final[Mapping[CallStyle, str]] = {CallStyle.LLAMA: "parameters"}


def arguments_of(style: CallStyle) -> str:
    """Return the name of the field that holds a call's arguments."""
    return _ARGUMENTS.get(style, "arguments")


def shown_marks(style: CallStyle) -> tuple[str, ...]:
    """Return the marks that the answer's text must show, where they are special tokens, so that calls are found."""
    return {CallStyle.HERMES: HERMES_MARKS, CallStyle.MISTRAL: (MISTRAL_MARK,)}.get(style, ())


def grammar_of(calls: Calls, style: CallStyle, special: Mapping[str, int]) -> str:
    """Return the grammar in Lark's words that an answer with free text and calls keeps to.

    Args:
        calls: The functions, and whether an answer may make several calls.
        style: How the model writes them.
        special: Special tokens of the model, by name.
    """
    schema: dict[str, Any] = closed_schema(dict(calls.schema_of(arguments_of(style))))
    if style is CallStyle.MISTRAL:
        definitions = {"$defs": schema.pop("$defs")} if "$defs" in schema else {}
        most = {} if calls.makes_several else {"maxItems": 1}
        schema = {"type": "array", "items": schema, "minItems": 1, **most, **definitions}
    written = json.dumps({**schema, "x-guidance": SEPARATORS}, allow_nan=False)
    rules = [f"json: %json {written}"]
    if style is CallStyle.LLAMA:
        mark = f"<[{special[LLAMA_MARK]}]>" if LLAMA_MARK in special else ""
        starts = ["start: call | BARE", f"call: json{f' | {mark} json' if mark else ''}", _BARE]
    else:
        begin = _BEGIN[style]
        head = f"head: TEXT <[{special[begin]}]>" if begin in special else f"head[lazy]: TEXT {json.dumps(begin)}"
        end = HERMES_MARKS[1]
        end = f"<[{special[end]}]>" if end in special else json.dumps(end)
        call = f'call: head "\\n" json "\\n" {end}' if style is CallStyle.HERMES else 'call: head " "? json'
        is_repeated = style is CallStyle.HERMES and calls.makes_several
        starts = [f"start: {'call* TEXT' if is_repeated else 'call | TEXT'}", head, call, _TEXT]
    return "\n".join(["%llguidance {}", *starts, *rules])


@dataclass(frozen=True, slots=True)
class MadeCall:
    """A call that an answer makes."""

    name: str
    arguments: str
    """As JSON."""


class CallReader:
    """Parts an answer into what it says and what it calls, as it grows."""

    def __init__(self, style: CallStyle) -> None:
        """Begin before the first word."""
        self._style, self._held = style, ""
        self._is_in_call = self._is_bare = False
        self.made = 0
        """Calls so far."""

    def add(self, text: str) -> list[str | MadeCall]:
        """Return what is known after some more text: pieces of text and whole calls, in their order."""
        self._held += text
        parts = list[str | MadeCall]()
        while self._step(parts):
            pass
        return [part for part in parts if part]

    def end(self) -> list[str | MadeCall]:
        """Return what is left at the answer's end; a call that was cut is none."""
        if self._is_in_call:
            return [] if self._style is CallStyle.HERMES else [*self._read(self._held)]
        return [self._held] if self._held and not (self.made and self._held.isspace()) else []

    def _step(self, parts: list[str | MadeCall]) -> bool:
        """Take a part of what is held; return whether another may follow."""
        if self._is_in_call:
            body, mark, rest = self._held.partition(HERMES_MARKS[1])
            if self._style is not CallStyle.HERMES or not mark:
                return False
            parts += self._read(body)
            self._held, self._is_in_call = rest, False
            return True
        if self._style is CallStyle.LLAMA:
            self._is_in_call = not self._is_bare and self._held.startswith("{")
            if not self._is_in_call and self._held:
                parts.append(self._held)
                self._held, self._is_bare = "", True
            return False
        begin = _BEGIN[self._style]
        before, mark, rest = self._held.partition(begin)
        if mark:
            parts.append(before.rstrip())
            self._held, self._is_in_call = rest, True
            return True
        shown = self._held[: len(self._held) - overlap(self._held, begin)].rstrip()  # blanks before a call are its own
        parts.append(shown)
        self._held = self._held[len(shown) :]
        return False

    def _read(self, body: str) -> list[MadeCall]:
        """Return the calls of JSON; none where it was cut."""
        try:
            values = json.loads(body)
            values = values if isinstance(values, list) else [values]
            field = arguments_of(self._style)
            made = [MadeCall(each["name"], json.dumps(each[field], ensure_ascii=False)) for each in values]
        except (ValueError, TypeError, KeyError):
            return []
        self.made += len(made)
        return made
