"""Make a model fast on a device, and prove it."""

from __future__ import annotations

from time import monotonic
from typing import Any

import click

from edgeopt.cli._options import TERMINAL, exit_codes, format_option
from edgeopt.cli._progress import Progress
from edgeopt.cli._values import ModelName
from edgeopt.cli._verb import VerbCommand, finish, read_values
from edgeopt.optimization.options import STEPS
from edgeopt.system.declared.options import OptionGroup

_ORDER = ("model", "device", "data", "budget", "time", "steps", "bundle", "export", "language")


class _WithSteps(VerbCommand):
    """A command whose help lists the steps; they are asked when it is printed, and not before."""

    def format_group(self, ctx: click.Context, formatter: click.HelpFormatter, group: OptionGroup) -> None:
        """Write the options of a group in full; below those of the steps what each step does."""
        super().format_group(ctx, formatter, group)
        if group != STEPS:
            return
        from edgeopt.optimization.plan import all_steps

        steps = all_steps().items()
        with formatter.section("What each step does"):
            when = {
                name: "" if other.is_default else " [if faster]" if other.tried_on or other.feeds else " [off]"
                for name, other in steps
            }
            formatter.write_dl([(name, step.does + when[name]) for name, step in steps])


@click.command(cls=_WithSteps, verb="optimize", order=_ORDER)
@click.argument("model", type=ModelName())
@format_option
@click.pass_context
@exit_codes()
def optimize(ctx: click.Context, /, *, model: str, form: str, **options: Any) -> None:
    """Make MODEL fast on a device, and prove it.

    MODEL is an ONNX file, the name of a shipped model, a source that edgeopt export takes (it is exported first), or
    the .toml file of a pipeline, whose models are chosen together.

    Every candidate, a bundle for the runtime and a report are written. The bundle of a language model holds the form
    that is proven fastest for prompts and answers of --prompt-tokens and --output-tokens.
    """
    del options
    began_s = monotonic()  # what is imported now takes seconds on a busy machine, and the limit counts them
    from edgeopt.verbs._perform import perform

    values = read_values(ctx, model)
    with Progress(
        quiet=form != TERMINAL, limit_s=values.get("time_limit_s"), is_whole=True, began_s=began_s
    ) as progress:
        done = perform("optimize", model, None, values, progress)
    finish(ctx, done, form)


INTERRUPTED = "finished candidates, if any, are on disk; the same command with --resume takes them up"
COMMAND = optimize
