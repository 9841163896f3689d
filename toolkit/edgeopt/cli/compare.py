"""`edgeopt compare`."""

from __future__ import annotations

from pathlib import Path

import click

from edgeopt.cli._output import TERMINAL, format_option, show
from edgeopt.cli._progress import Progress
from edgeopt.cli._values import Duration, Share


@click.command()
@click.argument("subjects", nargs=-1, metavar="A B [C]...")
@click.option("--target", "-t", default="cpu", show_default=True, help="For models; a bundle brings its own.")
@click.option("--recipe", "-r", help="How the models are fed and read [read from each model].")
@click.option("--source", "-s", help="Pictures: folder, picture, video or .npz [the first one's own].")
@click.option("--eval", help="Labels (COCO JSON, CSV): compares the accuracy too.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads of the engine [physical cores].")
@click.option("--seconds", type=Duration("s"), default="20s", show_default=True, help="How long, all together.")
@click.option("--margin", type=Share(), default="2%", show_default=True, help="Ratios this near to 1 are equal.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the order of turns.")
@click.option("--out", "-o", type=click.Path(path_type=Path), help="Folder for compare.json, .md and the raw samples.")
@format_option
@click.pass_context
def compare(
    ctx: click.Context,
    *,
    subjects: tuple[str, ...],
    target: str,
    recipe: str | None,
    source: str | None,
    eval: str | None,  # noqa: A002  (the option's name)
    threads: int | None,
    seconds: float,
    margin: float,
    seed: int,
    out: Path | None,
    form: str,
) -> None:
    """Compare B, C and more with A: models, bundles and shipped models run in turns; or results of `bench -o`.

    Says FASTER, SLOWER, EQUIVALENT or INCONCLUSIVE for each stage and the whole frame. Exit code 0, or 1 on an error;
    the gate is `edgeopt check`.
    """
    from edgeopt.measurement.compare.run import compare as run
    from edgeopt.measurement.compare.summary import summarize

    with Progress(quiet=form != TERMINAL) as progress:
        result = run(
            *subjects,
            target=target,
            recipe=recipe,
            source=source,
            eval=eval,
            threads=threads or 0,
            seconds=seconds,
            margin=margin,
            seed=seed,
            out=out,
            tell=progress.progress,
        )
    show(summarize(result), form)
    ctx.exit(result.exit_code)


COMMAND = compare
