"""Compare the speed of models, in turns."""

from __future__ import annotations

from typing import Any

import click

from edgeopt.cli._options import TERMINAL, format_option
from edgeopt.cli._progress import Progress
from edgeopt.cli._values import ModelName
from edgeopt.cli._verb import finish, read_values, verb_command


@verb_command("compare", "model", "device", "measure", "language")
@click.argument("subjects", nargs=-1, type=ModelName(), metavar="A B [C]...")
@format_option
@click.pass_context
def compare(ctx: click.Context, /, *, subjects: tuple[str, ...], form: str, **options: Any) -> None:
    """Compare the speed of B, C and more with that of A.

    Each is an ONNX file, the name of a shipped model, a bundle, or a pipeline: its .toml file or bundle. All run in
    turns. Or each is a result of `edgeopt bench -o`, of any kind.

    The whole frame and each stage is called FASTER, SLOWER, EQUIVALENT or INCONCLUSIVE. Language models, and encoders
    with decoders, are compared by whole answers, first and next tokens, and by the perplexity on --eval; pipelines by
    whole frames, every stage, and the last answers.

    The exit code is 0, or 1 on an error, whatever is faster: the gate for continuous integration is `edgeopt check`.
    """
    del options
    from edgeopt.verbs._once import compared
    from edgeopt.verbs._results import are_results

    are_results(subjects)  # results beside models are refused before their kinds are
    values = read_values(ctx, *subjects) if subjects else {}
    with Progress(quiet=form != TERMINAL) as progress:
        done = compared(subjects, None, values, progress.progress)
    finish(ctx, done, form)


COMMAND = compare
