"""Kinds of workload: what a command is pointed at. Each folder here is a kind and ends in `KIND`.

A verb that a kind has is a file of its folder with the verb's name; `compare` and `check` are both in `sides.py`.
Packages add kinds through entry points of the
group `edgeopt.workloads`. Nothing outside this folder knows a kind by its name.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from edgeopt.errors import EdgeoptError
from edgeopt.measurement.check.options import CHECKS_OF_ALL
from edgeopt.system.declared import registry
from edgeopt.system.declared.options import Option, Syntax, default_of, flags_of, options_of

Chosen = TypeVar("Chosen", bound=Any)
"""Options of a verb."""
SIDE_VERBS = ("compare", "check")
"""Verbs that are written once, over the sides that a kind opens in its file `sides.py`."""
_NOT_BELOW_ZERO = frozenset({Syntax.SECONDS, Syntax.MILLISECONDS, Syntax.BYTES})
"""Syntaxes whose text cannot be negative on the command line."""
_AMOUNTS = _NOT_BELOW_ZERO | {Syntax.WHOLE, Syntax.NUMBER}
"""Syntaxes of a number that has limits."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of workload."""

    name: str
    noun: str
    """As messages call a workload of it: `a language model`."""
    place: int
    """Place of two kinds that claim a source, that with the lower number gets it."""
    claims: Callable[[str], bool]
    """Whether a source is of this kind: a file, a folder, a shipped name, an address. It opens no engine."""
    options: Mapping[str, type]
    """Verb -> dataclass of its options, whose fields are made by `system.declared.options.option`."""
    package: str
    """The module below which the files of its verbs lie."""
    refusals: Mapping[str, tuple[str, str]]
    """Verb -> why it is refused, and what to do instead."""
    require: Callable[[str], None]
    """Raise EdgeoptError where a source of this kind is not there, or damaged."""
    checks: tuple[str, ...] = ()
    """Checks that it has beside those of every kind (`measurement.check.options`): names of the guards of its sides."""
    phone_reason: str = "edgeopt-runner runs single models of frames on a phone"
    """Why it does not run on phones; empty: it does."""
    exports: Callable[[str, str], bool] = lambda *_: False
    """Whether `optimize` exports a source first that becomes this kind, for a task that the user named, or empty."""

    def has(self, verb: str) -> bool:
        """Return whether the kind has a verb."""
        return verb in self.options and find_spec(f"{self.package}.{file_of(verb)}") is not None

    def require_verb(self, verb: str) -> None:
        """Raise where the kind has not a verb.

        Raises:
            EdgeoptError: Why, and what to do instead.
        """
        if not self.has(verb):
            unknown = f"edgeopt {verb} does not take {self.noun}", f"name a workload of another kind than {self.name}"
            problem, remedy = self.refusals.get(verb, unknown)
            raise EdgeoptError(problem, remedy=remedy)

    def module(self, verb: str) -> ModuleType:
        """Import the file of a verb.

        Raises:
            EdgeoptError: If the kind refuses it.
        """
        self.require_verb(verb)
        return import_module(f"{self.package}.{file_of(verb)}")

    def part(self, name: str) -> ModuleType | None:
        """Import a file of its folder that not every kind has, such as `report`; None: this one has it not."""
        module = f"{self.package}.{name}"
        return import_module(module) if find_spec(module) is not None else None

    def make_options(self, verb: str, values: Mapping[str, Any], options: Any = None) -> Any:
        """Return the options of a verb.

        Args:
            verb: Its name.
            values: Fields that differ, by name; a text is taken for a path where a path is wanted.
            options: What they differ from; None: the defaults.

        Raises:
            TypeError: If a field is unknown, or `options` is of another kind.
            EdgeoptError: If a number is out of its range, or a word none of its choices.
        """
        wanted = self.options[verb]
        known = dict(options_of(wanted))
        values = {name: _read(name, each, known[name]) if name in known else each for name, each in values.items()}
        if options is None:
            return wanted(**values)
        if isinstance(options, wanted):
            chosen: Any = options
            return replace(chosen, **values)
        shared = {each.name: getattr(options, each.name) for each in fields(options)}
        return wanted(**{**shared, **values})


