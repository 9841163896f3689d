"""What a command prints: its document in the format that was asked for, or one line after another."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

import click

from edgeopt.system.text import printable

if TYPE_CHECKING:
    from edgeopt.report.document import Document


def show(document: Document, form: str) -> None:
    """Print a document."""
    from edgeopt.report.formats import Paper, render

    is_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_terminal else 0
    paper = Paper(width, is_coloured=is_terminal and not os.environ.get("NO_COLOR"))
    click.echo(render(document, form, paper), nl=False)


def show_line(line: str, *, err: bool = False) -> None:
    """Print one line: what comes from files is printed so that it cannot drive a terminal."""
    click.echo(printable(line), err=err)
