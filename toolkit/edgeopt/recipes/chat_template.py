"""A conversation as one text: by the template that came with the model, else in a plain form.

Source: Hugging Face's `chat_template`, a template of Jinja in `chat_template.jinja` or `tokenizer_config.json`, with
the settings of transformers' `apply_chat_template`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from edgeopt.errors import InvalidFileError
from edgeopt.system.files import read_text
from edgeopt.system.optional import require

TEMPLATE_FILE: Final = "chat_template.jinja"
SETTINGS_FILE: Final = "tokenizer_config.json"
CHAT_FILES: Final = (TEMPLATE_FILE, SETTINGS_FILE)
"""Beside a tokenizer, where it has them."""
_REMEDY: Final = "copy it from where the model came from"
_TRAINING: Final = re.compile(r"\{%-?\s*(?:end)?generation\s*-?%\}")
"""Marks what a training learns; it writes nothing."""
_NAMES: Final = {"system": "System", "user": "User", "assistant": "Assistant"}
PLAIN_STOP: Final = "\nUser:"
"""Where an answer in the plain form is over: the model begins to write the user's part."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: str
    """`system`, `user` or `assistant`."""
    content: str


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
        package = require("jinja2", extra="serve", purpose="a chat template")
        sandbox = require("jinja2.sandbox", extra="serve", purpose="a chat template")
        environment = sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _as_json
        environment.globals |= {"raise_exception": _refuse, "strftime_now": _now}
        try:
            self._template = environment.from_string(_TRAINING.sub("", source))
        except package.TemplateError as error:
            raise InvalidFileError(f"{told} is no chat template: {str(error)[:200]}", remedy=_REMEDY) from error
        self._special = dict(special)

    def text_of(self, messages: Sequence[Message]) -> str:
        """Return the conversation, at its end what an answer begins behind.

        Raises:
            ValueError: If the template does not take it.
        """
        plain = [{"role": one.role, "content": one.content} for one in messages]
        try:
            return str(self._template.render(messages=plain, add_generation_prompt=True, **self._special))
        except Exception as error:  # a template is a program: it raises anything
            raise ValueError(f"the model's chat template does not take it: {str(error)[:200]}") from error


def plain_text_of(messages: Sequence[Message]) -> str:
    """Return a conversation without a template: `System: ...`, `User: ...`, at the end `Assistant:`."""
    parts = [f"{_NAMES[one.role]}: {one.content}" for one in messages]
    return "\n".join([*parts, "Assistant:"])


def chat_files(tokenizer: Path | None) -> list[Path]:
    """Return the files beside a tokenizer that say how conversations are written."""
    return [] if tokenizer is None else [one for name in CHAT_FILES if (one := tokenizer.parent / name).is_file()]


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
        named = {one.get("name"): one.get("template") for one in told if isinstance(one, dict)}
        told = named.get("default") or next(iter(named.values()), None)
    source = read_text(file, remedy=_REMEDY) if file.is_file() else told
    if not isinstance(source, str) or not source.strip():
        return None
    special = {name: _token(settings.get(name)) for name in ("bos_token", "eos_token", "unk_token", "pad_token")}
    return ChatTemplate(source, str(file if file.is_file() else folder / SETTINGS_FILE), special)


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


def _as_json(value: Any, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> None:
    raise ValueError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)
