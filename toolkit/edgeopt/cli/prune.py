"""Write the fastest pruned form that keeps its answers."""

from __future__ import annotations

from pathlib import Path

import click

from edgeopt.cli._help import HelpCommand
from edgeopt.cli._options import (
    TERMINAL,
    eval_option,
    exit_codes,
    format_option,
    keep_layers_option,
    max_drop_option,
    prune_option,
    recipe_option,
    shape_option,
    target_option,
    threads_option,
)
from edgeopt.cli._output import show
from edgeopt.cli._progress import Progress
from edgeopt.cli._values import Duration, ModelName
from edgeopt.errors import EXIT_MISSED
from edgeopt.measurement.common_options import SAMPLE_KINDS


@click.command(cls=HelpCommand)
@click.argument("model", type=ModelName())
@target_option("The device, unless MODEL is a bundle, which brings its own.")
@click.option(
    "--calib",
    default="",
    metavar="PICTURES",
    show_default="the recipe's own",
    help=f"Unlabelled samples for the ranking of channels and the repair of what is left: {SAMPLE_KINDS}.",
)
@click.option(
    "--out", "-o", type=click.Path(path_type=Path), show_default="MODEL.pruned.onnx", help="The file to write."
)
@eval_option(default="the recipe's own")
@recipe_option
@shape_option
@prune_option
@keep_layers_option
@max_drop_option
@threads_option("the fastest of one, the fast cores and all")
@click.option("--time-limit", type=Duration("s"), help="Stop making candidates after this, such as 5m.")
@click.option("--resume", is_flag=True, help="Continue an interrupted run.")
@format_option
@click.pass_context
@exit_codes(
    passed="a pruned model was written: it keeps its accuracy, and is proven faster",
    missed="there is none: the dense model stays, or what --prune names is written",
    last=EXIT_MISSED,
)
def prune(
    ctx: click.Context,
    *,
    model: str,
    target: str,
    calib: str,
    out: Path | None,
    labels: str,
    recipe: str | None,
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    prune: str,
    keep_layers: tuple[str, ...],
    max_drop: float | None,
    threads: int | None,
    time_limit: float | None,
    resume: bool,
    form: str,
) -> None:
    """Write the fastest pruned form of MODEL that keeps its accuracy.

    The step prune alone, after simplify and fuse. The run's folder with all points and the report lies beside the file.
    """
    from edgeopt.optimization.one_step.prune import prune as run
    from edgeopt.optimization.one_step.prune import summarize
    from edgeopt.optimization.options import Options

    options = Options(
        calib=calib,
        eval=labels,
        max_drop=max_drop,
        threads=threads or 0,
        time_limit_s=time_limit,
        resume=resume,
        shapes=dict(shapes),
        prune=prune,
        keep_layers=keep_layers,
    )
    with Progress(quiet=form != TERMINAL, limit_s=time_limit) as progress:
        result = run(model, target=target, out=out, recipe=recipe, options=options, listener=progress)
    show(summarize(result), form)
    ctx.exit(result.exit_code)


INTERRUPTED = "finished candidates, if any, are on disk; the same command with --resume takes them up"
COMMAND = prune
