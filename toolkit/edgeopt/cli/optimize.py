"""`edgeopt optimize`."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import click

from edgeopt.cli._groups import GroupedCommand
from edgeopt.cli._options import (
    SAMPLE_KINDS,
    TERMINAL,
    answer_budget,
    code_option,
    device_option,
    eval_option,
    exit_codes,
    format_option,
    frame_budget_ms,
    input_option,
    keep_layers_option,
    max_drop_option,
    output_tokens_option,
    prompt_tokens_option,
    prune_option,
    recipe_option,
    refuse_lengths,
    require_only,
    shape_option,
    task_option,
    threads_option,
)
from edgeopt.cli._output import show
from edgeopt.cli._progress import Progress
from edgeopt.cli._values import Budget, Duration, ModelName, Names, Number, joined

if TYPE_CHECKING:
    from edgeopt.measurement.generation.budget import AnswerBudget
    from edgeopt.pipeline.plan import Options


class _WithSteps(GroupedCommand):
    """A command whose help lists the steps; they are asked when it is printed, and not before."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what each step does."""
        from edgeopt.pipeline.plan import all_steps

        steps = all_steps().items()
        with formatter.section("Steps"):
            when = {name: "" if one.is_default else " [if faster]" if one.is_tried else " [off]" for name, one in steps}
            formatter.write_dl([(name, step.does + when[name]) for name, step in steps])


_GROUPS = {
    "Model and device": ("target", "recipe", "shapes", "out", "threads"),
    "Pictures, labels, budget": ("calib", "labels", "budget", "fps", "max_drop", "prefer"),
    "How long, and again": ("time_limit", "dry_run", "resume", "replay"),
    "Steps (listed below)": ("steps", "skip", "prune", "keep_layers", "finetune_s"),
    "The bundle": ("selftest",),
    "Models that are exported first": ("inputs", "task"),
    "Language models": ("prompt_tokens", "output_tokens"),
    "Pipelines": ("code",),
    "What is printed": ("form",),
}
"""Headings of the help, and the options below each."""


