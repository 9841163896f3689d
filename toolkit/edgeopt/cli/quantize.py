"""Write the fastest INT8 form that keeps its answers."""

from __future__ import annotations

from pathlib import Path

import click

from edgeopt.cli._help import HelpCommand
from edgeopt.cli._options import (
    TERMINAL,
    device_option,
    eval_option,
    exit_codes,
    format_option,
    max_drop_option,
    recipe_option,
    shape_option,
    threads_option,
)
from edgeopt.cli._output import show
from edgeopt.cli._progress import Progress
from edgeopt.cli._values import Duration, ModelName, WholeNumber
from edgeopt.errors import EXIT_INCONCLUSIVE
from edgeopt.measurement.common_options import SAMPLE_KINDS
from edgeopt.optimization.one_step.limits import SEARCH_S
from edgeopt.system.text import typed_duration


@click.command(cls=HelpCommand)
@click.argument("model", type=ModelName())
@device_option
@click.option(
    "--calib",
    default="",
    metavar="PICTURES",
    show_default="the recipe's own",
    help=f"Unlabelled samples: {SAMPLE_KINDS}; or the word synthetic.",
)
@click.option("--out", "-o", type=click.Path(path_type=Path), show_default="MODEL.int8.onnx", help="The file to write.")
@eval_option()
@recipe_option
@shape_option
@threads_option()
@click.option(
    "--time-limit",
    type=Duration("s"),
    default=typed_duration(1000 * SEARCH_S),
    show_default=True,
    help="Stop searching after this.",
)
@max_drop_option
@click.option(
    "--seed",
    type=WholeNumber(min=0),
    default=0,
    show_default=True,
    help="Seed of the random numbers: they decide which values of each tensor are kept while INT8 forms are searched.",
)
@click.option(
    "--replay",
    default="",
    metavar="REPORT",
    help="Make the form of an earlier run again, byte for byte: optimize's output folder or report, or the "
    "decisions.json beside a form.",
)
@format_option
@click.pass_context
@exit_codes(
    passed="an INT8 model was written",
    missed="no INT8 form is fast and accurate enough: the float model stays",
    last=EXIT_INCONCLUSIVE,
    undecided="not decided: an INT8 model was written, its accuracy is open",
)
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
    time_limit: float,
    max_drop: float | None,
    seed: int,
    replay: str,
    form: str,
) -> None:
    """Write the fastest INT8 form of MODEL that keeps its answers.

    The step quantize alone. The best form so far is written at once: the search may be interrupted.
    """
    from edgeopt.optimization.one_step.quantize import quantize as run
    from edgeopt.optimization.one_step.quantize import summarize

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
            time_limit_s=time_limit,
            max_drop=max_drop,
            seed=seed,
            replay=replay,
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
