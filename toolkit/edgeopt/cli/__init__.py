"""The command line: one command a file.

The group is the only place that turns errors into text and exit codes.
"""

from __future__ import annotations

import errno
import shutil
import sys
from importlib import import_module
from pkgutil import iter_modules
from typing import IO, Any

import click

from edgeopt import __version__
from edgeopt.errors import EXIT_ERROR, EXIT_INTERRUPTED, EdgeoptError, NotFoundError
from edgeopt.system.text import fold, printable, short

click.UsageError.exit_code = EXIT_ERROR  # click's own 2 means a missed budget here


class Commands(click.Group):
    """The files of this folder are the commands; each is imported when it is named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted(module.name for module in iter_modules(__path__) if not module.name.startswith("_"))

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import one command."""
        if name not in self.list_commands(ctx):
            return None
        command = import_module(f"{__name__}.{name}").COMMAND
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Offer the nearest command for a misspelt one."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise click.UsageError(NotFoundError("command", args[0], self.list_commands(ctx)).args[0], ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Turn errors into text: the one error boundary of the program."""
        try:
            return super().invoke(ctx)
        except EdgeoptError as error:
            _show_error(error)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo(f"interrupted: {_what_is_left(ctx.invoked_subcommand)}", err=True)
            ctx.exit(EXIT_INTERRUPTED)
        except BrokenPipeError:
            ctx.exit(0)
        except OSError as error:
            if error.errno not in _OF_THE_USER or error.filename is None:
                raise
            problem = f"{short(str(error.filename))} cannot be used: {error.strerror}"
            _show_error(EdgeoptError(problem, remedy="correct the path or its permissions, or free disk space"))
            ctx.exit(EXIT_ERROR)


_OF_THE_USER = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ENOSPC, errno.ELOOP})
"""What a person mends outside the program, wherever it met it; any other error of the system is a bug."""


def _show_error(error: EdgeoptError) -> None:
    _show_lines(f"error: {error}")


def _show_lines(text: str) -> None:
    """Print what went wrong and the remedy, folded on a terminal."""
    width = _stderr_width()
    for line in text.split("\n"):
        head = next((one for one in ("error: ", "  -> ") if line.startswith(one)), "")
        for part in fold(printable(line.removeprefix(head)), width, head):
            click.echo(part, err=True)


def _stderr_width() -> int:
    return shutil.get_terminal_size().columns if sys.stderr.isatty() else 0


def _show_usage(error: click.UsageError, file: IO[Any] | None = None) -> None:
    """Print how the command is called, then the error as every other one."""
    del file
    if error.ctx is not None:
        click.echo(f"{error.ctx.get_usage()}\nTry '{error.ctx.command_path} --help' for help.\n", err=True)
    _show_lines(f"error: {error.format_message()}")


click.UsageError.show = _show_usage  # type: ignore[assignment,method-assign]


def _what_is_left(command: str | None) -> str:
    """Return what an interrupt of a command leaves; the file of the command says it where that is anything."""
    nothing = "nothing was written"
    return getattr(import_module(f"{__name__}.{command}"), "INTERRUPTED", nothing) if command else nothing


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="edgeopt")
def cli() -> None:
    """Make a neural network meet a frame budget on a device, and prove it."""
