"""What a command prints: its document in the format that was asked for, or one line after another."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

import click

from edgeopt.cli._streams import give_up, write_if_possible
from edgeopt.system.text import printable

if TYPE_CHECKING:
    from edgeopt.report.document import Document


def show(document: Document, form: str, *, err: bool = False) -> None:
    """Print a document, or say it beside what a program reads."""
    from edgeopt.report.formats import Paper, render

    width = _width(err=err)
    paper = Paper(width, is_coloured=_is_terminal(err=err) and not os.environ.get("NO_COLOR"))
    text = render(document, form, paper)
    if err:
        write_if_possible(sys.stderr, text)
        return
    try:
        click.echo(text, nl=False)
    except BrokenPipeError:  # who reads has read enough; the exit code is still that of the result
        give_up(sys.stdout)


def _width(*, err: bool = False) -> int:
    """Return the columns of the terminal, in a pipe those of the variable `COLUMNS`; 0 where it is not set either."""
    is_asked = _is_terminal(err=err) or os.environ.get("COLUMNS", "").isdecimal()
    return shutil.get_terminal_size().columns if is_asked else 0


def _is_terminal(*, err: bool) -> bool:
    return (sys.stderr if err else sys.stdout).isatty()


def show_line(line: str, *, err: bool = False) -> None:
    """Print one line: what comes from files is printed so that it cannot drive a terminal."""
    if err:
        write_if_possible(sys.stderr, f"{printable(line)}\n")
    else:
        click.echo(printable(line))
