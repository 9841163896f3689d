"""A recipe as TOML text, and the lines in which two recipes differ."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from edgeopt.recipes.recipe import Recipe

_TABLES = ("input", "preprocess", "postprocess", "evaluation", "check")


def recipe_text(recipe: Recipe, *, name: str, labels: str) -> str:
    """Return a recipe as the text of a TOML file.

    Args:
        recipe: Written without its `match`, and with absolute paths of its data.
        name: Of the new recipe.
        labels: File of class names beside the new one; empty: none.
    """
    evaluation = replace(
        recipe.evaluation,
        labels=_absolute(recipe, recipe.evaluation.labels),
        calib=_absolute(recipe, recipe.evaluation.calib),
    )
    changed = replace(recipe, name=name, labels=labels, evaluation=evaluation)
    lines = [f"{key} = {_value(getattr(changed, key))}" for key in ("name", "task", "description", "license", "source")]
    lines += [f"labels = {_value(labels)}"] if labels else []
    for table in _TABLES:
        values = _values(getattr(changed, table))
        lines += ["", f"[{table}]", *values] if values else []
    return "\n".join(lines) + "\n"


def changed_lines(before: Recipe, after: Recipe) -> list[str]:
    """Return the lines that turn one recipe into another, for example `[preprocess] colour = "BGR"`."""
    lines = []
    for table in ("preprocess", "postprocess"):
        old, new = getattr(before, table), getattr(after, table)
        changed = [one.name for one in fields(new) if getattr(old, one.name) != getattr(new, one.name)]
        if changed:
            lines.append(f"[{table}] " + ", ".join(f"{key} = {_value(getattr(new, key))}" for key in changed))
    return lines


def _absolute(recipe: Recipe, file: str) -> str:
    return str((recipe.folder / file).resolve()) if file else ""


def _values(table: Any) -> list[str]:
    """Return the lines of a table, without defaults."""
    assert is_dataclass(table)
    lines = []
    for one in fields(table):
        value = getattr(table, one.name)
        if value != one.default and value not in ((), {}):
            lines.append(f"{one.name} = {_value(value)}")
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
        return f"{{ {', '.join(f'{_value(str(key))} = {_value(one)}' for key, one in value.items())} }}"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
