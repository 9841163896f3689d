"""Print documents in the format that a command was asked for, or one line after another."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

import click

from edgeopt.cli._streams import give_up, write_if_possible
from edgeopt.errors import NoteKind
from edgeopt.system.text import fold, printable

if TYPE_CHECKING:
    from edgeopt.report.document import Document

_LABELS = ("error: ", "  -> ", *(f"{kind}: " for kind in NoteKind))
"""Beginnings of a line behind which its continuation is indented."""


def show(document: Document, form: str, *, err: bool = False) -> None:
    """Print a document, or say it beside what a program reads."""
    from edgeopt.report.formats import Paper, render

    width = line_width(err=err)
    paper = Paper(width, is_coloured=_is_terminal(err=err) and not os.environ.get("NO_COLOR"))
    text = render(document, form, paper)
    if err:
        write_if_possible(sys.stderr, text)
        return
    try:
        click.echo(text, nl=False)
    except BrokenPipeError:  # who reads has read enough; the exit code is still that of the result
        give_up(sys.stdout)


def line_width(*, err: bool = False) -> int:
    """Return the columns in which lines are folded: the terminal's, in a pipe those of the variable `COLUMNS`.

    It is 0 where neither is there: a line in a file or in the log of a CI stays whole, so that a search finds it.
    """
    is_asked = _is_terminal(err=err) or os.environ.get("COLUMNS", "").isdecimal()
    return shutil.get_terminal_size().columns if is_asked else 0


def _is_terminal(*, err: bool) -> bool:
    return (sys.stderr if err else sys.stdout).isatty()


def show_line(line: str, *, err: bool = False) -> None:
    """Print one line: what comes from files is printed so that it cannot drive a terminal.

    On the standard error it is folded, under the text behind its label; an answer never is.
    """
    if not err:
        click.echo(printable(line))
        return
    text = printable(line)
    head = next((label for label in _LABELS if text.startswith(label)), "")
    for part in fold(text.removeprefix(head), line_width(err=True), head):
        write_if_possible(sys.stderr, f"{part}\n")
