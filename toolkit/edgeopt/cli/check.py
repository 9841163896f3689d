"""`edgeopt check`."""

from __future__ import annotations

from pathlib import Path

import click

from edgeopt.cli._output import TERMINAL, format_option, show
from edgeopt.cli._progress import Progress
from edgeopt.cli._values import Duration, Names, Number


@click.command()
@click.argument("model")
@click.option("--baseline", "-b", required=True, type=click.Path(path_type=Path), help="File to check against.")
@click.option("--update", is_flag=True, help="Write the baseline from this run; nothing is checked.")
@click.option("--target", "-t", default="cpu", show_default=True, help="For a model; a bundle brings its own.")
@click.option("--recipe", "-r", help="How the model is fed and read [read from the model].")
@click.option("--source", "-s", help="Pictures: folder, picture, video or .npz [the recipe's own].")
@click.option("--eval", help="Labels (COCO JSON, CSV) [the recipe's own].")
@click.option("--threads", type=click.IntRange(min=1), help="Threads of the engine [the baseline's].")
@click.option("--seconds", type=Duration("s"), default="20s", show_default=True, help="How long frames run.")
@click.option("--starts", type=click.IntRange(min=3), default=10, show_default=True, help="Fresh processes.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the order of turns.")
@click.option("--latency-ratio", type=Number(min=0), help="Execution and frame time allowed [1.05 of the baseline's].")
@click.option("--accuracy-drop", type=Number(min=0), help="Metric that may be lost [0.01].")
@click.option("--size-ratio", type=Number(min=0), help="Model size allowed [1.05].")
@click.option("--memory-ratio", type=Number(min=0), help="Peak memory of a fresh process allowed [1.10].")
@click.option("--cold-start-ratio", type=Number(min=0), help="Time to the first answer allowed [1.20].")
@click.option("--max-nodes-off-device", type=click.IntRange(min=0), help="Nodes that may leave the first provider [0].")
@click.option("--skip", type=Names(), default="", help="Checks to leave out: latency, accuracy, size, ...")
@click.option("--judge-noisy", is_flag=True, help="On a noisy machine, judge times that were taken in turns.")
@click.option("--junit", type=click.Path(path_type=Path), help="File for JUnit XML.")
@click.option("--markdown", type=click.Path(path_type=Path), help="File for a table in Markdown.")
@format_option
@click.pass_context
def check(
    ctx: click.Context,
    /,
    *,
    model: str,
    baseline: Path,
    update: bool,
    target: str,
    recipe: str | None,
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
    form: str,
    **limits: float | None,
) -> None:
    """Check MODEL (an ONNX file, a shipped model or a bundle) against a baseline: the gate for continuous integration.

    Latency, accuracy, size, memory, cold start and placement; what is allowed comes from the options, then from
    `[check]` in the recipe. Exit code 0: pass; 2: a check failed, proven; 3: not decided; 4: the machine is too noisy
    to judge times; 1: an error.
    """
    from edgeopt.measurement.check.run import check as run
    from edgeopt.measurement.check.summary import summarize
    from edgeopt.report.formats import render
    from edgeopt.system.files import require_writable, write_beside

    files = {name: file for name, file in (("junit", junit), ("markdown", markdown)) if file}
    for file in files.values():
        require_writable(file)
    with Progress(quiet=form != TERMINAL) as progress:
        report = run(
            model,
            baseline=baseline,
            target=target,
            recipe=recipe,
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
