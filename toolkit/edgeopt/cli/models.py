"""`edgeopt models`."""

from __future__ import annotations

import json

import click

from edgeopt.cli._lines import show


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def models(*, as_json: bool) -> None:
    """List the shipped models and recipes."""
    from edgeopt.recipes.recipe import read_recipe
    from edgeopt.system import assets

    recipes = [read_recipe(folder / "recipe.toml") for folder in assets.model_folders().values()]
    if as_json:
        keys = ("name", "task", "description", "model", "license")
        rows = [{key: getattr(one, key) for key in keys} for one in recipes]
        click.echo(json.dumps(rows, indent=2))
        return
    for one in recipes:
        kind = "model " if one.model else "recipe"
        show(f"{one.name:<16} {kind} {one.task:<15} {one.description}")


COMMAND = models
