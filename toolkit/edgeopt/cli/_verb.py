"""Commands made of the options of a verb: one help for all kinds of workload, values read for the kind at hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from edgeopt.cli._help import GroupedCommand
from edgeopt.cli._output import show
from edgeopt.cli._remote import (
    ON,
    RESULT,
    SEARCH_THERE,
    DeviceCommand,
    device_group,
    device_option,
    listening,
    result_option,
    search_option,
)
from edgeopt.cli._values import default_text, type_of
from edgeopt.system.declared.options import FileUse, Option, OptionGroup, Syntax, default_of, options_of
from edgeopt.verbs._perform import Performed, refuse
from edgeopt.verbs.remote import SEARCHING, VERBS
from edgeopt.workloads import Kind, kind_of, kinds, require_same_kind

if TYPE_CHECKING:
    from edgeopt.verbs.remote.search import SearchHere

PRINTING = ("check", "run")
"""Verbs that write files or answers besides their result, whatever computes for them."""
PRINTED = OptionGroup("output", "What is printed", "the form of the result")
"""Group of the options that the command line adds to every verb."""


@dataclass(frozen=True, slots=True)
class FlagUse:
    """One kind's use of a flag."""

    kind: Kind
    field: str
    """Field of the kind's dataclass of options."""
    option: Option
    default: Any

    @property
    def shown_default(self) -> str:
        """The default in words, or the value itself; empty: there is none."""
        return self.option.shown_default or default_text(self.option, self.default)


class _Raw(click.ParamType[Any]):
    """The text of an option, which is read when the kind of workload is known."""

    name = "text"

    def __init__(self, uses: Sequence[FlagUse]) -> None:
        self.types = [type_of(use.option) for use in uses]

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        """Return what help shows for the value."""
        shown = dict.fromkeys(each.get_metavar(param, ctx) or each.name.upper() for each in self.types)
        return "|".join(shown)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        """Return the words that the first kind takes."""
        return self.types[0].shell_complete(ctx, param, incomplete)


