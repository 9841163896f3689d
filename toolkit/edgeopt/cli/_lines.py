"""Lines of the command line: what comes from files is printed so that it cannot drive a terminal."""

from __future__ import annotations

import click

from edgeopt.system.text import printable


def show(line: str, *, err: bool = False) -> None:
    """Print one line."""
    click.echo(printable(line), err=err)
