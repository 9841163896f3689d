"""`edgeopt check`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgeopt.cli._groups import GroupedCommand
from edgeopt.cli._options import (
    TERMINAL,
    answer_budget,
    eval_option,
    exit_codes,
    format_option,
    output_tokens_option,
    prompt_tokens_option,
    recipe_option,
    refuse_lengths,
    require_only,
    seed_option,
    shape_option,
    source_option,
    target_option,
    threads_option,
)
from edgeopt.cli._output import show
from edgeopt.cli._progress import Progress
from edgeopt.cli._values import Budget, Duration, ModelName, Names, Number, Whole, joined

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgeopt.measurement.check.result import CheckReport

_OF_WRITERS = (
    "baseline",
    "update",
    "eval",
    "budget",
    "prompt_tokens",
    "output_tokens",
    "threads",
    "seconds",
    "latency_ratio",
    "accuracy_drop",
    "size_ratio",
    "memory_ratio",
    "skip",
    "junit",
    "markdown",
    "html",
    "form",
)
"""Options that a language model takes."""


_GROUPS = {
    "Model, baseline, device": ("baseline", "update", "target", "recipe", "shapes", "threads"),
    "What is measured": ("source", "eval", "seconds", "starts", "seed", "skip", "judge_noisy"),
    "What is allowed": (
        "latency_ratio",
        "accuracy_drop",
        "size_ratio",
        "memory_ratio",
        "cold_start_ratio",
        "max_nodes_off_device",
    ),
    "Language models": ("budget", "prompt_tokens", "output_tokens"),
    "What is printed": ("form", "junit", "markdown", "html"),
}
"""Headings of the help, and the options below each."""


@click.command(cls=GroupedCommand, groups=_GROUPS)
@click.argument("model", type=ModelName())
@click.option("--baseline", "-b", required=True, type=click.Path(path_type=Path), help="The file to check against.")
@click.option("--update", is_flag=True, help="Write the baseline from this run; nothing is checked.")
@target_option
@recipe_option
@shape_option
@source_option("the recipe's own")
@eval_option(name="eval", default="the recipe's own")
@click.option("--budget", type=Budget(), help="Of a language model: limits beside the baseline, ttft:200ms,tpot:20ms.")
@prompt_tokens_option
@output_tokens_option
@threads_option("the baseline's")
@click.option("--seconds", type=Duration("s"), default="20s", show_default=True, help="How long frames are measured.")
@click.option(
    "--starts", type=Whole(min=3), default=10, show_default=True, help="Fresh processes for memory and cold start."
)
@seed_option
@click.option(
    "--latency-ratio",
    type=Number(min=0),
    show_default="1.05",
    help="Execution and frame time allowed, over the baseline's.",
)
@click.option("--accuracy-drop", type=Number(min=0), show_default="0.01", help="How much of the metric may be lost.")
@click.option("--size-ratio", type=Number(min=0), show_default="1.05", help="Model size allowed, over the baseline's.")
@click.option(
    "--memory-ratio", type=Number(min=0), show_default="1.10", help="Peak memory allowed, over the baseline's."
)
@click.option(
    "--cold-start-ratio",
    type=Number(min=0),
    show_default="1.20",
    help="Time to the first answer allowed, over the baseline's.",
)
@click.option(
    "--max-nodes-off-device", type=Whole(min=0), show_default="0", help="Nodes that may leave the device for the CPU."
)
@click.option(
    "--skip",
    type=Names(),
    multiple=True,
    callback=joined,
    help="Checks to leave out: latency, accuracy, size, memory, cold_start, placement; repeatable.",
)
@click.option("--judge-noisy", is_flag=True, help="On a noisy machine too, judge times that were measured in turns.")
@click.option("--junit", type=click.Path(path_type=Path), help="Also write JUnit XML into this file.")
@click.option("--markdown", type=click.Path(path_type=Path), help="Also write Markdown into this file.")
@click.option("--html", type=click.Path(path_type=Path), help="Also write a page with charts into this file.")
@format_option
@click.pass_context
@exit_codes(
    passed="every check passed, or the baseline was written",
    missed="a check failed, proven",
    noisy="the machine was too noisy to judge times",
)
def check(
    ctx: click.Context,
    /,
    *,
    model: str,
    baseline: Path,
    update: bool,
    target: str,
    recipe: str | None,
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    source: str | None,
    eval: str | None,  # noqa: A002  (the option's name)
    budget: Any,
    prompt_tokens: int | None,
    output_tokens: int | None,
    threads: int | None,
    seconds: float,
    starts: int,
    seed: int,
    skip: tuple[str, ...],
    judge_noisy: bool,
    junit: Path | None,
    markdown: Path | None,
    html: Path | None,
    form: str,
    **limits: float | None,
) -> None:
    """Check MODEL against a baseline.

    The gate for continuous integration. MODEL is an ONNX file, the name of a shipped model, or a bundle. Latency,
    accuracy, size, memory, cold start and placement are checked; what is allowed comes from the options, then from
    [check] in the recipe. Of a language model: times of answers, perplexity on the text of --eval (--accuracy-drop is
    the share by which it may rise), size, and the memory of its cache.
    """
    from edgeopt.measurement.check.run import check as run
    from edgeopt.pipeline.answering import is_encoder_decoder
    from edgeopt.pipeline.writing import is_language_model
    from edgeopt.system.files import require_writable

    files = {name: file for name, file in (("junit", junit), ("markdown", markdown), ("html", html)) if file}
    for file in files.values():
        require_writable(file)
    thresholds = {name: value for name, value in limits.items() if value is not None}
    if is_encoder_decoder(model) or is_language_model(model):
        report = _check_writer(ctx, model, baseline, budget, prompt_tokens, output_tokens, thresholds, form)
        _tell(report, files, form)
        ctx.exit(report.exit_code)
    refuse_lengths(prompt_tokens, output_tokens)
    if budget is not None:
        raise click.UsageError("--budget is for a language model; of frames edgeopt bench --budget is the gate")
    with Progress(quiet=form != TERMINAL) as progress:
        report = run(
            model,
            baseline=baseline,
            target=target,
            recipe=recipe,
            shapes=dict(shapes),
            source=source,
            eval=eval,
            threads=threads or 0,
            seconds=seconds,
            starts=starts,
            seed=seed,
            skip=skip,
            judge_noisy=judge_noisy,
            update=update,
            thresholds=thresholds,
            tell=progress.progress,
        )
    _tell(report, files, form)
    ctx.exit(report.exit_code)


def _tell(report: CheckReport, files: Mapping[str, Path], form: str) -> None:
    """Print a report, and write it where it was asked for."""
    from edgeopt.measurement.check.summary import summarize
    from edgeopt.report.formats import render
    from edgeopt.system.files import write_beside

    document = summarize(report)
    for name, file in files.items():
        write_beside(file, render(document, name))
    show(document, form)


def _check_writer(
    ctx: click.Context,
    model: str,
    baseline: Path,
    budget: Any,
    prompt_tokens: int | None,
    output_tokens: int | None,
    thresholds: Mapping[str, float],
    form: str,
) -> CheckReport:
    """Check a language model."""
    from edgeopt.measurement.check.run import thresholds_of
    from edgeopt.measurement.generation.check import check_language_model
    from edgeopt.measurement.generation.side_by_side import SideOptions
    from edgeopt.pipeline.writing import find_language_model
    from edgeopt.recipes.recipe import Check

    given = ctx.params
    require_only(ctx, *_OF_WRITERS)
    asked = SideOptions(
        prompt_tokens=prompt_tokens or 0,
        output_tokens=output_tokens or 0,
        text=given["eval"] or "",
        threads=given["threads"] or 0,
        seconds=given["seconds"],
    )
    with Progress(quiet=form != TERMINAL) as progress:
        return check_language_model(
            model,
            find_language_model(model),
            baseline=baseline,
            options=asked,
            limits=thresholds_of(Check(), thresholds),
            find=find_language_model,
            skip=given["skip"],
            budget=answer_budget(budget),
            update=given["update"],
            tell=progress.progress,
        )


COMMAND = check
