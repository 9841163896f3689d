"""A recipe as TOML text, and the lines in which two recipes differ."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from types import MappingProxyType
from typing import Any

from edgeopt.recipes.recipe import Recipe
from edgeopt.system.disk.links import pinned
from edgeopt.system.text import printable

_TABLES = (
    "input",
    "tokenizer",
    "audio",
    "generation",
    "image",
    "preprocess",
    "postprocess",
    "keypoints",
    "text",
    "alphabet",
    "evaluation",
    "check",
)


_NONE = MappingProxyType[str, str]({})
_WIDTH = 120
"""Columns of a line with its comment; a longer comment stands above it."""
_COMMENT = 34
"""Column behind which comments stand."""


def recipe_text(
    recipe: Recipe, *, name: str, labels: str, head: Sequence[str] = (), comments: Mapping[str, str] = _NONE
) -> str:
    """Return a recipe as the text of a TOML file.

    Args:
        recipe: Written without its `match`, and with absolute paths of its data.
        name: Of the new recipe.
        labels: File of class names beside the new one; empty: none.
        head: Comments before all else, a line each.
        comments: What stands behind a key, such as `preprocess.colour`; a key with a comment is written though its
            value is the default, one without a value as a comment alone.
    """
    evaluation = replace(
        recipe.evaluation,
        labels=_absolute(recipe, recipe.evaluation.labels),
        calib=_absolute(recipe, recipe.evaluation.calib),
    )
    changed = replace(recipe, name=name, labels=labels, evaluation=evaluation)
    lines = [f"# {printable(line)}" for line in head]
    for key in ("name", "task", "description", "license", "source"):
        lines += _line(key, getattr(changed, key), comments.get(key, ""))
    if labels or "labels" in comments:
        lines += _line("labels", labels, comments.get("labels", ""))
    if recipe.guesses:
        lines += ["# guessed keys, of which every command warns: take out each that you checked"]
        lines += _line("guesses", recipe.guesses, "")
    for table in _TABLES:
        values = _values(getattr(changed, table), table, comments)
        lines += ["", f"[{table}]", *values] if values else []
    return "\n".join(lines) + "\n"


def _line(key: str, value: Any, comment: str) -> list[str]:
    """Return a key with its comment; without a value the comment alone."""
    text = printable(comment)
    if comment and value in (None, "", (), {}):
        return [f"# {key}: {text}"]
    line = f"{key} = {_value(value)}"
    if not comment:
        return [line]
    whole = f"{line:<{_COMMENT}}  # {text}"
    return [whole] if len(whole) <= _WIDTH else [f"# {text}", line]


def changed_lines(before: Recipe, after: Recipe) -> list[str]:
    """Return the lines that turn one recipe into another, for example `[preprocess] colour = "BGR"`."""
    lines = []
    for table in ("preprocess", "postprocess"):
        old, new = getattr(before, table), getattr(after, table)
        changed = [field.name for field in fields(new) if getattr(old, field.name) != getattr(new, field.name)]
        if changed:
            lines.append(f"[{table}] " + ", ".join(f"{key} = {_value(getattr(new, key))}" for key in changed))
    return lines


def _absolute(recipe: Recipe, file: str) -> str:
    return str(pinned(recipe.folder / file)) if file else ""


def _values(table: Any, name: str, comments: Mapping[str, str]) -> list[str]:
    """Return the lines of a table, without defaults that need no comment."""
    assert is_dataclass(table)
    lines = list[str]()
    for field in fields(table):
        value, comment = getattr(table, field.name), comments.get(f"{name}.{field.name}", "")
        if comment or (value != field.default and value not in ((), {})):
            lines += _line(field.name, value, comment)
    return lines


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_value(str(key))} = {_value(entry)}' for key, entry in value.items())} }}"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
