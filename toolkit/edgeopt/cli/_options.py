"""Options that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import click

from edgeopt.cli._values import (
    Amount,
    FormatName,
    Names,
    Number,
    RecipeName,
    Shape,
    TargetName,
    TypedShape,
    WholeNumber,
    joined,
)
from edgeopt.errors import EXIT_ERROR, EXIT_INCONCLUSIVE, EXIT_INTERRUPTED, EXIT_MISSED, EXIT_NOISY, EXIT_PASS
from edgeopt.measurement.common_options import DEVICE, INPUT, LABEL_KINDS, PRUNED, TASK
from edgeopt.recipes.default_limits import MAX_DROP
from edgeopt.system.machine.threads import DEFAULT_THREADS

TERMINAL = "terminal"
F = TypeVar("F", bound=Callable[..., Any])


def format_option(command: F) -> F:
    """Add `--format`, and `--json` as a short form of it; the command gets the name as `form`."""
    short = click.option("--json", "form", flag_value="json", help="The same as --format json.")
    return click.option("--format", "form", cls=_FormatOption, type=FormatName(), default=TERMINAL, show_default=True)(
        short(command)
    )


class _FormatOption(click.Option):
    """An option whose help lists the formats; their folder is read when the help is shown."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return flags and help."""
        from edgeopt.report.formats import names

        *others, last = names()
        self.help = f"Form of the result: {', '.join(others)} or {last}."
        return super().get_help_record(ctx)


def exit_codes(
    passed: str = "the budget is met, or none was asked for",
    missed: str = "the budget is missed, proven",
    last: int = EXIT_NOISY,
    interrupted: str = "interrupted by Ctrl-C or SIGTERM",
    undecided: str = "not decided",
) -> Callable[[F], F]:
    """Return a decorator that ends a command's help with its exit codes; it stands below all of click's.

    Args:
        passed: What 0 means.
        missed: What it means that a budget or a check is missed.
        last: The highest code with which the command ends by itself.
        interrupted: What 130 means.
        undecided: What 3 means.
    """
    meanings = {
        EXIT_PASS: passed,
        EXIT_ERROR: "an error",
        EXIT_MISSED: missed,
        EXIT_INCONCLUSIVE: undecided,
        EXIT_NOISY: "the machine was too noisy to decide",
    }
    meanings = {code: meaning for code, meaning in meanings.items() if code <= last} | {EXIT_INTERRUPTED: interrupted}
    rows = "\n".join(f"  {code:<3}  {meaning}" for code, meaning in meanings.items())

    def end_with_codes(command: F) -> F:
        command.__doc__ = f"{inspect.cleandoc(command.__doc__ or '')}\n\n\b\nExit codes:\n{rows}\n"
        return command

    return end_with_codes


def threads_option(default: str = DEFAULT_THREADS) -> Callable[[F], F]:
    """Return `--threads`, which says what holds without it."""
    return click.option("--threads", type=WholeNumber(min=1), show_default=default, help="Threads of the engine.")


def eval_option(
    text: str = "Labels that judge the accuracy", name: str = "labels", default: str = ""
) -> Callable[[F], F]:
    """Return `--eval`, whose help ends in the kinds of labels.

    Args:
        text: Begins the help.
        name: Name of the parameter.
        default: What holds without it; empty: nothing.
    """
    more: dict[str, Any] = {"show_default": default} if default else {}
    if name == "labels":
        more["default"] = ""
    return click.option("--eval", name, metavar="LABELS", help=f"{text}: {LABEL_KINDS}.", **more)


device_option = click.option(
    "--target",
    "-t",
    required=True,
    type=TargetName(),
    metavar="NAME|FILE",
    help=DEVICE,
)


def target_option(text: str) -> Callable[[F], F]:
    """Return `--target`, which need not be written, with the help of a command."""
    return click.option(
        "--target", "-t", type=TargetName(), default="cpu", metavar="NAME|FILE", show_default=True, help=text
    )


recipe_option = click.option(
    "--recipe",
    "-r",
    type=RecipeName(),
    metavar="NAME|FILE",
    show_default="read from the model",
    help="How the model is fed and read: a name of edgeopt models, or a TOML file.",
)
shape_option = click.option(
    "--shape",
    "shapes",
    type=Shape(),
    multiple=True,
    metavar="INPUT=1x3x48x192",
    help="The shape of an input that the model leaves free; repeatable.",
)
input_option = click.option(
    "--input",
    "inputs",
    type=TypedShape(),
    multiple=True,
    metavar="NAME=1x3x224x224",
    help=INPUT,
)
task_option = click.option(
    "--task",
    default="",
    metavar="NAME",
    show_default="the task of the model's class",
    help=TASK,
)
max_drop_option = click.option(
    "--max-drop",
    type=Number(min=0, max=1),
    show_default=f"the recipe's, {MAX_DROP:g}",
    help="How much of the metric may be lost.",
)
prune_option = click.option(
    "--prune",
    type=Amount(),
    default="auto",
    show_default=True,
    help=PRUNED,
)
keep_layers_option = click.option(
    "--keep-layers",
    type=Names(),
    multiple=True,
    callback=joined,
    metavar="NAMES",
    help="Layers that are never pruned, by node, output or weight; repeatable.",
)