@click.command(cls=_WithSteps, groups=_GROUPS)
@click.argument("model", type=ModelName())
@device_option
@click.option("--out", "-o", type=click.Path(path_type=Path), show_default="out/MODEL-TARGET", help="Folder to write.")
@recipe_option
@shape_option
@input_option
@task_option
@click.option(
    "--calib",
    default="",
    metavar="PICTURES",
    show_default="the recipe's own",
    help=f"Unlabelled samples for INT8: {SAMPLE_KINDS}; or the word synthetic.",
)
@eval_option(default="the recipe's own")
@click.option(
    "--budget",
    type=Budget(),
    show_default="the target's",
    help="Time a frame may take, such as 33ms: a gate. Of a language model ttft:200ms,tpot:20ms.",
)
@click.option("--fps", type=Number(min=0, min_open=True), help="The budget as frames a second.")
@prompt_tokens_option
@output_tokens_option
@max_drop_option
@click.option(
    "--steps",
    type=Names(),
    show_default="default",
    help="Steps to do, of those below; the word default names all that are not off.",
)
@click.option(
    "--finetune",
    "finetune_s",
    type=Duration("s"),
    show_default="not done",
    help="Do the step finetune too, and train so long at most, such as 30m.",
)
@click.option("--skip", type=Names(), multiple=True, callback=joined, help="Steps to leave out; repeatable.")
@prune_option
@keep_layers_option
@click.option("--dry-run", is_flag=True, help="Print the plan and stop.")
@click.option("--resume", is_flag=True, help="Keep the finished candidates of an interrupted run.")
@click.option(
    "--replay",
    default="",
    metavar="REPORT",
    help="Make the models of an earlier run again, byte for byte: its folder or its report.json.",
)
@click.option("--time-limit", type=Duration("s"), help="Time for the whole command, such as 5m.")
@threads_option("all cores, or one where it is as fast")
@code_option
@click.option(
    "--prefer",
    type=click.Choice(["speed", "size"]),
    default="speed",
    show_default=True,
    help="Choose what is proven fastest, or the smallest that is not proven slower.",
)
@click.option(
    "--selftest",
    type=click.Choice(["pictures", "synthetic", "off"]),
    default="pictures",
    show_default=True,
    help="What the bundle stores to test its numbers: calibration pictures, made-up ones, or nothing.",
)
@format_option
@click.pass_context
@exit_codes()
def optimize(
    ctx: click.Context,
    *,
    model: str,
    target: str,
    out: Path | None,
    recipe: str | None,
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    inputs: tuple[tuple[str, tuple[int, ...], str], ...],
    task: str,
    calib: str,
    labels: str,
    budget: float | AnswerBudget | None,
    fps: float | None,
    prompt_tokens: int | None,
    output_tokens: int | None,
    max_drop: float | None,
    steps: tuple[str, ...] | None,
    skip: tuple[str, ...],
    prune: str,
    keep_layers: tuple[str, ...],
    finetune_s: float | None,
    dry_run: bool,
    resume: bool,
    replay: str,
    time_limit: float | None,
    threads: int | None,
    code: Path | None,
    prefer: str,
    selftest: str,
    form: str,
) -> None:
    """Make MODEL fast on a device, and prove it.

    MODEL is an ONNX file, the name of a shipped model, a source that edgeopt export takes (it is exported first), or
    the .toml file of a pipeline, whose models are chosen together. Writes every candidate, a bundle for the runtime,
    and a report. Of a language model it writes the form that is proven fastest for prompts and answers of the lengths
    asked for; --calib and --eval take a text each, --max-drop the share by which its perplexity may rise.
    """
    began_s = monotonic()  # what is imported now takes seconds on a busy machine, and the limit counts them
    from edgeopt.measurement.pipelines.given import is_pipeline
    from edgeopt.pipeline.answering import is_encoder_decoder
    from edgeopt.pipeline.encoder_decoder.optimize import optimize_encoder_decoder
    from edgeopt.pipeline.export.export import names_decoder, names_pair
    from edgeopt.pipeline.export.network import NetworkInput
    from edgeopt.pipeline.generation.optimize import MAX_RISE, LanguageOptions, optimize_language_model
    from edgeopt.pipeline.generation.summary import summarize_language
    from edgeopt.pipeline.optimize import optimize as run
    from edgeopt.pipeline.optimize import show_plan
    from edgeopt.pipeline.plan import Options, SelfTestInputs
    from edgeopt.pipeline.selection import Prefer
    from edgeopt.pipeline.summary import summarize
    from edgeopt.pipeline.writing import is_language_model

    is_pair, is_decoder = is_encoder_decoder(model) or names_pair(model, task), names_decoder(model, task)
    if is_pair or is_decoder or is_language_model(model):
        known = ["target", "out", "labels", "output_tokens", "max_drop", "budget", "threads", "resume", "form"]
        known.append("time_limit")
        if is_pair:
            require_only(ctx, *known, what="an encoder with a decoder")
        else:
            require_only(ctx, *known, "calib", "prompt_tokens", *(("task",) if is_decoder else ()))
        asked = LanguageOptions(
            prompt_tokens=prompt_tokens or 128,
            output_tokens=output_tokens or 64,
            max_rise=MAX_RISE if max_drop is None else max_drop,
            text=labels,
            calib=calib,
            threads=threads or 0,
            budget=answer_budget(budget),
            resume=resume,
            time_limit_s=time_limit,
        )
        with Progress(quiet=form != TERMINAL, limit_s=time_limit, is_whole=True, began_s=began_s) as progress:
            work = optimize_encoder_decoder if is_pair else optimize_language_model
            found = work(model, target=target, out=out, options=asked, listener=progress, began_s=began_s)
        show(summarize_language(found), form)
        ctx.exit(found.exit_code)
    refuse_lengths(prompt_tokens, output_tokens)
    if budget is not None and fps is not None:
        raise click.UsageError("--budget and --fps both say how long a frame may take; give one")
    options = Options(
        calib=calib,
        eval=labels,
        budget_ms=1000 / fps if fps else frame_budget_ms(budget),
        max_drop=max_drop,
        steps=steps,
        skip=skip,
        threads=threads or 0,
        time_limit_s=time_limit,
        resume=resume,
        replay=replay,
        shapes=dict(shapes),
        prefer=Prefer(prefer),
        selftest=SelfTestInputs(selftest),
        prune=prune,
        keep_layers=keep_layers,
        finetune_s=finetune_s,
    )
    if is_pipeline(model):
        if recipe is not None or dry_run:
            raise click.UsageError("--recipe and --dry-run are for a single model; stages name their own recipes")
        if inputs or task:
            raise click.UsageError("--input and --task are for a single model that is exported; export stages first")
        ctx.exit(_optimize_pipeline(model, target, code, out, options, form, began_s))
    if code is not None:
        raise click.UsageError("--code is for a pipeline, and a single model calls nothing; leave it out")
    if dry_run:
        show(show_plan(model, target=target, recipe=recipe, options=options), form)
        return
    with Progress(quiet=form != TERMINAL, limit_s=time_limit, is_whole=True, began_s=began_s) as progress:
        told: dict[str, Any] = {"inputs": [NetworkInput(*one) for one in inputs], "task": task, "began_s": began_s}
        report = run(model, target=target, out=out, recipe=recipe, options=options, listener=progress, **told)
    show(summarize(report), form)
    ctx.exit(report.exit_code)


def _optimize_pipeline(
    model: str, target: str, code: Path | None, out: Path | None, options: Options, form: str, began_s: float
) -> int:
    """Optimize a pipeline and show it; return the exit code."""
    from edgeopt.pipeline.joint.optimize import optimize_pipeline
    from edgeopt.pipeline.joint.summary import summarize

    with Progress(quiet=form != TERMINAL, limit_s=options.time_limit_s, is_whole=True, began_s=began_s) as progress:
        report = optimize_pipeline(
            model, target=target, code=code, out=out, options=options, listener=progress, began_s=began_s
        )
    show(summarize(report), form)
    return report.exit_code


INTERRUPTED = "finished candidates, if any, are on disk; the same command with --resume takes them up"
COMMAND = optimize
