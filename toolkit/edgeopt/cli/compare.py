"""Compare the speed of models, in turns."""

from __future__ import annotations

from typing import Any

import click

from edgeopt.cli._options import TERMINAL, format_option
from edgeopt.cli._progress import Progress
from edgeopt.cli._values import ModelName
from edgeopt.cli._verb import PRINTED, finish, read_values, verb_command


@verb_command("compare", "Models and device", "What is measured", "Language models", PRINTED)
@click.argument("subjects", nargs=-1, type=ModelName(), metavar="A B [C]...")
@format_option
@click.pass_context
def compare(ctx: click.Context, /, *, subjects: tuple[str, ...], form: str, **options: Any) -> None:
    """Compare the speed of B, C and more with that of A.

    They are ONNX files, names of shipped models and bundles, which run in turns; or results of `edgeopt bench -o`.
    Says FASTER, SLOWER, EQUIVALENT or INCONCLUSIVE of the whole frame and of each stage. Exit code 0, or 1 on an
    error: the gate is `edgeopt check`. Of language models: whole answers, first and next tokens, and the perplexity on
    the text of --eval. Of encoders with decoders too: --eval is a folder of .wav files, or a file with a text in each
    line. Of pipelines: whole frames, every stage, and the last answers.
    """
    del options
    from edgeopt.verbs._once import compared

    values = read_values(ctx, *subjects) if subjects else {}
    with Progress(quiet=form != TERMINAL) as progress:
        done = compared(subjects, None, values, progress.progress)
    finish(ctx, done, form)


COMMAND = compare
