"""`edgeopt bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from edgeopt.cli._output import TERMINAL, format_option, show
from edgeopt.cli._progress import Progress
from edgeopt.cli._values import Counts, Duration, Number, Share

_POSITIVE = Number(min=0, min_open=True)


@click.command()
@click.argument("model")
@click.option("--target", "-t", default="cpu", show_default=True, help="For a model; a bundle brings its own.")
@click.option("--recipe", "-r", help="How a model is fed and read [read from the model].")
@click.option("--source", "-s", help="Pictures: folder, picture, video or .npz [the recipe's own].")
@click.option("--load", default="closed", show_default=True, help="closed, closed:N workers, fps:30 or poisson:30.")
@click.option("--streams", type=click.IntRange(min=1), default=1, show_default=True, help="Cameras, each at the rate.")
@click.option("--phases", type=click.Choice(["uniform", "random"]), default="uniform", help="When each camera begins.")
@click.option("--queue", default="fifo", show_default=True, help="Frames that wait: fifo, bounded:K or latest.")
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Sessions that serve them.")
@click.option("--jitter", type=Duration("ms"), help="Standard deviation of a camera's capture times.")
@click.option("--seconds", type=Duration("s"), help="Least time to measure [5s; 30s a run of --find-capacity].")
@click.option("--frames", type=click.IntRange(min=1), default=400, show_default=True, help="Least frames to measure.")
@click.option("--minutes", type=_POSITIVE, help="Measure so long instead, and show the curve over time.")
@click.option("--budget", type=Duration("ms"), help="Time a frame may take, e.g. 33ms; it becomes a gate.")
@click.option("--max-miss", type=Share(), default="1%", show_default=True, help="Frames that may miss the budget.")
@click.option("--rounds", type=click.IntRange(min=2), help="Fresh processes for the headline p99.")
@click.option("--find-capacity", is_flag=True, help="Search the highest rate that keeps the budget.")
@click.option("--batch", type=Counts(), help="Batch sizes to sweep, e.g. 1,2,4,8.")
@click.option("--cold", is_flag=True, help="Also start fresh processes: warm and cold page cache.")
@click.option("--repeats", type=click.IntRange(min=1), help="Starts of each way of --cold [10].")
@click.option("--spin", type=click.Choice(["on", "off"]), help="Whether idle threads of ONNX Runtime spin [on].")
@click.option("--profile", is_flag=True, help="Also show which operators take the time, from a pass of its own.")
@click.option("--trace", type=click.Path(path_type=Path), help="Write a timeline for Perfetto or chrome://tracing.")
@click.option("--energy", is_flag=True, help="Read the machine's power meters too; needs 30s or more.")
@click.option("--device-price", type=_POSITIVE, help="Cost of an inference: the device, in any currency.")
@click.option("--life-years", type=_POSITIVE, help="How long the device lasts [5].")
@click.option("--duty", type=Share(), help="Share of that time in which it works [100%].")
@click.option("--watts", type=_POSITIVE, help="Its power [as measured by --energy].")
@click.option("--kwh-price", type=_POSITIVE, help="Price of its electricity, a kWh.")
@click.option("--cloud-price", type=_POSITIVE, help="In place of a device: the price of a rented hour.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads of each session [physical cores, shared].")
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of arrivals, phases and orders."
)
@click.option("--out", "-o", type=click.Path(path_type=Path), help="Folder for bench.json, bench.md and raw samples.")
@format_option
@click.pass_context
def bench(
    ctx: click.Context,
    /,
    *,
    model: str,
    target: str,
    recipe: str | None,
    out: Path | None,
    form: str,
    **wishes: Any,
) -> None:
    """Measure MODEL (an ONNX file, a shipped model or a bundle) stage by stage, and say what to do about it.

    Exit code 0: the budget is met, or none was asked for; 2: missed, proven; 3: not decided; 4: the machine was too
    noisy to say; 1: an error.
    """
    from edgeopt.measurement.bench.run import bench as run
    from edgeopt.measurement.bench.summary import summarize

    options = _options(**wishes)
    with Progress(quiet=form != TERMINAL) as progress:
        result = run(model, target=target, recipe=recipe, options=options, out=out, tell=progress.progress)
    show(summarize(result), form)
    ctx.exit(result.exit_code)


def _options(
    *,
    frames: int,
    budget: float | None,
    max_miss: float,
    jitter: float | None,
    batch: tuple[int, ...] | None,
    spin: str | None,
    duty: float | None,
    threads: int | None,
    rounds: int | None,
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
        duty_ratio=duty,
        threads=threads or 0,
        rounds=rounds or 0,
        **others,
    )


COMMAND = bench
