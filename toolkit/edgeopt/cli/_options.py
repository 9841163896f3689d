"""Options that several commands share."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

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
    Whole,
    joined,
)
from edgeopt.errors import EXIT_ERROR, EXIT_INCONCLUSIVE, EXIT_MISSED, EXIT_NOISY, EXIT_PASS
from edgeopt.system.threads import DEFAULT_THREADS

if TYPE_CHECKING:
    from edgeopt.measurement.generation.budget import AnswerBudget

TERMINAL = "terminal"
F = TypeVar("F", bound=Callable[..., Any])


def format_option(command: F) -> F:
    """Add `--format`, and `--json` as a short form of it; the command gets the name as `form`."""
    short = click.option("--json", "form", flag_value="json", help="The same as --format json.")
    return click.option(
        "--format", "form", type=FormatName(), default=TERMINAL, show_default=True, help="What to print."
    )(short(command))


def exit_codes(
    passed: str = "the budget is met, or none was asked for",
    missed: str = "the budget is missed, proven",
    noisy: str = "the machine was too noisy to decide",
    last: int = EXIT_NOISY,
) -> Callable[[F], F]:
    """Return a decorator that ends a command's help with its exit codes; it stands below all of click's.

    Args:
        passed: What 0 means.
        missed: What it means that a budget or a check is missed.
        noisy: What it means that the machine is too noisy.
        last: The highest code with which the command ends.
    """
    meanings = {
        EXIT_PASS: passed,
        EXIT_ERROR: "an error",
        EXIT_MISSED: missed,
        EXIT_INCONCLUSIVE: "not decided",
        EXIT_NOISY: noisy,
    }
    rows = "\n".join(f"  {code}  {meaning}" for code, meaning in meanings.items() if code <= last)

    def end_with_codes(command: F) -> F:
        command.__doc__ = f"{inspect.cleandoc(command.__doc__ or '')}\n\n\b\nExit codes:\n{rows}\n"
        return command

    return end_with_codes


def threads_option(default: str = DEFAULT_THREADS) -> Callable[[F], F]:
    """Return `--threads`, which says what holds without it."""
    return click.option("--threads", type=Whole(min=1), show_default=default, help="Threads of the engine.")


LABEL_KINDS = "COCO JSON, YOLO or VOC files, class folders, masks, a CSV"
"""What `--eval` reads, in a few words; docs/recipes.md tells the rest."""
SAMPLE_KINDS = "a folder, a video, an .npz, sounds (.wav) or texts"
"""What holds unlabelled samples."""


def eval_option(
    told: str = "Labels that judge the accuracy", name: str = "labels", default: str = ""
) -> Callable[[F], F]:
    """Return `--eval`, whose help ends in the kinds of labels.

    Args:
        told: Begins the help.
        name: Of the parameter.
        default: What holds without it; empty: nothing.
    """
    more: dict[str, Any] = {"show_default": default} if default else {}
    if name == "labels":
        more["default"] = ""
    return click.option("--eval", name, metavar="LABELS", help=f"{told}: {LABEL_KINDS}.", **more)


def source_option(default: str) -> Callable[[F], F]:
    """Return `--source`, which says what holds without it."""
    return click.option("--source", "-s", metavar="PICTURES", show_default=default, help=f"A picture, {SAMPLE_KINDS}.")


device_option = click.option(
    "--target",
    "-t",
    required=True,
    type=TargetName(),
    metavar="NAME|FILE",
    help="The device: a name of edgeopt targets, or a TOML file.",
)
target_option = click.option(
    "--target",
    "-t",
    type=TargetName(),
    default="cpu",
    metavar="NAME|FILE",
    show_default=True,
    help="The device, for a model; a bundle brings its own.",
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
    help="Name and shape of an input that is exported, in order; of another type ids=1x128:int64. Repeatable.",
)
task_option = click.option(
    "--task",
    default="",
    metavar="NAME",
    show_default="that of its own class",
    help="Of hf: what it is opened for, by optimum's name, such as feature-extraction.",
)
system_option = click.option(
    "--system",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A text before each prompt; it is computed once, and read from a cache later.",
)
prefixes_option = click.option(
    "--prefixes",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    show_default="below the user's caches",
    help="Where the cache of --system lies.",
)
max_drop_option = click.option(
    "--max-drop",
    type=Number(min=0, max=1),
    show_default="the recipe's, 0.01",
    help="How much of the metric may be lost.",
)
prune_option = click.option(
    "--prune",
    type=Amount(),
    default="auto",
    show_default=True,
    help="Channels to remove: as many as pay on this machine, a share such as 0.3, or until 1.5x as fast.",
)
keep_layers_option = click.option(
    "--keep-layers",
    type=Names(),
    multiple=True,
    callback=joined,
    metavar="NAMES",
    help="Layers that are never pruned, by node, output or weight; repeatable.",
)
code_option = click.option(
    "--code",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    show_default="none is run",
    help="Of a pipeline: where the modules lie that its stages call. They are run.",
)
seed_option = click.option(
    "--seed", type=Whole(min=0), default=0, show_default=True, help="Decides the order of what runs in turns."
)


prompt_tokens_option = click.option(
    "--prompt-tokens", type=Whole(min=1), show_default="128", help="Of a language model: the length of its prompts."
)
output_tokens_option = click.option(
    "--output-tokens", type=Whole(min=2), show_default="64", help="And that of its answers."
)


def refuse_lengths(prompt_tokens: int | None, output_tokens: int | None) -> None:
    """Raise where lengths of prompts or answers were asked for of what is no language model."""
    if prompt_tokens is not None or output_tokens is not None:
        raise click.UsageError("--prompt-tokens and --output-tokens are for a language model, and this is none")


def frame_budget_ms(budget: float | AnswerBudget | None) -> float | None:
    """Return the budget of a frame; None: none was given.

    Raises:
        click.UsageError: If it limits answers.
    """
    if budget is None or isinstance(budget, float):
        return None if budget is None else budget * 1000
    raise click.UsageError("--budget ttft and tpot limit a language model, and this is none: write 33ms")


def answer_budget(budget: float | AnswerBudget | None) -> AnswerBudget | None:
    """Return the limits of an answer; None: none were given.

    Raises:
        click.UsageError: If it is the time of a frame.
    """
    if isinstance(budget, float):
        raise click.UsageError("--budget TIME is that of a frame; of a language model write ttft:200ms,tpot:20ms")
    return budget


def key_of(variable: str | None) -> str:
    """Return the key that a variable of the environment holds, where nobody reads it from the list of processes.

    Raises:
        click.UsageError: If it is not set, or no header of HTTP carries it.
    """
    key = os.environ.get(variable, "").strip() if variable is not None else ""  # files of secrets end in a new line
    if variable is not None and not key:
        raise click.UsageError(f"--key-from {variable}: no such variable is set, or it is empty")
    if not all("!" <= letter <= "~" for letter in key):
        raise click.UsageError(f"--key-from {variable}: a key is of letters, digits and signs of ASCII, without spaces")
    return key


def require_guesses(guesses: int | None, draft: str | None) -> None:
    """Raise where somebody is named who guesses, and no guesses are asked for."""
    if guesses == 0 and draft not in (None, "none"):
        raise click.UsageError("--guesses 0 asks for none, and --draft names who makes them; leave one of them out")


def require_drawing(temperature: float | None, **drawn: object) -> None:
    """Raise where it is said how tokens are drawn, and none are."""
    if not temperature and (given := next((name for name, value in drawn.items() if value is not None), "")):
        name = f"--{given.replace('_', '-')}"
        raise click.UsageError(f"{name} is for tokens that are drawn, and none are; add --temperature 0.8")


def first_given(ctx: click.Context, names: Collection[str]) -> str:
    """Return the first of these options that stands on the command line, as it is written; empty: none does."""
    typed = click.core.ParameterSource.COMMANDLINE
    found = [one for one in ctx.command.params if one.name in names and ctx.get_parameter_source(one.name) is typed]
    return found[0].opts[0] if found else ""


def require_only(ctx: click.Context, *taken: str, what: str = "language models") -> None:
    """Raise where an option was given that is not taken: none is passed over in silence.

    Args:
        ctx: Of the command.
        taken: Names of its options that are taken; arguments are always taken.
        what: Takes them.
    """
    others = [one.name or "" for one in ctx.command.params if isinstance(one, click.Option) and one.name not in taken]
    if given := first_given(ctx, others):
        raise click.UsageError(f"{given} is not for {what} so far; leave it out")