def _read(name: str, value: Any, option: Option) -> Any:
    """Return a value of a program as its option holds it: paths for texts, a row for a single text.

    Raises:
        EdgeoptError: If a number is out of its range, or a word none of its choices.
    """
    if option.syntax is Syntax.FILE:
        return _as_paths(value, several=option.repeatable)
    if isinstance(value, str) and option.choices and value not in option.choices:
        raise EdgeoptError(f"{name} is {value!r}", remedy=f"pass one of {', '.join(option.choices)}")
    if isinstance(value, str) and option.repeatable and option.syntax is Syntax.TEXT:
        return (value,)
    if isinstance(value, int | float) and not isinstance(value, bool) and option.syntax in _AMOUNTS:
        _require_within(name, value, option)
    return value


def _require_within(name: str, value: float, option: Option) -> None:
    least = 0 if option.syntax in _NOT_BELOW_ZERO else option.least
    is_low = least is not None and (value < least or (option.above and value == least))
    if math.isnan(value) or is_low or (option.most is not None and value > option.most):
        low = "" if least is None else f"{'above' if option.above else 'of at least'} {least:g}"
        high = "" if option.most is None else f"of at most {option.most:g}"
        limits = " and ".join(filter(None, (low, high)))
        raise EdgeoptError(f"{name} is {value:g}", remedy=f"pass a number {limits}".rstrip())


def _as_paths(value: Any, *, several: bool) -> Any:
    """Return the path that a text names; of several texts a path each."""
    if value is None or isinstance(value, Path):
        return value
    if not several:
        return Path(value)
    return (Path(value),) if isinstance(value, str) else tuple(Path(each) for each in value)


def file_of(verb: str) -> str:
    """Return the file of a kind's folder in which it does a verb."""
    return "sides" if verb in SIDE_VERBS else verb


def names_of_checks() -> str:
    """Return what `check` can leave out, of all kinds, as help lists it."""
    own = (name for kind in reversed(kinds()) for name in kind.checks)
    return ", ".join(dict.fromkeys((*CHECKS_OF_ALL, *own)))


def verbs() -> tuple[str, ...]:
    """Return every verb that some kind has options for."""
    return tuple(dict.fromkeys(verb for kind in reversed(kinds()) for verb in kind.options))


@cache
def kinds() -> tuple[Kind, ...]:
    """Return every kind, in the order in which they are asked for a source."""
    package = sys.modules[__name__]
    result: list[Kind] = [registry.load(package, name).KIND for name in registry.names(package)]
    return tuple(sorted(result, key=lambda kind: (kind.place, kind.name)))


def kind_of(source: str, verb: str = "", task: str = "") -> Kind:
    """Return the first kind that claims a source; the last kind takes what is left, and says what is wrong with it.

    Args:
        source: As the user named it.
        verb: What is done; `optimize` exports first what is no model yet.
        task: What it is exported for, where the user said so.
    """
    *first, last = kinds()
    is_exported = verb == "optimize"
    return next((kind for kind in first if kind.claims(source) or (is_exported and kind.exports(source, task))), last)


def require_same_kind(sources: tuple[str, ...]) -> Kind:
    """Return the kind of several sources.

    Raises:
        EdgeoptError: If they are of two.
    """
    chosen = {source: kind_of(source) for source in sources}
    first = next(iter(chosen.values()))
    for source, kind in chosen.items():
        if kind is not first:
            first.require(sources[0])
            kind.require(source)
            problem = f"{sources[0]} is {first.noun}, and {source} is {kind.noun}"
            raise EdgeoptError(problem, remedy="compare workloads of one kind")
    return first


def refuse_others(options: Any, taken: tuple[str, ...], what: str) -> None:
    """Raise where an option differs from its default that a part of a kind does not take.

    Args:
        options: The options of a verb.
        taken: Names of the fields that are taken.
        what: Takes no others, in the plural: `encoders with decoders`.

    Raises:
        EdgeoptError: If so.
    """
    for name, flag in flags_of(type(options)).items():
        if name not in taken and getattr(options, name) != default_of(type(options), name):
            raise EdgeoptError(f"{flag} is not for {what} so far", remedy="leave it out")


def with_budget_of_fps(options: Chosen) -> Chosen:
    """Return the options of a verb with frames a second as a budget.

    Raises:
        EdgeoptError: If both are there.
    """
    if options.fps is None:
        return options
    if options.budget_ms is not None:
        raise EdgeoptError("--budget and --fps both say how long a frame may take", remedy="give one of them")
    return replace(options, budget_ms=1000 / options.fps)


def began_of(listener: object) -> float | None:
    """Return when the command of a listener began, on the monotonic clock; None: a listener that does not say."""
    began_s: float | None = getattr(listener, "began_s", None)
    return began_s
