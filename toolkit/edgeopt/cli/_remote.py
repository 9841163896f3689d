"""`--on`: a command of this terminal on another device."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgeopt.cli._help import HelpCommand
from edgeopt.cli._options import TERMINAL
from edgeopt.cli._output import line_width
from edgeopt.cli._progress import Progress
from edgeopt.cli._streams import write_if_possible
from edgeopt.errors import EdgeoptError
from edgeopt.system.declared.options import FileUse, OptionGroup
from edgeopt.system.text import printable
from edgeopt.verbs.android import VERBS as PHONE_VERBS
from edgeopt.verbs.android import is_phone, require_verb
from edgeopt.verbs.remote import OF_THIS_TERMINAL, RESULT_FLAG

if TYPE_CHECKING:
    from edgeopt.verbs.remote.command import CommandWord
    from edgeopt.verbs.remote.search import SearchHere

DEVICE = OptionGroup("device", "Another device", "run the command elsewhere, over ssh or adb")
"""Additions of the command line to every verb that other devices do."""
ON = "on"
"""Name in Python of the option."""
SEARCH_THERE = "search_there"
"""Name in Python of the option of commands that search."""
RESULT = "result_file"
"""Name in Python of the option of commands that a program elsewhere begins."""
_FLAG, _THERE = "--on", "--search-there"
_HELP = "Run on this device: files are sent, edgeopt is installed there once, and what it writes comes back."
_HELP_PHONES = " With adb a phone runs the model alone, in edgeopt-runner; no real phone has been tried yet."


class DeviceCommand(HelpCommand):
    """A command that runs here, or on the device that `--on` names."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run it."""
        address, searches_there = ctx.params.pop(ON, None), ctx.params.pop(SEARCH_THERE, False)
        if address and is_phone(address):
            require_verb(ctx.info_name or "", address)
            if searches_there:
                raise EdgeoptError(f"{_THERE} needs Python there, and a phone has none", remedy=f"leave {_THERE} out")
            with self.on_phone(ctx, address) as code:
                if code is not None:
                    ctx.exit(code)
                return super().invoke(ctx)
        if address:
            words = _words(ctx)
            ctx.exit(run_on_device(ctx, address, words, None if searches_there else self.search_of(ctx)))
        if searches_there:
            raise EdgeoptError(f"{_THERE} is for a device elsewhere", remedy=f"name it: {_FLAG} ssh://USER@HOST")
        return super().invoke(ctx)

    def on_phone(self, ctx: click.Context, address: str) -> AbstractContextManager[int | None]:
        """Return a context in which a phone computes for this process; its value: the exit code of what is done.

        None: the command is still to be run. A command that runs on phones has a way of its own.
        """
        raise NotImplementedError

    def search_of(self, ctx: click.Context) -> SearchHere | None:
        """Return the part of the command that runs here before the device goes on; None: it has none."""
        del ctx
        return None


def device_option(verb: str = "") -> click.Option:
    """Return the option that names a device, for a `DeviceCommand`.

    Args:
        verb: The command, where it may measure on a phone.
    """
    help_text = _HELP + (_HELP_PHONES if verb in PHONE_VERBS else "")
    return click.Option(
        [_FLAG, ON],
        metavar="ssh://HOST|adb://SERIAL" if verb in PHONE_VERBS else "ssh://USER@HOST",
        help=help_text,
    )


def search_option() -> click.Option:
    """Return the option that leaves the search for candidates to the device too."""
    return click.Option(
        [_THERE, SEARCH_THERE],
        is_flag=True,
        help="With --on: make the candidates on the device too. Without this the device only measures and chooses.",
    )


def result_option() -> click.Option:
    """Return the option with which Python gets the result of a command that it began on a device; nobody types it."""
    return click.Option([RESULT_FLAG, RESULT], type=click.Path(path_type=Path), hidden=True)


def listening(ctx: click.Context, limit_s: float | None = None, *, is_whole: bool = False) -> Progress:
    """Return what shows the progress of a command: nothing where another form than the terminal's is printed."""
    return Progress(quiet=ctx.params.get("form", TERMINAL) != TERMINAL, limit_s=limit_s, is_whole=is_whole)


def run_on_device(
    ctx: click.Context, address: str, words: Sequence[CommandWord], search: SearchHere | None = None
) -> int:
    """Run the command of a context on a device, and return its exit code.

    Args:
        ctx: Of the command.
        address: Of the device.
        words: The command line behind the command's name.
        search: The part of it that is done here first; None: it has none.

    Raises:
        EdgeoptError: If the device cannot do it.
    """
    from edgeopt.verbs.remote.command import CommandWord, RemoteCommand
    from edgeopt.verbs.remote.perform import Hearer, run_remotely

    for name in OF_THIS_TERMINAL:
        if ctx.params.get(f"option_{name}"):
            raise EdgeoptError(f"--{name} is for the machine that you sit at", remedy=f"leave {_FLAG} out, or --{name}")
    if ctx.params.get("source") == "-":
        raise EdgeoptError(
            "the standard input is that of the machine that you sit at", remedy=f"leave {_FLAG} out, or name a file"
        )
    if search is None and ctx.params.get("option_resume") and not ctx.params.get("option_out"):
        raise EdgeoptError(
            f"--resume with {_FLAG} does not know which folder to take along", remedy="name it: --out FOLDER"
        )
    width, target = line_width(), ctx.params.get("option_target")
    variables = {"COLUMNS": str(width)} if width else {}
    command = RemoteCommand((CommandWord(ctx.info_name or ""), *words), str(target or ""), variables)
    with listening(ctx) as progress:
        return run_remotely(address, command, Hearer(progress.progress, progress.say, _print), search).exit_code


def _words(ctx: click.Context) -> list[CommandWord]:
    """Return the command line anew, each word with what the command does with the file that it may name."""
    from edgeopt.verbs.remote.words import WrittenOption, line_of

    default = click.core.ParameterSource.DEFAULT
    given = [each for each in ctx.command.params if ctx.get_parameter_source(each.name or "") is not default]
    written, arguments, done = list[WrittenOption](), list[str](), set[str]()
    for each in sorted(given, key=lambda each: getattr(each, "is_flag", False)):
        name, value = each.name or "", ctx.params.get(each.name or "")
        if name in done or value is None:
            continue
        done.add(name)
        texts = tuple(str(text) for text in (value if isinstance(value, tuple) else (value,)))
        if isinstance(each, click.Argument):
            arguments += texts
        else:
            is_flag = getattr(each, "is_flag", False)
            written.append(WrittenOption(each.opts[0], () if is_flag else texts, _file_use(each, ctx)))
    return line_of(written, arguments)


def _file_use(param: click.Parameter, ctx: click.Context) -> FileUse:
    """Return what a command does with the file that an option names: as it declares, else a path is written."""
    plain = FileUse.WRITE if isinstance(param.type, click.Path) else FileUse.NONE
    use: FileUse = getattr(param, "file_use", plain)
    is_taken_up = use is FileUse.WRITE and param.opts[0] == "--out" and ctx.params.get("option_resume")
    return FileUse.BOTH if is_taken_up else use


def _print(stream: str, text: bytes) -> None:
    """Print what the command prints on the same stream here; what a device sends drives no terminal."""
    shown = "\n".join(map(printable, text.decode("utf-8", "replace").split("\n")))
    if stream == "out":
        click.echo(shown, nl=False)
        sys.stdout.flush()
    else:
        write_if_possible(sys.stderr, shown)
