"""Measure once how long layers take on a device."""

from __future__ import annotations

from pathlib import Path

import click

from edgeopt.cli._options import format_option, shape_option
from edgeopt.cli._output import show
from edgeopt.cli._remote import DeviceCommand, device_option, listening
from edgeopt.cli._values import ModelName, TargetName


@click.command("profile-device", cls=DeviceCommand, params=[device_option()])
@click.argument("models", type=ModelName(), nargs=-1)
@click.option(
    "--target",
    "-t",
    "option_target",
    type=TargetName(),
    default="cpu",
    show_default=True,
    metavar="NAME|FILE",
    help="The device: a name of edgeopt targets, or a TOML file.",
)
@click.option("--threads", type=click.IntRange(1), show_default="the fast cores", help="Threads of the engines.")
@click.option(
    "--only-models",
    is_flag=True,
    help="Measure only layers of MODELS: quick, but predictions then hold for MODELS alone.",
)
@shape_option
@click.option(
    "--out",
    "-o",
    "option_out",
    type=click.Path(path_type=Path),
    show_default="out/TARGET.times.json",
    help="The file to write, which any command takes as a target.",
)
@format_option
@click.pass_context
def profile_device(
    ctx: click.Context,
    *,
    models: tuple[str, ...],
    option_target: str,
    threads: int | None,
    only_models: bool,
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    option_out: Path | None,
    form: str,
) -> None:
    """Measure once how long layers take on a device, into a file that stands for the device elsewhere.

    edgeopt optimize --target FILE then prunes and chooses by the device's predicted milliseconds, without it. The
    layers of MODELS, in several widths, are measured too: predictions of such models are nearest.
    """
    from edgeopt.verbs.device_profile.profile import profile_device as run
    from edgeopt.verbs.device_profile.summary import summarize

    with listening(ctx) as progress:
        result = run(
            models,
            target=option_target,
            threads=threads or 0,
            shapes=dict(shapes),
            only_models=only_models,
            out=option_out,
            tell=progress.progress,
        )
    show(summarize(result), form)


INTERRUPTED = "the precisions that were measured by then are in the file, if any"
COMMAND = profile_device
