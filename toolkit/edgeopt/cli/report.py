"""`edgeopt report`."""

from __future__ import annotations

from pathlib import Path

import click

from edgeopt.cli._options import format_option
from edgeopt.cli._output import show, show_line
from edgeopt.errors import EXIT_PASS, InvalidFileError


@click.command()
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
    from edgeopt.measurement.bench.stored import is_stored
    from edgeopt.pipeline.device_results import merge_results
    from edgeopt.pipeline.joint.result import is_joint_report, read_joint_report
    from edgeopt.pipeline.joint.summary import summarize as summarize_joint
    from edgeopt.pipeline.runs import is_report, read_runs
    from edgeopt.pipeline.runs_summary import summarize_runs
    from edgeopt.pipeline.summary import summarize
    from edgeopt.report.formats import write_page
    from edgeopt.system.files import require_writable

    if results and len(folders) > 1:
        raise click.UsageError("--merge joins results with one FOLDER")
    if html:
        require_writable(html)
    if any(map(is_joint_report, folders)):
        if results or len(folders) > 1:
            raise click.UsageError("the report of a pipeline is shown alone: name one FOLDER, without --merge")
        joint = read_joint_report(folders[0])
        document, exit_code, pictures = summarize_joint(joint), joint.exit_code, folders[0]
    elif len(folders) == 1 and (results or is_report(folders[0]) or not is_stored(folders[0])):
        found = merge_results(folders[0], results)
        document, exit_code, pictures = summarize(found), found.exit_code, folders[0]
    else:
        document, exit_code, pictures = summarize_runs(read_runs(folders)), EXIT_PASS, None
    show(document, form)
    if html:
        write_page(document, html, pictures)
    elif pictures:
        try:
            write_page(document, pictures / "report.html", pictures)
        except InvalidFileError as error:  # a folder that is only read is shown all the same
            show_line(f"warning: {error.problem} ({error.remedy})", err=True)
    ctx.exit(exit_code)


COMMAND = report
