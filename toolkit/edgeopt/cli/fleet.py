"""Optimize many models for the targets of many devices."""

from __future__ import annotations

from pathlib import Path

import click

from edgeopt.cli._fleet_table import FleetProgress
from edgeopt.cli._help import HelpCommand
from edgeopt.cli._options import TERMINAL, exit_codes, format_option
from edgeopt.cli._output import show
from edgeopt.cli._values import FilePath


@click.command(cls=HelpCommand)
@click.argument("file", type=FilePath())
@click.option(
    "--out", "-o", type=click.Path(path_type=Path), show_default="out/NAME of the file", help="Folder to write."
)
@click.option("--resume", is_flag=True, help="Keep the cells of an earlier run whose inputs did not change.")
@click.option(
    "--scheduler",
    default="",
    metavar="ADDRESS",
    show_default="workers of this machine",
    help="Dask scheduler whose workers offer the devices, such as tcp://lab:8786.",
)
@format_option
@click.pass_context
@exit_codes("every cell ends with 0", "a budget is missed, proven, in a cell")
def fleet(ctx: click.Context, *, file: Path, out: Path | None, resume: bool, scheduler: str, form: str) -> None:
    """Optimize the workloads of FILE for the targets of its devices.

    FILE is a TOML table of workloads, devices and options. Each cell runs on a worker of a Dask cluster that offers the
    cell's device, one at a time on a device; a cell that is finished is never run twice.
    """
    from edgeopt.verbs.fleet.run import run_fleet
    from edgeopt.verbs.fleet.summary import summarize

    with FleetProgress(quiet=form != TERMINAL) as progress:
        result = run_fleet(file, out=out, resume=resume, scheduler=scheduler, hears=progress)
    show(summarize(result), form)
    ctx.exit(result.exit_code)


INTERRUPTED = "finished cells are on disk; the same command with --resume takes them up"
COMMAND = fleet
