"""`--on`: a command of this terminal on another device."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import click

from edgeopt.cli._options import TERMINAL
from edgeopt.cli._output import line_width
from edgeopt.cli._progress import Progress
from edgeopt.cli._streams import write_if_possible
from edgeopt.errors import EdgeoptError
from edgeopt.system.text import printable

ON = "on"
"""Name in Python of the option."""
TYPED = "edgeopt.typed"
"""Key of the command line as it was typed."""
_FLAG = "--on"
_EXTRAS = ("cpu", "serve")
"""Extras that every command may need there: ONNX Runtime, and what reads and writes texts."""


@dataclass(frozen=True, slots=True)
class NamedPaths:
    """Texts of a command line that may name files here."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    target: str
    """Name or file of the target; empty: none was named."""


def device_option() -> click.Option:
    """Return the option that names a device."""
    return click.Option(
        [_FLAG, ON],
        metavar="ssh://USER@HOST",
        help="Run on this device: files are sent, edgeopt is installed there once, and what it writes comes back.",
    )


def run_on_device(ctx: click.Context, address: str, paths: NamedPaths) -> int:
    """Run the command of a context on a device, and return its exit code.

    Raises:
        EdgeoptError: If the device cannot do it.
    """
    from edgeopt.verbs.remote.perform import Hearer, RemoteCommand, run_remotely

    if ctx.params.get("option_resume") and not ctx.params.get("option_out"):
        raise EdgeoptError(
            f"--resume with {_FLAG} does not know which folder to take along", remedy="name it: --out FOLDER"
        )
    inputs = tuple(path for text in dict.fromkeys(paths.reads) if (path := Path(text)).exists())
    outputs = tuple(Path(text) for text in dict.fromkeys(paths.writes))
    width = line_width()
    variables = {"COLUMNS": str(width)} if width else {}
    command = RemoteCommand(
        (ctx.info_name or "", *_without_device(ctx.meta[TYPED])),
        inputs,
        outputs,
        frozenset((*_EXTRAS, *_extras_of(paths.target))),
        variables,
    )
    with Progress(quiet=ctx.params.get("form", TERMINAL) != TERMINAL) as progress:
        return run_remotely(address, command, Hearer(progress.progress, progress.say, _print))


def _without_device(typed: tuple[str, ...]) -> list[str]:
    """Return a command line without the option and its value."""
    words, kept = iter(typed), list[str]()
    for word in words:
        if word == _FLAG:
            next(words, None)
        elif not word.startswith(f"{_FLAG}="):
            kept.append(word)
    return kept


def _extras_of(target: str) -> tuple[str, ...]:
    from edgeopt.system.declared.target import find_target

    return (find_target(target).executor,) if target else ()


def _print(stream: str, line: bytes) -> None:
    """Print a line of the command on the same stream here; what a device sends drives no terminal."""
    text = printable(line.decode("utf-8", "replace").removesuffix("\n"))
    if stream == "out":
        click.echo(text, nl=line.endswith(b"\n"))
        sys.stdout.flush()
    else:
        write_if_possible(sys.stderr, f"{text}\n")
