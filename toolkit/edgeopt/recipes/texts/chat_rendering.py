"""The child in which chat templates run: one loops, fills memory or nests too deeply in here alone.

Source: Hugging Face's `chat_template`, with the settings of transformers' `apply_chat_template`.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from jinja2.sandbox import ImmutableSandboxedEnvironment

from edgeopt.system.processes.guarded import serve_guarded

_TRAINING: Final = re.compile(r"\{%-?\s*(?:end)?generation\s*-?%\}")
"""Marks what a training learns; it writes nothing."""
_MOST_CHARACTERS: Final = 16 << 20
"""Most characters of a conversation: far beyond every context."""


def render(question: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the text of a conversation, or nothing where a template is only to be read."""
    template = _template(question["source"])
    if "messages" not in question:
        return {}
    messages = question["messages"]
    is_begun = bool(messages) and messages[-1]["role"] == "assistant" and not messages[-1].get("tool_calls")
    text = str(
        template.render(
            messages=messages,
            tools=question.get("tools") or None,
            add_generation_prompt=not is_begun,
            **question["special"],
        )
    )
    if is_begun:
        text = _until(text, _said(messages[-1]["content"]))
    if len(text) > _MOST_CHARACTERS:
        raise ValueError(f"it writes {len(text)} characters")
    return {"text": text}


def _said(content: Any) -> str:
    """Return the words of a turn, which may be a list of parts."""
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content)
    return str(content)


def _until(text: str, said: str) -> str:
    """Return a conversation up to what was said last, without what ends the turn: the answer goes on behind it."""
    for last in (said, said.strip()):
        if last and (place := text.rfind(last)) >= 0:
            return text[: place + len(last)]
    raise ValueError("its last turn is not in what the template writes")


@lru_cache(maxsize=4)
def _template(source: str) -> Any:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _as_json
    environment.globals |= {"raise_exception": _refuse, "strftime_now": _now}
    return environment.from_string(_TRAINING.sub("", source))


def _as_json(value: Any, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> None:
    raise ValueError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


if __name__ == "__main__":
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve_guarded(sys.stdin.buffer, pipe, render)
