"""Show reports of earlier runs, side by side."""

from __future__ import annotations

from pathlib import Path

import click

from edgeopt.cli._help import HelpCommand
from edgeopt.cli._options import format_option
from edgeopt.cli._output import show, show_line
from edgeopt.errors import InvalidFileError


@click.command(cls=HelpCommand)
@click.argument("folders", nargs=-1, required=True, metavar="FOLDER...", type=click.Path(path_type=Path))
@click.option(
    "--merge",
    "results",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="RESULT",
    help="What `edgeopt bench BUNDLE -o RESULT` wrote on the device; repeatable.",
)
@click.option(
    "--html",
    type=click.Path(path_type=Path),
    show_default="report.html in a single FOLDER",
    help="File for the page with charts.",
)
@format_option
@click.pass_context
def report(
    ctx: click.Context, *, folders: tuple[Path, ...], results: tuple[Path, ...], html: Path | None, form: str
) -> None:
    """Show the report of an earlier run, or several runs side by side.

    FOLDER is what `edgeopt optimize` or `edgeopt bench -o` wrote. Of one optimize the exit codes are the same, and
    --merge joins it with results of a device.
    """
    from edgeopt.report.formats import write_page
    from edgeopt.system.disk.files import require_writable
    from edgeopt.verbs.report import read_stored_report

    if results and len(folders) > 1:
        raise click.UsageError("--merge joins results with one FOLDER")
    if html:
        require_writable(html)
    stored_report = read_stored_report(folders, results)
    show(stored_report.document, form)
    if html:
        write_page(stored_report.document, html, stored_report.pictures)
    elif stored_report.pictures:
        try:
            write_page(stored_report.document, stored_report.pictures / "report.html", stored_report.pictures)
        except InvalidFileError as error:  # a folder that is only read is shown all the same
            show_line(f"warning: {error.problem} ({error.remedy})", err=True)
    ctx.exit(stored_report.exit_code)


COMMAND = report
