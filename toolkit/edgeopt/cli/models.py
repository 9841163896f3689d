"""`edgeopt models`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from edgeopt.cli._options import format_option
from edgeopt.cli._output import show

if TYPE_CHECKING:
    from edgeopt.recipes.recipe import Recipe


@click.command()
@format_option
def models(*, form: str) -> None:
    """List the shipped models and recipes."""
    from edgeopt.recipes.recipe import read_recipe
    from edgeopt.report.document import Document, Section, make_table
    from edgeopt.system import assets

    recipes = [read_recipe(folder / "recipe.toml") for folder in assets.model_folders().values()]
    keys = ("name", "task", "description", "model", "license")
    columns: dict[str, Callable[[Recipe], str]] = {
        "name": lambda one: one.name,
        "what": lambda one: "model" if one.model else "recipe",
        "task": lambda one: one.task,
        "description": lambda one: one.description,
    }
    table = make_table(recipes, columns, words=["what", "task", "description"])
    data = [{key: getattr(one, key) for key in keys} for one in recipes]
    show(Document("models", "models", "Shipped models and recipes", data, (Section(table=table),)), form)


COMMAND = models
