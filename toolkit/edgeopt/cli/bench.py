"""`edgeopt bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from edgeopt.cli._options import (
    TERMINAL,
    code_option,
    exit_codes,
    format_option,
    recipe_option,
    require_only,
    shape_option,
    source_option,
    target_option,
    threads_option,
)
from edgeopt.cli._output import show
from edgeopt.cli._progress import Progress
from edgeopt.cli._values import Counts, Duration, ModelName, Number, Share, Whole
from edgeopt.system.threads import DEFAULT_THREADS

_POSITIVE = Number(min=0, min_open=True)


class _LoadOption(click.Option):
    """Its help names the load models, which are imported when it is shown."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        from edgeopt.measurement.load.models import examples

        self.help = f"How frames arrive: {examples()}."
        return super().get_help_record(ctx)


@click.command()
@click.argument("model", type=ModelName())
@target_option
@recipe_option
@shape_option
@source_option("the recipe's own")
@click.option("--load", cls=_LoadOption, default="closed", show_default=True)
@click.option("--streams", type=Whole(min=1), default=1, show_default=True, help="Cameras, each at the rate of --load.")
@click.option(
    "--phases",
    type=click.Choice(["uniform", "random"]),
    default="uniform",
    show_default=True,
    help="How far apart cameras begin.",
)
@click.option("--queue", default="fifo", show_default=True, help="Which frames wait: fifo, bounded:K or latest.")
@click.option("--workers", type=Whole(min=1), default=1, show_default=True, help="Sessions that serve the frames.")
@click.option("--jitter", type=Duration("ms"), help="Standard deviation of the times at which a camera takes pictures.")
@click.option(
    "--seconds", type=Duration("s"), show_default="5s; 30s a run of --find-capacity", help="Measure at least so long."
)
@click.option("--frames", type=Whole(min=1), default=400, show_default=True, help="Measure at least so many frames.")
@click.option("--minutes", type=_POSITIVE, help="Measure so long instead, and show how times change.")
@click.option(
    "--budget",
    type=Duration("ms"),
    show_default="the target's, no gate",
    help="Time a frame may take, such as 33ms: a gate.",
)
@click.option(
    "--max-miss", type=Share(), default="1%", show_default=True, help="Share of the frames that may miss the budget."
)
@click.option("--rounds", type=Whole(min=2), help="Fresh processes that run beside, for the p99 over processes.")
@click.option("--find-capacity", is_flag=True, help="Search for the highest rate that keeps the budget.")
@click.option("--batch", type=Counts(), help="Also measure these batch sizes, such as 1,2,4,8.")
@click.option("--beside", metavar="B[@15fps]", help="Also run another model here: side by side, then in turns.")
@click.option("--cold", is_flag=True, help="Also time starts of fresh processes, with a warm and a cold page cache.")
@click.option("--repeats", type=Whole(min=1), show_default="10", help="Starts of each kind for --cold.")
@click.option(
    "--spin", type=click.Choice(["on", "off"]), show_default="on", help="Whether idle threads of ONNX Runtime spin."
)
@click.option("--profile", is_flag=True, help="Also show which operators take the time, in a run of its own.")
@click.option("--trace", type=click.Path(path_type=Path), help="Write a timeline, for Perfetto or chrome://tracing.")
@click.option("--energy", is_flag=True, help="Also read the machine's power meters; takes 30s or more.")
@click.option(
    "--device-price", type=_POSITIVE, help="For the cost of an inference: price of the device, in any currency."
)
@click.option("--life-years", type=_POSITIVE, show_default="5", help="How long the device works.")
@click.option("--watts", type=_POSITIVE, show_default="as measured by --energy", help="Its power.")
@click.option("--kwh-price", type=_POSITIVE, help="Price of a kWh.")
@click.option("--cloud-price", type=_POSITIVE, help="Price of a rented hour, in place of a device.")
@threads_option(f"{DEFAULT_THREADS}, shared by the sessions")
@code_option
@click.option(
    "--prompt-tokens",
    type=Counts(),
    help="Measure a language model: answers to prompts of these lengths, such as 128,512.",
)
@click.option("--output-tokens", type=Whole(min=2), show_default="64", help="Tokens of each such answer.")
@click.option("--seed", type=Whole(min=0), default=0, show_default=True, help="Decides arrivals, phases and orders.")
@click.option(
    "--out", "-o", type=click.Path(path_type=Path), help="Folder for bench.json, .md, .html and the raw samples."
)
@format_option
@click.pass_context
@exit_codes()
def bench(
    ctx: click.Context,
    /,
    *,
    model: str,
    target: str,
    recipe: str | None,
    out: Path | None,
    code: Path | None,
    form: str,
    prompt_tokens: tuple[int, ...] | None,
    output_tokens: int | None,
    **wishes: Any,
) -> None:
    """Measure MODEL stage by stage, and say what to do about it.

    MODEL is an ONNX file, the name of a shipped model, a bundle, or a pipeline: its .toml file or bundle.
    """
    from edgeopt.measurement.bench.run import bench as run
    from edgeopt.measurement.bench.summary import summarize
    from edgeopt.measurement.pipelines.given import is_pipeline

    if prompt_tokens is not None:
        require_only(ctx, "prompt_tokens", "output_tokens", "threads", "seed", "seconds", "form")
        _bench_generation(model, prompt_tokens, output_tokens or 64, wishes, form)
        return
    if output_tokens is not None:
        raise click.UsageError("--output-tokens belongs to --prompt-tokens")
    options = _options(**wishes)
    if is_pipeline(model):
        ctx.exit(_bench_pipeline(model, target, recipe, code, options, out, form))
    if code is not None:
        raise click.UsageError("--code is for a pipeline, and a single model calls nothing; leave it out")
    with Progress(quiet=form != TERMINAL) as progress:
        result = run(model, target=target, recipe=recipe, options=options, out=out, tell=progress.progress)
    show(summarize(result), form)
    ctx.exit(result.exit_code)


