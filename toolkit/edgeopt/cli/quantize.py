"""`edgeopt quantize`."""

from __future__ import annotations

from pathlib import Path

import click

from edgeopt.cli._output import TERMINAL, format_option, show
from edgeopt.cli._progress import Progress
from edgeopt.cli._values import Duration, Number, shape_option


@click.command()
@click.argument("model")
@click.option("--target", "-t", required=True, help="A shipped device profile (edgeopt targets) or a TOML file.")
@click.option("--calib", default="", help="Unlabelled pictures: folder, video, .npz, or synthetic [the recipe's own].")
@click.option("--out", "-o", type=click.Path(path_type=Path), help="The file to write [MODEL.int8.onnx].")
@click.option("--eval", "labels", default="", help="Labelled pictures that judge the result: COCO JSON or CSV.")
@click.option("--recipe", "-r", help="How the model is fed and read: a name or a TOML file [read from the model].")
@shape_option
@click.option("--threads", type=click.IntRange(min=1), help="Threads of the engine [physical cores].")
@click.option("--time-budget", type=Duration("s"), default="3m", show_default=True, help="Stop searching after this.")
@click.option("--max-drop", type=Number(min=0, max=1), help="Metric that may be lost [the recipe's, 0.01].")
@format_option
@click.pass_context
def quantize(
    ctx: click.Context,
    *,
    model: str,
    target: str,
    calib: str,
    out: Path | None,
    labels: str,
    recipe: str | None,
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    threads: int | None,
    time_budget: float,
    max_drop: float | None,
    form: str,
) -> None:
    """Search for the fastest INT8 form of MODEL that keeps its answers: the step quantize alone.

    The best form so far is written at once, so the search may be interrupted. Exit code 0: an INT8 model was written;
    2: none is fast and accurate enough, the float model stays; 1: an error.
    """
    from edgeopt.pipeline.quantize import quantize as run
    from edgeopt.pipeline.quantize_summary import summarize

    with Progress(quiet=form != TERMINAL) as progress:
        result = run(
            model,
            target=target,
            calib=calib,
            out=out,
            eval=labels,
            recipe=recipe,
            shapes=dict(shapes),
            threads=threads or 0,
            time_budget_s=time_budget,
            max_drop=max_drop,
            say=progress.say,
            tell=progress.progress,
        )
    show(summarize(result), form)
    ctx.exit(result.exit_code)


INTERRUPTED = (
    "the best form so far, if one was good enough, is beside the file that was asked for (.best-so-far); "
    "the same command takes up what was calibrated"
)
COMMAND = quantize
