"""Options as fields of dataclasses: the command line, its help and Python's signatures are made of them.

A verb's options are fields of one dataclass for each kind of workload. A field holds its default once; what else the
command line needs (words of the help, the group, how text is read) stands in the field's metadata.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

_KEY = "edgeopt.option"
_FIRST_WORDS = re.compile(r"[.:;](?:\s|$)")
"""End of the first words of a help."""


class Syntax(StrEnum):
    """How the text of an option is read."""

    TEXT = "text"
    FILE = "file"
    FLAG = "flag"
    """No text: its presence is the value."""
    WHOLE = "whole"
    NUMBER = "number"
    SHARE = "share"
    """`1%` or `0.01`."""
    SECONDS = "seconds"
    """`5m`, in seconds."""
    MILLISECONDS = "milliseconds"
    """`33ms`, in milliseconds."""
    BYTES = "bytes"
    """`2GiB`, in bytes."""
    FRAME_BUDGET = "frame budget"
    """`33ms`, in milliseconds."""
    ANSWER_BUDGET = "answer budget"
    """`ttft:200ms,tpot:20ms`."""
    SERVER_BUDGET = "server budget"
    """Either of the two: what a server answers is known when it is asked."""
    COUNTS = "counts"
    """`1,2,4`."""
    NAMES = "names"
    """`a,b`."""
    CHOICE = "choice"
    SWITCH = "switch"
    """`on` or `off`."""
    SHAPE = "shape"
    """`images=1x3x48x192`; all of them make a dict."""
    TYPED_SHAPE = "typed shape"
    """`ids=1x128:int64`."""
    GUESSES = "guesses"
    """A number, or `auto`, which is -1."""
    PRUNING = "pruning"
    """`auto`, `off`, `0.3` or `1.5x`."""
    MODEL = "model"
    TARGET = "target"
    RECIPE = "recipe"


class FileUse(StrEnum):
    """A command's use of the file that the text of an option names."""

    NONE = "none"
    """The text names no file."""
    READ = "read"
    """It may name a file or folder that is read."""
    WRITE = "write"
    """It names a file or folder that is written."""
    BOTH = "both"
    READ_WITHIN = "read within"
    """A part of the text may name a file that is read, as in `trace:FILE`."""


_READS = frozenset({Syntax.FILE, Syntax.MODEL, Syntax.TARGET, Syntax.RECIPE})


@dataclass(frozen=True, slots=True)
class OptionGroup:
    """Options of a verb that are for one thing; those of several kinds of workload stand together by its name."""

    name: str
    """Word by which `--help` shows it."""
    heading: str
    """As help shows it above its options."""
    about: str
    """Purpose of its options, in a few words."""


@dataclass(frozen=True, slots=True)
class Option:
    """The command line's knowledge of a field."""

    help: str
    """Sentences; the screen of options that most users need shows them up to the first stop, colon or semicolon."""
    group: OptionGroup
    """Options among which help shows it."""
    is_common: bool
    """Whether most users need it: the first screen of help says what it is for."""
    syntax: Syntax
    flags: tuple[str, ...]
    """As it is written, the long form first."""
    shown_default: str
    """Default as help shows it; empty: the field's own value."""
    least: float | None
    most: float | None
    above: bool
    """Whether `least` itself is refused."""
    choices: tuple[str, ...]
    metavar: str
    repeatable: bool
    flag_value: Any
    """Value that the field gets where the flag is present."""
    names_source: bool
    """Whether its value is the workload, in place of the argument; the argument is then read as `--model`."""
    required: bool
    help_from: str
    """Function whose text fills `{}` in the help, as `module:name`; it is called when help is shown. Empty: none."""
    file_use: FileUse
    """Use of the file that its text names: what a device elsewhere is sent, and what comes back."""

    @property
    def brief(self) -> str:
        """The help up to its first stop, colon or semicolon, as a sentence."""
        return f"{_FIRST_WORDS.split(self.help, maxsplit=1)[0]}."


def option(
    default: Any,
    help: str,  # noqa: A002  (click's word)
    *flags: str,
    group: OptionGroup | str,
    common: bool = False,
    syntax: Syntax = Syntax.TEXT,
    shown: str = "",
    least: float | None = None,
    most: float | None = None,
    above: bool = False,
    choices: tuple[str, ...] = (),
    metavar: str = "",
    repeatable: bool = False,
    flag_value: Any = True,
    names_source: bool = False,
    required: bool = False,
    help_from: str = "",
    file_use: FileUse | None = None,
) -> Any:
    """Return a field of a dataclass that is an option of a verb.

    Args:
        default: Its value where nothing is said; a class such as `dict` makes a new one each time.
        help: A sentence for `--help`.
        *flags: As it is written, such as `--out`, `-o`; none: `--` and the field's name.
        group: Options among which help shows it; a text is the heading of a group that is named by it.
        common: Whether most users need it, so that the first screen of help says what it is for.
        syntax: How its text is read.
        shown: What help shows as the default; empty: the default itself.
        least: Smallest number.
        most: Largest number.
        above: Whether `least` itself is refused.
        choices: Words of a choice.
        metavar: What help shows for the value.
        repeatable: Whether it may be written several times.
        flag_value: What the presence of a flag means.
        names_source: Whether its value is the workload, in place of the argument.
        required: Whether it must be given.
        help_from: Function whose text fills `{}` in the help, as `module:name`.
        file_use: Use of the file that the text names; None: files, models, targets and recipes are read.
    """
    made = Option(
        help=help,
        group=_group_of(group),
        is_common=common,
        syntax=syntax,
        flags=flags,
        shown_default=shown,
        least=least,
        most=most,
        above=above,
        choices=choices,
        metavar=metavar,
        repeatable=repeatable,
        flag_value=flag_value,
        names_source=names_source,
        required=required,
        help_from=help_from,
        file_use=file_use or (FileUse.READ if syntax in _READS else FileUse.NONE),
    )
    return option_like(made, default)


def _group_of(group: OptionGroup | str) -> OptionGroup:
    """Return a group of options; a text makes one, as kinds of other packages wrote it in earlier versions."""
    if isinstance(group, OptionGroup):
        return group
    return OptionGroup("-".join(group.lower().split()), group, "its options")


def option_like(made: Option, default: Any) -> Any:
    """Return a field that is the same option as one of another dataclass, with a default of its own."""
    if isinstance(default, type):
        return field(default_factory=default, metadata={_KEY: made})
    return field(default=default, metadata={_KEY: made})


def options_of(options: type) -> Iterator[tuple[str, Option]]:
    """Yield the fields of a dataclass that are options, by name, in their order; flags that were left out are made."""
    for each in fields(options):
        if (made := each.metadata.get(_KEY)) is not None:
            yield each.name, _with_flags(each, made)


def flags_of(options: type) -> Mapping[str, str]:
    """Return the long form of each option of a dataclass by the field's name."""
    return {name: each.flags[0] for name, each in options_of(options)}


def default_of(options: type, name: str) -> Any:
    """Return the default of a field."""
    chosen = next(each for each in fields(options) if each.name == name)
    if chosen.default_factory is not MISSING:
        return chosen.default_factory()
    return chosen.default if chosen.default is not MISSING else None


def _with_flags(each: Field[Any], made: Option) -> Option:
    if made.flags:
        return made
    return replace(made, flags=(f"--{each.name.replace('_', '-')}",))