def _bench_generation(
    model: str, prompt_tokens: tuple[int, ...], output_tokens: int, wishes: dict[str, Any], form: str
) -> None:
    """Measure a language model and show it."""
    from edgeopt.measurement.generation.bench import GenerationOptions, bench_generation
    from edgeopt.measurement.generation.summary import summarize_generation
    from edgeopt.pipeline.writing import find_language_model

    given = {"threads": wishes["threads"], "seed": wishes["seed"], "seconds": wishes["seconds"]}
    known = {name: value for name, value in given.items() if value is not None}
    options = GenerationOptions(prompt_tokens, output_tokens, **known)
    with Progress(quiet=form != TERMINAL) as progress:
        result = bench_generation(find_language_model(model), options, tell=progress.progress)
    show(summarize_generation(result), form)


def _bench_pipeline(
    model: str, target: str, recipe: str | None, code: Path | None, options: Any, out: Path | None, form: str
) -> int:
    """Measure a pipeline and show it; return the exit code."""
    from edgeopt.measurement.pipelines.bench import bench_pipeline
    from edgeopt.measurement.pipelines.summary import summarize

    if recipe is not None:
        raise click.UsageError("--recipe is for a single model; each stage of a pipeline names its own")
    with Progress(quiet=form != TERMINAL) as progress:
        result = bench_pipeline(model, target=target, code=code, options=options, out=out, tell=progress.progress)
    show(summarize(result), form)
    return result.exit_code


def _options(
    *,
    frames: int,
    budget: float | None,
    max_miss: float,
    jitter: float | None,
    batch: tuple[int, ...] | None,
    spin: str | None,
    threads: int | None,
    rounds: int | None,
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    **others: Any,
) -> Any:
    """Return the wishes in the library's units."""
    from edgeopt.measurement.bench.options import BenchOptions

    return BenchOptions(
        min_frames=frames,
        budget_ms=budget * 1000 if budget else None,
        max_miss_ratio=max_miss,
        jitter_ms=jitter * 1000 if jitter else 0.0,
        batches=batch or (),
        spin=None if spin is None else spin == "on",
        threads=threads or 0,
        rounds=rounds or 0,
        shapes=dict(shapes),
        **others,
    )


COMMAND = bench
