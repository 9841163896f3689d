"""Write a commented recipe: how a model is fed and read."""

from __future__ import annotations

from pathlib import Path

import click

from edgeopt.cli._asking import asker
from edgeopt.cli._help import HelpCommand
from edgeopt.cli._options import TERMINAL, format_option
from edgeopt.cli._output import show
from edgeopt.cli._values import ModelName, RecipeName


@click.command(cls=HelpCommand)
@click.argument("model", type=ModelName())
@click.option(
    "--out",
    "-o",
    type=click.Path(path_type=Path),
    show_default="recipe.toml beside the model",
    help="The file to write; a file that exists is never overwritten.",
)
@click.option(
    "--picture",
    default="",
    metavar="PICTURE",
    show_default="the recipe's own, or none",
    help="A picture or a sound (.wav): show what the model answers to it with this recipe.",
)
@click.option(
    "--recipe",
    "-r",
    type=RecipeName(),
    metavar="NAME|FILE",
    show_default="read from the model",
    help="Recipe to begin with: a name of edgeopt models, or a TOML file.",
)
@click.option("--yes", "-y", is_flag=True, help="Ask nothing: take the likely values, and mark them in the file.")
@format_option
def recipe(*, model: str, out: Path | None, picture: str, recipe: str | None, yes: bool, form: str) -> None:
    """Write a commented recipe for MODEL: how it is fed and read.

    What the model tells is read from it. What it does not tell is asked on a terminal; elsewhere what is likely is
    taken, and marked with "not known".
    """
    from edgeopt.verbs.recipe import draft, summarize

    ask = asker(quiet=yes or form != TERMINAL)
    show(summarize(draft(model, out, recipe=recipe, picture=picture, ask=ask)), form)


COMMAND = recipe
