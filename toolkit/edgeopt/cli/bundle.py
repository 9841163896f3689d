"""Combine the bundles of several targets, or take one out."""

from __future__ import annotations

from pathlib import Path

import click

from edgeopt.cli._help import HelpCommand
from edgeopt.cli._options import format_option
from edgeopt.cli._output import show


@click.command(cls=HelpCommand)
@click.argument("bundles", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", "-o", type=click.Path(path_type=Path), help="Folder to write.")
@click.option(
    "--target",
    "-t",
    default="",
    metavar="NAME",
    help="With --out: write only this target's part of a bundle for several targets.",
)
@format_option
def bundle(*, bundles: tuple[Path, ...], out: Path | None, target: str, form: str) -> None:
    """Show the targets of BUNDLE, make one of several BUNDLES, or take one target out.

    A bundle for several targets holds what edgeopt optimize made of one model for each target; equal files are stored
    once. On each device the runtime, run, serve, bench, compare and check pick the target that was measured on such a
    processor, else the best that can run there, and say which and why. edgeopt fleet writes one for each workload.
    """
    from edgeopt.verbs.bundle.combine import bundle_verb, summarize

    show(summarize(*bundle_verb(bundles, out, target)), form)


COMMAND = bundle
