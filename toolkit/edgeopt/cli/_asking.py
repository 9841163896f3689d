"""Questions on a terminal: likely answers by number, or typed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from edgeopt.errors import EdgeoptError
from edgeopt.system.text import printable

if TYPE_CHECKING:
    from edgeopt.recipes.drafting.questions import Ask, RecipeQuestion

_NOT_KNOWN = "?"


def asker(*, quiet: bool) -> Ask:
    """Return what asks a person; nobody is asked where the input is no terminal, or `quiet`."""
    from edgeopt.recipes.drafting.questions import nobody

    return nobody if quiet or not sys.stdin.isatty() else _ask


def _ask(question: RecipeQuestion) -> Any:
    """Return the answer, or None where the person does not know. What is no answer is told, and asked again."""
    click.echo(f"\n{printable(question.text)}", err=True)
    for number, words in enumerate(question.options, 1):
        click.echo(f"  {number}  {printable(words)}", err=True)
    if question.typed:
        click.echo(f"  or  {question.typed}", err=True)
    click.echo(f"  {_NOT_KNOWN}  not known: take 1, and mark it in the file", err=True)
    while True:
        try:
            typed = click.prompt("", default="1", prompt_suffix="> ", err=True).strip()
        except click.Abort as error:  # Ctrl-C, or the end of the input
            raise KeyboardInterrupt from error
        if typed == _NOT_KNOWN:
            return None
        try:
            return question.answer(typed)
        except EdgeoptError as error:
            click.echo(printable(f"{error.problem}: {error.remedy}"), err=True)
