"""`edgeopt report`."""

from __future__ import annotations

import json
from pathlib import Path

import click


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
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.pass_context
def report(ctx: click.Context, *, folder: Path, results: tuple[Path, ...], as_json: bool) -> None:
    """Show the report of FOLDER, an output folder of `edgeopt optimize`, and join it with results from a device.

    Exit code as of `edgeopt optimize`: 0, the budget is met or none was asked for; 2: missed; 3: not decided; 1: an
    error.
    """
    from edgeopt.cli._screen import Screen
    from edgeopt.pipeline.device_results import merge_results

    found = merge_results(folder, results)
    if as_json:
        click.echo(json.dumps(found.as_json(), indent=2))
    else:
        Screen().show_report(found)
    ctx.exit(found.exit_code)


COMMAND = report
