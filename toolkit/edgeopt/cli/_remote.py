"""`--on`: a command of this terminal on another device."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from edgeopt.cli._options import TERMINAL
from edgeopt.cli._output import line_width
from edgeopt.cli._progress import Progress
from edgeopt.cli._streams import write_if_possible
from edgeopt.errors import EdgeoptError
from edgeopt.system.text import printable

if TYPE_CHECKING:
    from edgeopt.verbs.remote.perform import CommandWord

ON = "on"
"""Name in Python of the option."""
_FLAG = "--on"
_EXTRAS = ("cpu", "serve")
"""Extras that every command may need there: ONNX Runtime, and what reads and writes texts."""


def device_option() -> click.Option:
    """Return the option that names a device."""
    return click.Option(
        [_FLAG, ON],
        metavar="ssh://USER@HOST",
        help="Run on this device: files are sent, edgeopt is installed there once, and what it writes comes back.",
    )


def run_on_device(ctx: click.Context, address: str, words: Sequence[CommandWord]) -> int:
    """Run the command of a context on a device, and return its exit code.

    Args:
        ctx: Of the command.
        address: Of the device.
        words: The command line behind the command's name.

    Raises:
        EdgeoptError: If the device cannot do it.
    """
    from edgeopt.verbs.remote.perform import CommandWord, Hearer, RemoteCommand, run_remotely

    if ctx.params.get("option_resume") and not ctx.params.get("option_out"):
        raise EdgeoptError(
            f"--resume with {_FLAG} does not know which folder to take along", remedy="name it: --out FOLDER"
        )
    width, target = line_width(), ctx.params.get("option_target")
    extras = frozenset((*_EXTRAS, *(_extras_of(str(target)) if target else ())))
    variables = {"COLUMNS": str(width)} if width else {}
    command = RemoteCommand((CommandWord(ctx.info_name or ""), *words), extras, variables)
    with Progress(quiet=ctx.params.get("form", TERMINAL) != TERMINAL) as progress:
        return run_remotely(address, command, Hearer(progress.progress, progress.say, _print))


def _extras_of(target: str) -> tuple[str, ...]:
    from edgeopt.system.declared.target import find_target

    return (find_target(target).executor,)


def _print(stream: str, text: bytes) -> None:
    """Print what the command prints on the same stream here; what a device sends drives no terminal."""
    shown = "\n".join(map(printable, text.decode("utf-8", "replace").split("\n")))
    if stream == "out":
        click.echo(shown, nl=False)
        sys.stdout.flush()
    else:
        write_if_possible(sys.stderr, shown)
