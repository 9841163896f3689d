"""`edgeopt quantize`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgeopt.cli._lines import show
from edgeopt.cli._values import Duration, Number, shape_option

if TYPE_CHECKING:
    from edgeopt.pipeline.quantize import QuantizeResult


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
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
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
    as_json: bool,
) -> None:
    """Search for the fastest INT8 form of MODEL that keeps its answers: the step quantize alone.

    The best form so far is written at once, so the search may be interrupted. Exit code 0: an INT8 model was written;
    2: none is fast and accurate enough, the float model stays; 1: an error.
    """
    from edgeopt.cli._screen import Screen
    from edgeopt.pipeline.quantize import quantize as run

    with Screen(quiet=as_json) as screen:
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
            say=screen.say,
            tell=screen.progress,
        )
    if as_json:
        click.echo(json.dumps(result.as_json(), indent=2))
    else:
        _show(result)
    ctx.exit(result.exit_code)


def _show(result: QuantizeResult) -> None:
    for note in result.notes:
        show(f"{note.kind}: {note}")
    chosen = result.chosen
    show(f"why      {result.reason}")
    if chosen is None:
        show("chosen   none: the float model stays")
        return
    show(f"chosen   {chosen.name}")
    show(f"speed    estimated {chosen.speed_ratio:.2f}x the float model; edgeopt compare proves it")
    show(f"agrees   {chosen.agreement:.3f} with the float model, without labels")
    if chosen.score is not None:
        figures = f"{result.metric} {chosen.score:.4f}, the original {result.baseline:.4f}"
        show(f"metric   {figures}; lost {chosen.drop} (95 % over {result.pictures} pictures)")
    show(f"file     {result.file}")


INTERRUPTED = (
    "the best form so far, if one was good enough, is beside the file that was asked for (.best-so-far); "
    "the same command takes up what was calibrated"
)
COMMAND = quantize
