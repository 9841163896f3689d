"""`edgeopt bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from edgeopt.cli._groups import GroupedCommand
from edgeopt.cli._options import (
    TERMINAL,
    answer_budget,
    code_option,
    exit_codes,
    first_given,
    format_option,
    frame_budget_ms,
    key_of,
    recipe_option,
    require_guesses,
    require_only,
    shape_option,
    source_option,
    target_option,
    threads_option,
)
from edgeopt.cli._output import show
from edgeopt.cli._progress import Progress
from edgeopt.cli._values import Budget, Counts, Duration, Guesses, ModelName, Number, Share, Whole
from edgeopt.system.threads import DEFAULT_THREADS

_PROMPTS = (128,)
"""Lengths of prompts to a language model where none are asked for."""
_POSITIVE = Number(min=0, min_open=True)


_PRICES = ("device_price", "life_years", "watts", "kwh_price", "cloud_price")
_OF_ENDPOINTS = (
    "endpoint",
    "key_from",
    "prompt_tokens",
    "output_tokens",
    "load",
    "seconds",
    "seed",
    "budget",
    "out",
    "form",
    *_PRICES,
)
"""What a server is measured by."""


_OF_WRITERS = (
    *("prompt_tokens", "output_tokens", "threads", "seed", "seconds", "budget", "max_miss", "form", "out"),
    *("cold", "repeats"),
)
"""What a language model takes, with an encoder or without."""
_OF_DECODERS = ("load", "slots", "guesses", "draft", "context", *_PRICES)
"""What a language model takes that has no encoder."""


class _LoadOption(click.Option):
    """Its help names the load models, which are imported when it is shown."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        from edgeopt.measurement.load.models import examples

        self.help = f"How frames arrive: {examples()}."
        return super().get_help_record(ctx)


_GROUPS = {
    "Model and device": ("target", "recipe", "shapes", "source", "threads", "out"),
    "How long": ("seconds", "frames", "minutes"),
    "The budget, a gate": ("budget", "max_miss", "find_capacity"),
    "How frames arrive": ("load", "streams", "phases", "jitter", "queue", "workers", "seed"),
    "Measured besides": ("profile", "cold", "repeats", "rounds", "batch", "beside", "spin", "trace"),
    "Energy and cost": ("energy", "watts", "device_price", "life_years", "kwh_price", "cloud_price"),
    "Language models": ("prompt_tokens", "output_tokens", "slots", "guesses", "draft", "context"),
    "Servers": ("endpoint", "key_from"),
    "Pipelines": ("code",),
    "What is printed": ("form",),
}
"""Headings of the help, and the options below each."""


@click.command(cls=GroupedCommand, groups=_GROUPS)
@click.argument("model", type=ModelName(), required=False)
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
@click.option(
    "--minutes", type=_POSITIVE, metavar="MINUTES", help="Measure so long instead, and show the curve of times."
)
@click.option(
    "--budget",
    type=Budget(),
    show_default="the target's, no gate",
    help="Time a frame may take, such as 33ms: a gate. Of a language model ttft:200ms,tpot:20ms.",
)
@click.option(
    "--max-miss",
    type=Share(),
    default="1%",
    show_default="1%; 5% of answers",
    help="Share of the frames that may miss the budget.",
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
    show_default="128",
    help="Of a language model: lengths of its prompts, such as 128,512.",
)
@click.option(
    "--slots",
    type=Counts(),
    show_default="4",
    help="Of a language model under --load: texts written at once; 1,2,4,8 shows what more give and cost.",
)
@click.option(
    "--guesses",
    type=Guesses(),
    show_default="the recipe's",
    help="Of a language model: tokens guessed a run; auto: as many as are predicted to pay.",
)
@click.option(
    "--draft",
    metavar="MODEL",
    show_default="the recipe's",
    help="A smaller model that makes the guesses; none: the text so far does.",
)
@click.option(
    "--context",
    type=Whole(min=2),
    show_default="the model's",
    help="Of a language model: tokens of prompt and answer, for which memory is reserved.",
)
@click.option("--output-tokens", type=Whole(min=2), show_default="64", help="Tokens of each such answer.")
@click.option(
    "--endpoint",
    metavar="URL",
    help="Measure a server that speaks OpenAI's interface, as its client; MODEL is then one of its own.",
)
@click.option("--key-from", metavar="NAME", help="Variable of the environment that holds the server's key.")
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
    model: str | None,
    target: str,
    recipe: str | None,
    out: Path | None,
    code: Path | None,
    form: str,
    prompt_tokens: tuple[int, ...] | None,
    output_tokens: int | None,
    guesses: int | None,
    draft: str | None,
    endpoint: str | None,
    key_from: str | None,
    slots: tuple[int, ...] | None,
    context: int | None,
    **wishes: Any,
) -> None:
    """Measure MODEL stage by stage, and say what to do about it.

    MODEL is an ONNX file, the name of a shipped model, a bundle, or a pipeline: its .toml file or bundle.
    With --endpoint a server is measured from its client's side: network, queue, first token, next tokens.
    """
    if endpoint is not None:
        require_only(ctx, *_OF_ENDPOINTS, what="--endpoint")
        wishes |= {"prompt_tokens": prompt_tokens or _PROMPTS, "output_tokens": output_tokens or 64}
        _bench_endpoint(endpoint, model or "", key_from, wishes, out, form)
        return
    if key_from is not None:
        raise click.UsageError("--key-from belongs to --endpoint")
    if model is None:
        raise click.UsageError("Missing argument 'MODEL'; or --endpoint URL for a server.")
    from edgeopt.measurement.bench.run import bench as run
    from edgeopt.measurement.bench.summary import summarize
    from edgeopt.measurement.pipelines.given import is_pipeline
    from edgeopt.pipeline.answering import is_encoder_decoder
    from edgeopt.pipeline.writing import is_language_model

    is_pair = is_encoder_decoder(model)
    if is_pair or prompt_tokens is not None or is_language_model(model):
        if is_pair:
            require_only(ctx, *_OF_WRITERS, what="an encoder with a decoder")
        else:
            require_only(ctx, *_OF_WRITERS, *_OF_DECODERS)
        require_guesses(guesses, draft)
        if context is not None and wishes["cold"]:
            raise click.UsageError("fresh processes of --cold reserve the model's own context; leave --context out")
        wishes["max_miss"] = wishes["max_miss"] if first_given(ctx, ("max_miss",)) else None
        wishes["load"] = wishes["load"] if first_given(ctx, ("load",)) else None
        asked = {"prompt_tokens": prompt_tokens or _PROMPTS, "output_tokens": output_tokens or 64, "slots": slots or ()}
        asked |= {"guesses": -1 if guesses is None and draft else guesses, "draft": draft}
        asked |= {"context": context or 0}
        ctx.exit(_bench_generation(model, asked, wishes, out, form))
    if given := first_given(ctx, ("slots", "output_tokens", "guesses", "draft", "context")):
        raise click.UsageError(f"{given} is for a language model, and this is none")
    options = _options(**wishes)
    if is_pipeline(model):
        ctx.exit(_bench_pipeline(model, target, recipe, code, options, out, form))
    if code is not None:
        raise click.UsageError("--code is for a pipeline, and a single model calls nothing; leave it out")
    with Progress(quiet=form != TERMINAL) as progress:
        result = run(model, target=target, recipe=recipe, options=options, out=out, tell=progress.progress)
    show(summarize(result), form)
    ctx.exit(result.exit_code)


