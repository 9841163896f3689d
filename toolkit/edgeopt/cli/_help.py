"""Help in one screen: what most users need, then the groups of options by name; a group, or all of it, in full."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from edgeopt.errors import EdgeoptError, NotFoundError
from edgeopt.system.declared.options import OptionGroup

SCREEN_LINES = 45
"""Most lines of a help that is shown whole where nobody asks for a part of it."""
ALL = "all"
"""Word that asks for the whole help."""
_KEPT = {"-": "\N{NON-BREAKING HYPHEN}", "default: ": "default:\N{NO-BREAK SPACE}"}
"""By text at which no line ends, what stands for it while lines are broken."""
_FIRST_PARAGRAPHS = 2
"""Paragraphs of a command's text on the screen: what it does, and what its arguments are."""


class HelpText(click.HelpFormatter):
    """The text of a help, in which no line ends inside an option such as `--max-drop`, or before a default."""

    def write_text(self, text: str) -> None:
        """Write paragraphs."""
        super().write_text(_kept(text))

    def write_dl(self, rows: Any, *args: Any, **extra: Any) -> None:
        """Write a table of two columns."""
        super().write_dl([(first, _kept(second)) for first, second in rows], *args, **extra)

    def getvalue(self) -> str:
        """Return the text."""
        text = super().getvalue()
        for shown, held in _KEPT.items():
            text = text.replace(held, shown)
        return text


def _kept(text: str) -> str:
    for shown, held in _KEPT.items():
        text = text.replace(shown, held)
    return text


class HelpContext(click.Context):
    """A context that makes such texts."""

    formatter_class = HelpText


