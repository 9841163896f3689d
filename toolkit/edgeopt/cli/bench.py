"""Measure a model stage by stage, and say what to do."""

from __future__ import annotations

from typing import Any

import click

from edgeopt.cli._options import TERMINAL, exit_codes, format_option
from edgeopt.cli._progress import Progress
from edgeopt.cli._values import ModelName
from edgeopt.cli._verb import finish, named_source, read_values, verb_command


@verb_command(
    "bench",
    "model",
    "device",
    "time",
    "budget",
    "load",
    "also",
    "cost",
    "language",
    "server",
)
@click.argument("model", type=ModelName(), required=False)
@format_option
@click.pass_context
@exit_codes()
def bench(ctx: click.Context, /, *, model: str | None, form: str, **options: Any) -> None:
    """Measure MODEL stage by stage, and say what to do about it.

    MODEL is an ONNX file, the name of a shipped model, a bundle, or a pipeline: its .toml file or bundle.

    With --endpoint a server is measured as its client sees it: network, queue, first token and next tokens of a
    language model, or each stage from the sample to the answer of a model of frames.
    """
    del options
    from edgeopt.verbs._once import benched

    source = named_source(ctx, model)
    values = read_values(ctx, source)
    with Progress(quiet=form != TERMINAL) as progress:
        done = benched(source, None, values, progress.progress)
    finish(ctx, done, form)


COMMAND = bench