def _bench_generation(model: str, asked: dict[str, Any], wishes: dict[str, Any], out: Path | None, form: str) -> int:
    """Measure a language model, or an encoder with a decoder, and show it; return the exit code."""
    from edgeopt.measurement.generation.bench import GenerationOptions, bench_generation
    from edgeopt.measurement.generation.source_summary import summarize_sources
    from edgeopt.measurement.generation.sources import bench_sources
    from edgeopt.measurement.generation.summary import summarize_generation
    from edgeopt.pipeline.answering import is_encoder_decoder
    from edgeopt.pipeline.writing import find_language_model
    from edgeopt.report.formats import write_pages

    given = {name: wishes[name] for name in ("threads", "seed", "seconds", "load", "cold", "repeats")}
    given |= {"budget": answer_budget(wishes["budget"]), "max_miss_ratio": wishes["max_miss"]}
    given["price_per_s"] = _price_per_s(wishes)
    known = {name: value for name, value in given.items() if value is not None}
    draft = asked.pop("draft")
    known |= {"uses_draft": False} if draft == "none" else {"draft": find_language_model(draft)} if draft else {}
    options = GenerationOptions(**asked, **known)
    with Progress(quiet=form != TERMINAL) as progress:
        if is_encoder_decoder(model):
            pair = bench_sources(Path(model), options, tell=progress.progress)
            document, code = summarize_sources(pair), pair.exit_code
        else:
            result = bench_generation(find_language_model(model), options, out=out, tell=progress.progress)
            document, code = summarize_generation(result), result.exit_code
    if out is not None:
        write_pages(document, out, "bench")
    show(document, form)
    return code


def _bench_endpoint(
    url: str, model: str, key_from: str | None, wishes: dict[str, Any], out: Path | None, form: str
) -> None:
    """Measure a server and show it."""
    from edgeopt.measurement.endpoint.bench import EndpointOptions, bench_endpoint
    from edgeopt.measurement.endpoint.summary import summarize_endpoint
    from edgeopt.report.formats import write_pages

    budget = answer_budget(wishes["budget"])
    options = EndpointOptions(
        url,
        model,
        wishes["prompt_tokens"],
        wishes["output_tokens"],
        wishes["load"],
        wishes["seconds"] or 10.0,
        wishes["seed"],
        key_of(key_from),
        limits_ms=dict(budget.limits_ms) if budget else None,
        price_per_s=_price_per_s(wishes),
    )
    with Progress(quiet=form != TERMINAL) as progress:
        result = bench_endpoint(options, tell=progress.progress)
    document = summarize_endpoint(result)
    if out is not None:
        write_pages(document, out, "bench")
    show(document, form)


def _price_per_s(wishes: dict[str, Any]) -> float | None:
    """Return what a second of the machine costs; None where no price was given."""
    from edgeopt.measurement.bench.options import price_second

    return price_second(**{name: wishes[name] for name in _PRICES})


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
    budget: Any,
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
        budget_ms=frame_budget_ms(budget),
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
