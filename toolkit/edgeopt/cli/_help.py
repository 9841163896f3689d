"""Help in one screen: what most users need, then the groups of options by name; a group, or all of it, in full."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import click
from click.shell_completion import CompletionItem

from edgeopt.errors import EdgeoptError
from edgeopt.system.declared.options import OptionGroup

SCREEN_LINES = 45
"""Most lines of a help that is shown whole where nobody asks for a part of it."""
ALL = "all"
"""Word that asks for the whole help."""
_KEPT = {"-": "\N{NON-BREAKING HYPHEN}", "default: ": "default:\N{NO-BREAK SPACE}"}
"""By text at which no line ends, what stands for it while lines are broken."""
_FIRST_PARAGRAPHS = 2
"""Paragraphs of a command's text on the screen: what it does, and what its arguments are."""
_NAME = re.compile(r"[A-Za-z]+(?:[-_][A-Za-z]+)*")
"""Form of the names of groups and options; a file with a dot, a folder or a digit in its name has another."""
_SHORT = 3
"""Most letters of a name of which one slip makes another word, such as `one` of `on`."""


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
    """`--help`, behind which the name of a group or an option may stand."""

    def __init__(self, flags: list[str], groups: Mapping[OptionGroup, tuple[str, ...]]) -> None:
        self.has_groups = bool(groups)
        text = "Show this message and exit."
        if groups:
            first = next(iter(groups)).name
            named = f"With the name of a group or an option, such as {first}: that group."
            text = f"Show help on one screen. {named} With {ALL}: everything."
        super().__init__(
            [*flags, "help_with"],
            is_flag=False,
            flag_value="",
            type=GroupName(groups),
            metavar=f"[GROUP|OPTION|{ALL}]",
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

    def __init__(self, *args: Any, **extra: Any) -> None:
        """Take what click's own takes."""
        super().__init__(*args, **extra)
        self._own_help = dict[tuple[str, ...], HelpOption]()

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """Return the option that shows help, one for its names: click tells options apart by identity.

        Args:
            ctx: Of the command; where it stands below no other, as in a test, the option has no short name.
        """
        names = tuple(sorted(self.get_help_option_names(ctx), key=len))
        if names not in self._own_help:
            self._own_help[names] = HelpOption(list(names), self.groups)
        return self._own_help[names]

    def help_with(self, ctx: click.Context, word: str) -> str:
        """Return the help that a word asks for: of a group or an option's group, of all, or the screen.

        A word that is not near to a name of these is another argument of the command line, which asks for nothing.

        Args:
            ctx: Of the command.
            word: Behind `--help`; empty: there is none.

        Raises:
            EdgeoptError: If it is the name of a group or an option but for one letter.
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

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line; where it ends in `--help --load`, nobody gives a load: its group is asked for."""
        is_joined = bool(args) and args[-1].startswith("--help=-")  # click takes no value that begins with a dash
        words = [*args[:-1], *args[-1].split("=", 1)] if is_joined else args
        if len(words) > 1 and words[-2] in self.get_help_option_names(ctx):
            group = self._groups_by_flag(ctx).get(words[-1])
            args = args if group is None else [*words[:-2], f"--help={group.name}"]
        return super().parse_args(ctx, args)

    def help_with(self, ctx: click.Context, word: str) -> str:
        """Return the help that a word asks for: of a group or an option's group, of all, or the screen."""
        if word == ALL:
            return self.get_help(ctx)
        flags = self._groups_by_flag(ctx)
        chosen = next((group for group in self.groups if group.name == word), flags.get(_flag(word)))
        if chosen is not None:
            return self._group_help(ctx, chosen)
        if near := _near(word, [*(group.name for group in self.groups), ALL, *flags]):
            raise EdgeoptError(
                f"no group of options and no option is named {word!r}",
                remedy=f"did you mean {near!r}? see {ctx.command_path} --help {near}",
            )
        return self._screen(ctx)

    def _groups_by_flag(self, ctx: click.Context) -> dict[str, OptionGroup]:
        """Return the group of each option, by the option's forms, such as `--out` and `-o`."""
        return {flag: group for group in self.groups for each in self.members(ctx, group) for flag in each.opts}

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
        if common := list(self.common(ctx)):
            with formatter.section("Most used"):
                formatter.write_dl(common)
        with formatter.section("All options, by group"):
            formatter.write_dl(list(self._group_rows(ctx, formatter.width)))
        formatter.write_paragraph()
        first, path = next(iter(self.groups)).name, ctx.command_path
        read_on = (
            (first, "All about a group, or an option's group."),
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


def _flag(word: str) -> str:
    """Return the option that a word names without its dashes, or with Python's underscores."""
    return f"--{word.replace('_', '-')}"


def _near(word: str, names: list[str]) -> str:
    """Return the name that a word is but for its case, or for one letter behind the first; empty: there is none.

    Args:
        word: As it was written; it may have any length.
        names: Of groups and options; those of options begin with dashes.
    """
    if not _NAME.fullmatch(word):
        return ""
    from rapidfuzz.distance import OSA

    written = word.lower().replace("_", "-")
    for name in (each.lstrip("-") for each in names):
        slips = OSA.distance(written, name, score_cutoff=1)
        if written[0] == name[0] and slips <= (len(name) > _SHORT):
            return name
    return ""


def _write_options(
    ctx: click.Context, formatter: click.HelpFormatter, heading: str, options: list[click.Option]
) -> None:
    records = [record for each in options if (record := each.get_help_record(ctx)) is not None]
    if records:
        with formatter.section(heading):
            formatter.write_dl(records)


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]
