"""The command line: one command a file, whose first line is what `edgeopt --help` says of it.

The group is the only place that turns errors into text and exit codes.
"""

from __future__ import annotations

import errno
import sys
from importlib import import_module
from pkgutil import get_data, iter_modules
from types import ModuleType
from typing import IO, Any

import click
from click.shell_completion import CompletionItem

from edgeopt import __version__
from edgeopt.cli._help import HelpContext
from edgeopt.cli._output import show_line
from edgeopt.cli._streams import NOWHERE_TO_WRITE, give_up, is_reader_gone, write_if_possible
from edgeopt.errors import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_PASS, EdgeoptError, NotFoundError, out_of_memory
from edgeopt.system.text import short

click.UsageError.exit_code = EXIT_ERROR  # click's own 2 means a missed budget here


class Commands(click.Group):
    """The files of this folder are the commands; each is imported when it is named."""

    context_class = HelpContext

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands: those of the files, with dashes."""
        files = (module.name for module in iter_modules(__path__) if not module.name.startswith("_"))
        return sorted(name.replace("_", "-") for name in files)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import one command."""
        if name not in self.list_commands(ctx):
            return None
        command = _module_of(name).COMMAND
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a line for each command; importing them all would take longer than everything else."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, _first_line(name)) for name in self.list_commands(ctx)])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete names of commands, without importing these."""
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=_first_line(name)) for name in names), *options]

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
            _show_lines(f"interrupted: {_what_is_left(ctx.invoked_subcommand)}")
            ctx.exit(EXIT_INTERRUPTED)
        except MemoryError as error:
            _show_error(out_of_memory(error))
            ctx.exit(EXIT_ERROR)
        except OSError as error:
            ctx.exit(_exit_code_of(error))

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Parse the command line; help and version are printed already here."""
        try:
            return super().make_context(*args, **extra)
        except OSError as error:
            raise click.exceptions.Exit(_exit_code_of(error)) from error


_OF_THE_USER = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP}) | NOWHERE_TO_WRITE
"""Errors of the system that a person mends outside the program, wherever they occur; any other `OSError` is a bug."""


def _exit_code_of(error: OSError) -> int:
    """Show an error of the system that a person mends, and return the exit code; raise any other one."""
    if isinstance(error, BrokenPipeError) and is_reader_gone():
        give_up(sys.stdout)
        return EXIT_PASS
    if error.errno not in _OF_THE_USER:
        raise error
    if error.filename is not None:
        problem = f"{short(str(error.filename))} cannot be used: {error.strerror}"
        _show_error(EdgeoptError(problem, remedy="correct the path or its permissions, or free disk space"))
    elif error.errno in NOWHERE_TO_WRITE:  # the standard output, or a file that was open already
        give_up(sys.stdout)
        problem = f"what is printed or stored could not be written: {error.strerror}"
        _show_error(EdgeoptError(problem, remedy="free disk space, or send it elsewhere"))
    else:
        raise error
    return EXIT_ERROR


def _show_error(error: EdgeoptError) -> None:
    _show_lines(f"error: {error}")


def _show_lines(text: str) -> None:
    """Print what went wrong and the remedy."""
    for line in text.split("\n"):
        show_line(line, err=True)


def _show_usage(error: click.UsageError, file: IO[Any] | None = None) -> None:
    """Print how the command is called, then the error as every other one."""
    del file
    if error.ctx is not None:
        usage = f"{error.ctx.get_usage()}\nTry '{error.ctx.command_path} --help' for help.\n\n"
        write_if_possible(sys.stderr, usage)
    _show_lines(f"error: {error.format_message()}")


click.UsageError.show = _show_usage  # type: ignore[assignment,method-assign]


def _what_is_left(command: str | None) -> str:
    """Return what an interrupt of a command leaves; the file of the command says it where that is anything."""
    nothing = "nothing was written"
    return getattr(_module_of(command), "INTERRUPTED", nothing) if command else nothing


def _first_line(command: str) -> str:
    """Return the first line of a command's file."""
    source = get_data(__name__, f"{_file_name(command)}.py")
    assert source is not None
    return source.decode().split("\n", 1)[0].strip('"')


def _file_name(command: str) -> str:
    return command.replace("-", "_")


def _module_of(command: str) -> ModuleType:
    return import_module(f"{__name__}.{_file_name(command)}")


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="edgeopt")
def cli() -> None:
    """Make a neural network meet a frame budget on a device, and prove it."""
