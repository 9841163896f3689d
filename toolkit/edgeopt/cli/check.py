"""`edgeopt check`."""

from __future__ import annotations

from pathlib import Path

import click

from edgeopt.cli._options import (
    TERMINAL,
    exit_codes,
    format_option,
    recipe_option,
    seed_option,
    shape_option,
    source_option,
    target_option,
    threads_option,
)
from edgeopt.cli._output import show
from edgeopt.cli._progress import Progress
from edgeopt.cli._values import Duration, ModelName, Names, Number, Whole, joined


@click.command()
@click.argument("model", type=ModelName())
@click.option("--baseline", "-b", required=True, type=click.Path(path_type=Path), help="The file to check against.")
@click.option("--update", is_flag=True, help="Write the baseline from this run; nothing is checked.")
@target_option
@recipe_option
@shape_option
@source_option("the recipe's own")
@click.option(
    "--eval",
    metavar="LABELS",
    show_default="the recipe's own",
    help="Labelled pictures that judge the accuracy: COCO JSON or CSV.",
)
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
    [check] in the recipe.
    """
    from edgeopt.measurement.check.run import check as run
    from edgeopt.measurement.check.summary import summarize
    from edgeopt.report.formats import render
    from edgeopt.system.files import require_writable, write_beside

    files = {name: file for name, file in (("junit", junit), ("markdown", markdown), ("html", html)) if file}
    for file in files.values():
        require_writable(file)
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
            thresholds={name: value for name, value in limits.items() if value is not None},
            tell=progress.progress,
        )
    document = summarize(report)
    for name, file in files.items():
        write_beside(file, render(document, name))
    show(document, form)
    ctx.exit(report.exit_code)


COMMAND = check
