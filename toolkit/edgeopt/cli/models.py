"""List the shipped models and recipes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from edgeopt.cli._help import HelpCommand
from edgeopt.cli._options import format_option
from edgeopt.cli._output import show
from edgeopt.cli._values import RecipeName

if TYPE_CHECKING:
    from edgeopt.recipes.recipe import Recipe
    from edgeopt.report.document import Document

_KEYS = ("name", "task", "description", "model", "license")


@click.command(cls=HelpCommand)
@click.argument("name", required=False, type=RecipeName())
@format_option
def models(*, name: str | None, form: str) -> None:
    """List the shipped models and recipes; or show the one called NAME."""
    from edgeopt.recipes.recipe import find_recipe, read_recipe
    from edgeopt.system.disk import assets

    if name is not None:
        show(show_recipe(find_recipe(name)), form)
        return
    show(list_recipes([read_recipe(folder / "recipe.toml") for folder in assets.model_folders().values()]), form)


def list_recipes(recipes: Sequence[Recipe]) -> Document:
    """Return what is shown of all recipes."""
    from edgeopt.report.document import Document, Section, Table, make_table
    from edgeopt.report.result import PlainResult

    columns: dict[str, Callable[[Recipe], str]] = {
        "model": lambda recipe: recipe.name,
        "what it is for": lambda recipe: recipe.description,
    }
    models = make_table([recipe for recipe in recipes if recipe.model], columns, words=["what it is for"])
    names: dict[str, list[str]] = {}
    for recipe in recipes:
        if not recipe.model:
            names.setdefault(recipe.task, []).append(recipe.name)
    rows = tuple((task, ", ".join(names[task])) for task in sorted(names))
    by_task = Table(("task", "recipes"), rows, frozenset({"recipes"}))
    figures = {"recipes": [_figures(recipe) for recipe in recipes]}
    hint = Section(text="edgeopt models NAME shows one of them and what it is for; --recipe takes its name.")
    sections = (Section(table=models), Section(table=by_task), hint)
    result = PlainResult(command="models", figures=figures)
    return Document(result, "models", "Shipped models and recipes", sections)


def _figures(recipe: Recipe) -> dict[str, str]:
    return {key: getattr(recipe, key) for key in _KEYS}


def show_recipe(recipe: Recipe) -> Document:
    """Return what is shown of one recipe."""
    from edgeopt.report.document import Document, Section, Value
    from edgeopt.report.result import PlainResult
    from edgeopt.system.text import shown_path

    known = {
        "recipe" if not recipe.model else "model": recipe.name,
        "for": recipe.description,
        "task": recipe.task,
        "pictures": "x".join(map(str, recipe.input.size)),
        "classes": str(len(recipe.class_names) or ""),
        "metric": recipe.evaluation.metric,
        "labels": shown_path(labels) if (labels := recipe.path_of(recipe.evaluation.labels)) else "",
        "calib": shown_path(calib) if (calib := recipe.path_of(recipe.evaluation.calib)) else "",
        "license": recipe.license,
        "file": shown_path(recipe.folder / "recipe.toml"),
    }
    values = [Value(label, text) for label, text in known.items() if text]
    command = f"edgeopt optimize {recipe.name if recipe.model else f'MODEL --recipe {recipe.name}'} --target cpu"
    sections = (Section(values=(*values, Value("next", command, is_command=True))),)
    result = PlainResult(command="models", figures=_figures(recipe))
    return Document(result, recipe.name, f"Recipe {recipe.name}", sections)


COMMAND = models
