"""Collect what a device without a network needs."""

from __future__ import annotations

from pathlib import Path

import click

from edgeopt.cli._help import HelpCommand
from edgeopt.cli._options import format_option
from edgeopt.cli._output import show
from edgeopt.cli._values import TargetName


@click.command(cls=HelpCommand)
@click.option(
    "--for",
    "processor",
    required=True,
    metavar="PROCESSOR",
    help="Processor of the device, as `uname -m` prints it there, such as aarch64.",
)
@click.option(
    "--python", default="3.11", show_default=True, metavar="VERSION", help="Version of the Python on the device."
)
@click.option("--target", "-t", type=TargetName(), default="", help="Also collect the engines of this target.")
@click.option(
    "--out",
    "-o",
    type=click.Path(path_type=Path),
    default=Path("wheelhouse"),
    show_default=True,
    help="Folder for the wheels.",
)
@format_option
def wheelhouse(*, processor: str, python: str, target: str, out: Path, form: str) -> None:
    """Collect edgeopt and all that it needs for a device without a network: Linux with glibc.

    --on takes packages from this folder where EDGEOPT_WHEELHOUSE names it. Where only the device has no network, it is
    not needed: --on then fetches by itself what the device lacks.
    """
    from edgeopt.system.disk.wheel import make_wheel
    from edgeopt.verbs.remote.perform import extras_for
    from edgeopt.verbs.remote.wheelhouse import collect_wheels, read_platform, summarize

    platform, wheel = read_platform(processor, python), make_wheel()
    extras = sorted(extras_for(target, platform.processor) & wheel.extras)
    show(summarize(platform, collect_wheels(platform, wheel, extras, out), out), form)


COMMAND = wheelhouse
