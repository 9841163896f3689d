"""`edgeopt report`."""

from __future__ import annotations

from pathlib import Path

import click

from edgeopt.cli._options import format_option
from edgeopt.cli._output import show


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--merge",
    "results",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="RESULT",
    help="What `edgeopt bench BUNDLE -o RESULT` wrote on the device; repeatable.",
)
@format_option
@click.pass_context
def report(ctx: click.Context, *, folder: Path, results: tuple[Path, ...], form: str) -> None:
    """Show the report of an earlier optimize.

    FOLDER is what `edgeopt optimize` wrote; the exit codes are the same. --merge joins it with results of a device.
    """
    from edgeopt.pipeline.device_results import merge_results
    from edgeopt.pipeline.summary import summarize

    found = merge_results(folder, results)
    show(summarize(found), form)
    ctx.exit(found.exit_code)


COMMAND = report
