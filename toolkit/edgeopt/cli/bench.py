"""`edgeopt bench`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from edgeopt.cli._values import Duration, Share


@click.command()
@click.argument("model")
@click.option("--target", "-t", default="cpu", show_default=True, help="For a model; a bundle brings its own.")
@click.option("--recipe", "-r", help="How a model is fed and read [read from the model].")
@click.option("--source", "-s", help="Pictures: folder, picture, video or .npz [the recipe's own].")
@click.option("--seconds", type=Duration("s"), default="5s", show_default=True, help="Least time to measure.")
@click.option("--frames", type=click.IntRange(min=1), default=400, show_default=True, help="Least frames to measure.")
@click.option("--budget", type=Duration("ms"), help="Time a frame may take, e.g. 33ms [the target's].")
@click.option("--max-miss", type=Share(), default="1%", show_default=True, help="Frames that may miss the budget.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads of the engine [physical cores].")
@click.option("--out", "-o", type=click.Path(path_type=Path), help="Folder for bench.json and the raw samples.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def bench(
    ctx: click.Context,
    *,
    model: str,
    target: str,
    recipe: str | None,
    source: str | None,
    seconds: float,
    frames: int,
    budget: float | None,
    max_miss: float,
    threads: int | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Measure MODEL (an ONNX file, a shipped model or a bundle) stage by stage in a closed loop.

    Exit code 0: the budget is met, or none was asked for; 2: missed, proven; 3: not decided; 1: an error.
    """
    from edgeopt.bench_run import bench as run
    from edgeopt.cli._screen import Screen

    with Screen(quiet=as_json) as screen:
        result = run(
            model,
            target=target,
            recipe=recipe,
            source=source,
            seconds=seconds,
            min_frames=frames,
            budget_ms=budget * 1000 if budget else None,
            max_miss_ratio=max_miss,
            threads=threads or 0,
            out=out,
            tell=lambda done, _: screen.progress("frames", min(done, frames), frames),
        )
    if as_json:
        click.echo(json.dumps(result.as_json(), indent=2))
    else:
        screen.show_bench(result)
    ctx.exit(result.exit_code)


COMMAND = bench