class VerbOption(click.Option):
    """An option of a verb; its help says what it is for every kind that takes it."""

    def __init__(self, uses: Sequence[FlagUse]) -> None:
        """Take what is known of it by kind, one or more."""
        self.uses = uses
        first = uses[0].option
        extra: dict[str, Any] = {"is_flag": True} if first.syntax is Syntax.FLAG else {"type": _Raw(uses)}
        super().__init__(
            [*first.flags, f"option_{name_of(first.flags[0])}"],
            multiple=first.repeatable,
            required=all(use.option.required for use in uses),
            metavar=first.metavar or None,
            help=" ".join(dict.fromkeys(use.option.help for use in uses)),
            **extra,
        )

    @property
    def is_source(self) -> bool:
        """Whether its value names the workload, in place of the argument."""
        return self.uses[0].option.names_source

    @property
    def file_use(self) -> FileUse:
        """Use of the file that its text names."""
        return self.uses[0].option.file_use

    @property
    def brief(self) -> str:
        """A short line for the screen of options that most users need; empty: it is none of them."""
        return next((use.option.brief for use in self.uses if use.option.is_common), "")

    def flags_shown(self, ctx: click.Context) -> str:
        """Return how it is written."""
        record = super().get_help_record(ctx)
        return record[0] if record else ""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return flags and help; what a folder of parts lists is read now, and not for every command."""
        template = self.help
        for use in self.uses:
            if use.option.help_from and self.help:
                module, _, name = use.option.help_from.partition(":")
                self.help = self.help.replace("{}", getattr(import_module(module), name)())
        try:
            return super().get_help_record(ctx)
        finally:
            self.help = template

    def get_help_extra(self, ctx: click.Context) -> click.types.OptionHelpExtra:
        """Return default and range as help shows them: in brackets what takes several words, else the value itself."""
        extra = super().get_help_extra(ctx)
        parts = dict.fromkeys(part for use in self.uses for part in use.shown_default.split("; ") if part)
        if shown := "; ".join(parts):
            extra["default"] = f"({shown})" if " " in shown else shown
        reader = type_of(self.uses[0].option)
        if isinstance(reader, click.IntRange | click.FloatRange):
            extra["range"] = reader._describe_range()
        return extra


class VerbCommand(DeviceCommand, GroupedCommand):
    """A command whose options are those that the kinds of workload declare for its verb."""

    def __init__(self, *args: Any, verb: str, order: Sequence[str] = (), **extra: Any) -> None:
        """Make the options of a verb.

        Args:
            *args: As click's own.
            verb: Its name.
            order: Names of the groups of options, as help shows them; others follow.
            **extra: As click's own.
        """
        options = options_of_verb(verb)
        groups: dict[str, OptionGroup] = {}
        names: dict[str, list[str]] = {name: [] for name in order}

        def place(group: OptionGroup, *options: str) -> None:
            names.setdefault(groups.setdefault(group.name, group).name, []).extend(options)

        if verb in VERBS:
            extra["params"] = [*extra["params"], result_option(), device_option(verb)]
            place(device_group(verb), ON)
        if verb in SEARCHING:
            extra["params"] = [*extra["params"], search_option()]
            place(device_group(verb), SEARCH_THERE)
        for each in options:
            place(each.uses[0].option.group, each.name or "")
        own = (each.name or "" for each in extra["params"] if isinstance(each, click.Option))
        printed = dict.fromkeys(name for name in own if name not in (ON, SEARCH_THERE, RESULT))
        place(PRINTED, *printed)
        extra["params"] = [*extra["params"], *options]
        filled = {groups[name]: tuple(members) for name, members in names.items() if members}
        super().__init__(*args, groups=filled, **extra)

    def about(self, group: OptionGroup) -> str:
        """Return what a group is for, and which kind of workload alone takes it, where its heading does not say so."""
        options = [each for each in self.params if isinstance(each, VerbOption)]
        taken, all_kinds = (
            {use.kind.noun for each in chosen for use in each.uses}
            for chosen in ([each for each in options if each.name in self.groups[group]], options)
        )
        sole = next(iter(taken)) if len(taken) == 1 < len(all_kinds) else ""
        is_said = not sole or sole.removeprefix("a ") in group.heading.lower()
        return group.about if is_said else f"{group.about}; for {sole} only"

    def common(self, ctx: click.Context) -> Iterator[tuple[str, str]]:
        """Yield the options that most users need, with a short line for each."""
        for group in self.groups:
            for each in self.members(ctx, group):
                if isinstance(each, VerbOption) and each.brief:
                    yield each.flags_shown(ctx), f"{each.brief}{'  [required]' if each.required else ''}"

    @contextmanager
    def on_phone(self, ctx: click.Context, address: str) -> Iterator[int | None]:
        """Let a phone compute; a verb with a result is done, and shown as if it had been done here."""
        from edgeopt.verbs.android.perform import on_phone, perform_on_phone

        verb, several = ctx.info_name or "", ctx.params.get("subjects")
        single = "bundle" if "bundle" in ctx.params else "model"
        sources = (named_source(ctx, ctx.params.get(single)),) if several is None else several
        values = read_values(ctx, *sources) if sources else {}
        limit_s = values.get("time_limit_s")
        with listening(ctx, limit_s, is_whole=verb in SEARCHING) as progress:
            if verb not in PRINTING:
                done = perform_on_phone(verb, sources, values, address, progress.progress, progress)
            else:
                with on_phone(verb, sources, values, address, progress.progress):
                    yield None
                return
        show(done.document, ctx.params["form"])
        yield done.exit_code

    def search_of(self, ctx: click.Context) -> SearchHere | None:
        """Return the search of a verb that makes candidates."""
        if ctx.info_name not in SEARCHING:
            return None
        from edgeopt.verbs.remote.search import SearchHere

        source = named_source(ctx, ctx.params.get("model"))
        values = read_values(ctx, source)
        limit_s = values.get("time_limit_s")
        return SearchHere(ctx.info_name, source, values, lambda: listening(ctx, limit_s, is_whole=True))


def options_of_verb(verb: str) -> list[VerbOption]:
    """Return an option for each flag that a kind takes for a verb, the kind that takes most sources first."""
    uses: dict[str, list[FlagUse]] = {}
    for kind in reversed(kinds()):
        if (options := kind.options.get(verb)) is None:
            continue
        for field, option in options_of(options):
            uses.setdefault(option.flags[0], []).append(FlagUse(kind, field, option, default_of(options, field)))
    return [VerbOption(each) for each in uses.values()]


def name_of(flag: str) -> str:
    """Return the name in Python of a flag."""
    return flag.lstrip("-").replace("-", "_")


def named_source(ctx: click.Context, source: str | None) -> str:
    """Return the workload: the argument, or the value of an option that names it in its place.

    Where both are given the argument is read as `--model`.

    Raises:
        click.UsageError: If neither is given.
    """
    for each in _given(ctx):
        if each.is_source:
            named = str(ctx.params[each.name or ""])
            ctx.params[each.name or ""] = None
            if source is not None:
                ctx.params["model_at_source"] = source
            return named
    if source is None:
        flags = [each.opts[0] for each in ctx.command.params if isinstance(each, VerbOption) and each.is_source]
        more = f"; or {' or '.join(flags)} in its place" if flags else ""
        raise click.UsageError(f"Missing argument 'MODEL'{more}.")
    return source


def read_values(ctx: click.Context, *sources: str) -> dict[str, Any]:
    """Return what was given on the command line, by the fields of the options of the workload's kind.

    Args:
        ctx: Of the command.
        *sources: What it is pointed at, of one kind.

    Raises:
        EdgeoptError: If an option is for other kinds.
        click.BadParameter: If a text cannot be read.
    """
    source = sources[0] if sources else ""
    kind = (
        require_same_kind(sources)
        if len(sources) > 1
        else kind_of(source, ctx.info_name or "", str(ctx.params.get("option_task") or ""))
    )
    kind.require_verb(ctx.info_name or "")
    values: dict[str, Any] = {}
    for each in _given(ctx):
        use = next((use for use in each.uses if use.kind is kind), None)
        if use is None:
            refuse(kind, each.opts[0], tuple(use.kind for use in each.uses), source)
        else:
            values[use.field] = _value(use.option, ctx.params[each.name or ""], each, ctx)
    if model := ctx.params.pop("model_at_source", None):
        values.setdefault("model", model)
    return values


def read_values_of_each(ctx: click.Context, sources: Sequence[str]) -> list[dict[str, Any]]:
    """Return what was given on the command line for each of several workloads of any kinds: the options of its kind.

    Raises:
        EdgeoptError: If an option is for none of them.
        click.BadParameter: If a text cannot be read.
    """
    chosen = [kind_of(source, ctx.info_name or "") for source in sources]
    for kind in chosen:
        kind.require_verb(ctx.info_name or "")
    values: list[dict[str, Any]] = [{} for _ in sources]
    for each in _given(ctx):
        uses = {use.kind.name: use for use in each.uses}
        if not any(kind.name in uses for kind in chosen):
            refuse(chosen[0], each.opts[0], tuple(use.kind for use in each.uses), sources[0])
        for kind, own in zip(chosen, values, strict=True):
            if use := uses.get(kind.name):
                own[use.field] = _value(use.option, ctx.params[each.name or ""], each, ctx)
    return values


def _given(ctx: click.Context) -> list[VerbOption]:
    """Return the options that stand on the command line."""
    default = click.core.ParameterSource.DEFAULT
    options = (each for each in ctx.command.params if isinstance(each, VerbOption))
    return [
        each
        for each in options
        if ctx.get_parameter_source(each.name or "") is not default and ctx.params.get(each.name or "") is not None
    ]


def _value(option: Option, raw: Any, param: click.Parameter, ctx: click.Context) -> Any:
    """Return the value of an option in the units of its field."""
    if option.syntax is Syntax.FLAG:
        return option.flag_value
    reader = type_of(option)
    if not option.repeatable:
        return reader.convert(raw, param, ctx)
    values = tuple(reader.convert(each, param, ctx) for each in raw)
    if option.syntax is Syntax.SHAPE:
        return dict(values)
    return tuple(name for names in values for name in names) if option.syntax is Syntax.NAMES else values


def finish(ctx: click.Context, done: Performed[Any], form: str) -> None:
    """Show a result, and end with its exit code; where a program began the command, write the result for it."""
    if file := ctx.params.get(RESULT):
        from edgeopt.verbs.remote.results import store_result

        store_result(done.result, file)
    show(done.document, form)
    ctx.exit(done.exit_code)


def verb_command(verb: str, *order: str) -> Callable[[Callable[..., Any]], click.Command]:
    """Return a decorator that makes a function the command of a verb.

    Args:
        verb: Its name.
        *order: Names of the groups of options, as help shows them; others follow.
    """

    def decorate(function: Callable[..., Any]) -> click.Command:
        return click.command(cls=VerbCommand, verb=verb, order=order)(function)

    return decorate
