"""Train a pruned or changed model to answer as the original."""

from __future__ import annotations

from pathlib import Path

import click

from edgeopt.cli._help import HelpCommand
from edgeopt.cli._options import (
    TERMINAL,
    eval_option,
    exit_codes,
    format_option,
    recipe_option,
    threads_option,
)
from edgeopt.cli._output import show
from edgeopt.cli._progress import Progress
from edgeopt.cli._values import ModelName, Number, TargetName, WholeNumber
from edgeopt.errors import EXIT_MISSED
from edgeopt.optimization.one_step.limits import MINUTES


@click.command(cls=HelpCommand)
@click.argument("model", type=ModelName())
@click.option(
    "--teacher", required=True, type=ModelName(), metavar="DENSE", help="The model from which MODEL was made."
)
@click.option(
    "--data",
    required=True,
    metavar="PICTURES",
    help="Unlabelled pictures to learn from: a folder, a video or an .npz. A part is held out to judge.",
)
@click.option(
    "--minutes",
    type=Number(min=0, min_open=True),
    default=f"{MINUTES:g}",
    show_default=True,
    help="How long to train, at most.",
)
@click.option(
    "--out", "-o", type=click.Path(path_type=Path), show_default="MODEL.finetuned.onnx", help="The file to write."
)
@eval_option("Labels that score the models at the end, and decide nothing")
@recipe_option
@threads_option()
@click.option("--seed", type=WholeNumber(min=0), default=0, show_default=True, help="Seed of the random numbers.")
@click.option(
    "--steps",
    type=WholeNumber(min=1),
    show_default="as many as fit",
    help="Train this many steps in place of --minutes; on one machine the same bytes each time.",
)
@click.option(
    "--quantize",
    type=TargetName(),
    metavar="TARGET",
    help="Quantize MODEL for this target first (a name of edgeopt targets, or a TOML file), and train it in that form.",
)
@click.option("--resume", is_flag=True, help="Continue an interrupted training, with the same options.")
@format_option
@click.pass_context
@exit_codes(
    passed="a model that answers more like its teacher was written",
    missed="training gained nothing beyond chance: no file is written",
    last=EXIT_MISSED,
)
def finetune(
    ctx: click.Context,
    *,
    model: str,
    teacher: str,
    data: str,
    minutes: float,
    out: Path | None,
    labels: str,
    recipe: str | None,
    threads: int | None,
    seed: int,
    steps: int | None,
    resume: bool,
    quantize: str | None,
    form: str,
) -> None:
    """Train MODEL, which was pruned or changed, to answer unlabelled pictures as the original does.

    Needs torch: pip install 'edgeopt[train]'. The weights that are best on held-out pictures are written under the same
    names.
    """
    from edgeopt.optimization.one_step.finetune import finetune as run
    from edgeopt.optimization.one_step.finetune import summarize

    with Progress(quiet=form != TERMINAL) as progress:
        result = run(
            model,
            teacher=teacher,
            data=data,
            minutes=minutes,
            out=out,
            eval=labels,
            recipe=recipe,
            threads=threads or 0,
            seed=seed,
            steps=steps or 0,
            resume=resume,
            quantize=quantize or "",
            say=progress.say,
            tell=progress.progress,
        )
    show(summarize(result), form)
    ctx.exit(result.exit_code)


INTERRUPTED = "where the training stood, if it had begun, is on disk; the same command with --resume goes on"
COMMAND = finetune
