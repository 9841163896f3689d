"""Check a model against a baseline or another model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from edgeopt.cli._options import TERMINAL, exit_codes, format_option
from edgeopt.cli._progress import Progress
from edgeopt.cli._values import ModelName
from edgeopt.cli._verb import finish, read_values, verb_command


@verb_command("check", "baseline", "model", "device", "measure", "allowed", "language")
@click.argument("model", type=ModelName())
@click.option("--junit", type=click.Path(path_type=Path), help="Also write JUnit XML into this file.")
@click.option("--markdown", type=click.Path(path_type=Path), help="Also write Markdown into this file.")
@click.option("--html", type=click.Path(path_type=Path), help="Also write a page with charts into this file.")
@format_option
@click.pass_context
@exit_codes(
    passed="every check passed, or the baseline was written",
    missed="a check failed, proven",
)
def check(
    ctx: click.Context,
    /,
    *,
    model: str,
    junit: Path | None,
    markdown: Path | None,
    html: Path | None,
    form: str,
    **options: Any,
) -> None:
    """Check MODEL against a baseline: the gate for continuous integration.

    MODEL is an ONNX file, the name of a shipped model, a bundle, or a pipeline: its .toml file or bundle.

    Latency, accuracy, size, memory, cold start and placement are checked. What is allowed comes from the options, and
    where they say nothing from [check] in the recipe. A language model is checked for the times of its answers, its
    perplexity on the text of --eval, its size, and the memory of its cache; a pipeline for the times of every stage,
    its last answers and its size.
    """
    del options
    from edgeopt.report.formats import render
    from edgeopt.system.disk.files import require_writable, write_beside
    from edgeopt.verbs._once import checked

    files = {name: file for name, file in (("junit", junit), ("markdown", markdown), ("html", html)) if file}
    for file in files.values():
        require_writable(file)
    values = read_values(ctx, model)
    with Progress(quiet=form != TERMINAL) as progress:
        done = checked(model, None, values, progress.progress)
    document = done.document
    for name, file in files.items():
        write_beside(file, render(document, name))
    finish(ctx, done, form)


COMMAND = check
