"""Help whose options stand under headings, those of the first hour first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click


class GroupedCommand(click.Command):
    """A command with many options; its help lists them group by group."""

    def __init__(self, *args: Any, groups: Mapping[str, tuple[str, ...]], **extra: Any) -> None:
        """Take the headings of the help.

        Args:
            *args: As click's own.
            groups: By heading, in their order, the options below it by their names in Python, in theirs.
            **extra: As click's own.
        """
        super().__init__(*args, **extra)
        self.groups = groups

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under their headings; one that no group names comes last."""
        options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        placed = {name for names in self.groups.values() for name in names}
        rest = tuple(dict.fromkeys(each.name or "" for each in options if each.name not in placed))
        for heading, names in (*self.groups.items(), ("Help", rest)):
            members = [each for name in names for each in options if each.name == name]
            records = [record for each in members if (record := each.get_help_record(ctx)) is not None]
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)
