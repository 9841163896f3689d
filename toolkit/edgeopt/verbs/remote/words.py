"""Options as words of a command line, from their values: what Python asks of a device is what a person would type."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from edgeopt.errors import UnsupportedError
from edgeopt.measurement.generation.answer_budget import FRAME, PARTS
from edgeopt.measurement.load.models import file_of_load
from edgeopt.system.declared.options import FileUse, Option, Syntax, default_of, flags_of, options_of
from edgeopt.verbs.remote.command import CommandWord

_OUT, _RESUME, _LIMITS = "out", "resume", "thresholds"
_BUDGETS = (Syntax.ANSWER_BUDGET, Syntax.SERVER_BUDGET)
_UNITS = {Syntax.SECONDS: "s", Syntax.MILLISECONDS: "ms", Syntax.FRAME_BUDGET: "ms", Syntax.BYTES: "B"}


@dataclass(frozen=True, slots=True)
class WrittenOption:
    """An option as it is written."""

    flag: str
    texts: tuple[str, ...]
    """One for each time that it is written; none: its presence is the value."""
    file_use: FileUse = FileUse.NONE


def line_of(written: Iterable[WrittenOption], sources: Sequence[str]) -> list[CommandWord]:
    """Return a command line behind the command's name.

    Args:
        written: Its options.
        sources: Its arguments.
    """
    options, flags = list[CommandWord](), list[CommandWord]()
    for each in written:
        is_read = each.file_use in (FileUse.READ, FileUse.BOTH, FileUse.READ_WITHIN)
        is_written = each.file_use in (FileUse.WRITE, FileUse.BOTH)
        for text in each.texts:
            within = file_of_load(text) if each.file_use is FileUse.READ_WITHIN else ""
            word = CommandWord(text, is_read=is_read, is_written=is_written, within=within)
            options += [CommandWord(each.flag), word]
        if not each.texts:
            flags.append(CommandWord(each.flag))
    arguments = [CommandWord(text, is_read=True) for text in sources]
    return [*options, *flags, *([CommandWord("--"), *arguments] if arguments else [])]


def written_options(options: Any) -> list[WrittenOption]:
    """Return the options of a verb that differ from their defaults, or have none.

    Args:
        options: The dataclass of a kind.

    Raises:
        UnsupportedError: If a value cannot be written.
    """
    kind, values = type(options), {each.name: getattr(options, each.name) for each in fields(options)}
    limits: Mapping[str, Any] = values.pop(_LIMITS, None) or {}
    values |= {name: limit for name, limit in limits.items() if values.get(name) is None}
    flags = flags_of(kind)
    for name, value in values.items():
        if name not in flags and value != (default_of(kind, name) if hasattr(options, name) else None):
            raise UnsupportedError(f"{name}= has no option of the command line", remedy="leave it out, or on=")
    written = []
    for name, each in options_of(kind):
        value = values[name]
        if not each.required and value == default_of(kind, name):
            continue
        is_taken_up = name == _OUT and values.get(_RESUME) and each.file_use is FileUse.WRITE
        if each.syntax is Syntax.FLAG:
            if value != each.flag_value:
                raise _unwritable(name, value)
            written.append(WrittenOption(each.flags[0], ()))
        else:
            use = FileUse.BOTH if is_taken_up else each.file_use
            written.append(WrittenOption(each.flags[0], _texts(name, each, value), use))
    return written


def _texts(name: str, option: Option, value: Any) -> tuple[str, ...]:
    """Return what is written behind a flag, once or several times."""
    syntax = option.syntax
    if value is None:
        raise _unwritable(name, value)
    if syntax is Syntax.SHAPE:
        return tuple(f"{key}={_joined(sizes)}" for key, sizes in value.items())
    if syntax is Syntax.TYPED_SHAPE:
        return tuple(f"{key}={_joined(sizes)}:{word}" for key, sizes, word in value)
    if syntax in (Syntax.NAMES, Syntax.COUNTS):
        return (",".join(map(str, value)),)
    if syntax in _BUDGETS:
        words = {part: word for word, part in PARTS.items()}
        limits = value.limits_ms
        parts = (f"{words[part]}:{limit!r}ms" for part, limit in limits.items() if part != FRAME)
        return (f"{limits[FRAME]!r}ms" if FRAME in limits else ",".join(parts),)
    if syntax is Syntax.SWITCH:
        return ("on" if value else "off",)
    if syntax is Syntax.GUESSES and value < 0:
        return ("auto",)
    return tuple(f"{each}{_UNITS.get(syntax, '')}" for each in (value if option.repeatable else (value,)))


def _joined(sizes: Iterable[int]) -> str:
    return "x".join(map(str, sizes))


def _unwritable(name: str, value: Any) -> UnsupportedError:
    return UnsupportedError(f"{name}={value!r} cannot be told to a device", remedy="leave it out, or on=")