class GroupName(click.ParamType[str]):
    """The name of a group of options, or `all`."""

    name = "group"

    def __init__(self, groups: Mapping[OptionGroup, tuple[str, ...]]) -> None:
        self.groups = groups

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the names that begin so, each with what its options are for."""
        about = {each.name: f"{each.heading}: {each.about}" for each in self.groups}
        if about:
            about[ALL] = "Everything"
        return [CompletionItem(name, help=text) for name, text in about.items() if name.startswith(incomplete)]


class HelpOption(click.Option):
    """`--help`, behind which the name of a group may stand."""

    def __init__(self, flags: list[str], groups: Mapping[OptionGroup, tuple[str, ...]]) -> None:
        self.has_groups = bool(groups)
        text = "Show this message and exit."
        if groups:
            first = next(iter(groups)).name
            text = f"Show what most users need; with a group, such as {first}, its options; with {ALL}, everything."
        super().__init__(
            [*flags, "help_with"],
            is_flag=False,
            flag_value="",
            type=GroupName(groups),
            metavar=f"[GROUP|{ALL}]",
            expose_value=False,
            is_eager=True,
            callback=_show,
            help=text,
        )

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        """Return flags and help."""
        flags = ", ".join((*self.opts, *self.secondary_opts))
        return f"{flags} {self.metavar}" if self.has_groups else flags, self.help or ""


def _show(ctx: click.Context, param: click.Parameter, word: str | None) -> None:
    """Print the help that a word behind `--help` asks for, and end the program; None: nobody asks for help."""
    del param
    if word is not None and not ctx.resilient_parsing:
        assert isinstance(ctx.command, HelpCommand)
        click.echo(ctx.command.help_with(ctx, word), color=ctx.color)
        ctx.exit()


class HelpCommand(click.Command):
    """A command whose `--help` may be followed by a word."""

    context_class = HelpContext
    groups: Mapping[OptionGroup, tuple[str, ...]] = {}
    """In their order, with the options of each by their names in Python; empty: all options stand together."""
    _own_help: HelpOption | None = None

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """Return the option that shows help; it is made once, since click tells options apart by identity."""
        if self._own_help is None:
            self._own_help = HelpOption(list(self.get_help_option_names(ctx)), self.groups)
        return self._own_help

    def help_with(self, ctx: click.Context, word: str) -> str:
        """Return the help that a word asks for: of a group, of all, or the screen.

        A word that cannot be a group's name is another argument of the command line, which asks for nothing.

        Args:
            ctx: Of the command.
            word: Behind `--help`; empty: there is none.

        Raises:
            EdgeoptError: If it looks like the name of a group, and none has it.
        """
        del word
        return self.get_help(ctx)


class GroupedCommand(HelpCommand):
    """A command with many options; its help lists them group by group."""

    def __init__(self, *args: Any, groups: Mapping[OptionGroup, tuple[str, ...]], **extra: Any) -> None:
        """Take the groups of the help.

        Args:
            *args: As click's own.
            groups: In their order, the options of each by their names in Python, in theirs.
            **extra: As click's own.
        """
        super().__init__(*args, **extra)
        self.groups = groups

    def help_with(self, ctx: click.Context, word: str) -> str:
        """Return the help that a word asks for: of a group, of all, or the screen."""
        if word == ALL:
            return self.get_help(ctx)
        chosen = next((group for group in self.groups if group.name == word), None)
        if chosen is not None:
            return self._group_help(ctx, chosen)
        if word.isalpha() and not Path(word).exists():
            raise self._unknown(ctx, word)
        return self._screen(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under the headings of their groups; those of no group come last."""
        for group in self.groups:
            self.format_group(ctx, formatter, group)
        placed = {name for names in self.groups.values() for name in names}
        rest = [each for each in self._options(ctx) if each.name not in placed]
        _write_options(ctx, formatter, "Help", rest)

    def format_group(self, ctx: click.Context, formatter: click.HelpFormatter, group: OptionGroup) -> None:
        """Write the options of a group in full."""
        _write_options(ctx, formatter, group.heading, self.members(ctx, group))

    def members(self, ctx: click.Context, group: OptionGroup) -> list[click.Option]:
        """Return the options of a group that help shows."""
        options = self._options(ctx)
        return [each for name in self.groups[group] for each in options if each.name == name]

    def about(self, group: OptionGroup) -> str:
        """Return what a group is for, in a few words."""
        return group.about

    def common(self, ctx: click.Context) -> Iterator[tuple[str, str]]:
        """Yield the options that most users need, with a short line for each."""
        del ctx
        yield from ()

    def _options(self, ctx: click.Context) -> list[click.Option]:
        return [each for each in self.get_params(ctx) if isinstance(each, click.Option) and not each.hidden]

    def _group_help(self, ctx: click.Context, group: OptionGroup) -> str:
        formatter = ctx.make_formatter()
        self.format_usage(ctx, formatter)
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(f"{_capitalized(self.about(group))}.")
        self.format_group(ctx, formatter, group)
        return formatter.getvalue().rstrip("\n")

    def _screen(self, ctx: click.Context) -> str:
        """Return the whole help where it fits a screen, else what most users need, and the names of all groups."""
        least = len(self._options(ctx)) + 2 * len(self.groups)  # what lists of parts say is read only where it is shown
        if least <= SCREEN_LINES and len((whole := self.get_help(ctx)).splitlines()) <= SCREEN_LINES:
            return whole
        formatter = ctx.make_formatter()
        self.format_usage(ctx, formatter)
        formatter.write_paragraph()
        with formatter.indentation():
            paragraphs = inspect.cleandoc(self.help or "").split("\n\n")
            formatter.write_text("\n\n".join(paragraphs[:_FIRST_PARAGRAPHS]))
        with formatter.section("Most used"):
            formatter.write_dl(list(self.common(ctx)))
        with formatter.section("All options, by group"):
            formatter.write_dl(list(self._group_rows(ctx, formatter.width)))
        formatter.write_paragraph()
        first, path = next(iter(self.groups)).name, ctx.command_path
        read_on = (
            (first, "All about a group of options: units, defaults."),
            (ALL, "All about the command, and every option."),
        )
        formatter.write_dl([(f"{path} --help {word}", about) for word, about in read_on], len(path) + 20)
        return formatter.getvalue().rstrip("\n")

    def _group_rows(self, ctx: click.Context, width: int) -> Iterator[tuple[str, str]]:
        """Yield a line for each group, or two: what it is for, and its options."""
        left = width - max(len(group.name) for group in self.groups) - 4
        for group in self.groups:
            about = f"{group.heading}: {self.about(group)}."
            flags = " ".join(each.opts[0] for each in self.members(ctx, group))
            if len(about) + len(flags) < left:
                yield group.name, f"{about} {flags}"
            else:
                yield group.name, about
                yield "", flags

    def _unknown(self, ctx: click.Context, word: str) -> EdgeoptError:
        names = {group.name: self.members(ctx, group) for group in self.groups}
        holds = next((name for name, each in names.items() if any(f"--{word}" in one.opts for one in each)), None)
        if holds is None:
            return NotFoundError("group of options", word, [*names, ALL])
        path = ctx.command_path
        return EdgeoptError(
            f"{word} is an option and no group of options", remedy=f"see its group: {path} --help {holds}"
        )


def _write_options(
    ctx: click.Context, formatter: click.HelpFormatter, heading: str, options: list[click.Option]
) -> None:
    records = [record for each in options if (record := each.get_help_record(ctx)) is not None]
    if records:
        with formatter.section(heading):
            formatter.write_dl(records)


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]
