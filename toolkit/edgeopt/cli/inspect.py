"""Show what a model is, and where a device runs its nodes."""

from __future__ import annotations

from typing import Any

import click

from edgeopt.cli._options import format_option
from edgeopt.cli._values import ModelName
from edgeopt.cli._verb import finish, read_values, verb_command


@verb_command("inspect", "model", "device", "shown")
@click.argument("model", type=ModelName())
@format_option
@click.pass_context
def inspect(ctx: click.Context, /, *, model: str, form: str, **options: Any) -> None:
    """Show what MODEL is, and where a device runs its nodes."""
    del options
    from edgeopt.verbs.inspect import inspected

    finish(ctx, inspected(model, None, read_values(ctx, model)), form)


COMMAND = inspect
