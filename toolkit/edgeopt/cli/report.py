"""`edgeopt report`."""

from __future__ import annotations

from pathlib import Path

import click

from edgeopt.cli._output import format_option, show


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--merge",
    "results",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="RESULT",
    help="Folder or bench.json that `edgeopt bench BUNDLE -o RESULT` wrote on the device; repeatable.",
)
@format_option
@click.pass_context
def report(ctx: click.Context, *, folder: Path, results: tuple[Path, ...], form: str) -> None:
    """Show the report of FOLDER, an output folder of `edgeopt optimize`, and join it with results from a device.

    Exit code as of `edgeopt optimize`: 0, the budget is met or none was asked for; 2: missed; 3: not decided; 1: an
    error.
    """
    from edgeopt.pipeline.device_results import merge_results
    from edgeopt.pipeline.summary import summarize

    found = merge_results(folder, results)
    show(summarize(found), form)
    ctx.exit(found.exit_code)


COMMAND = report
