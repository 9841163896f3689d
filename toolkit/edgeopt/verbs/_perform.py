"""One verb on one workload: its kind is found, its options are made, its file is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Generic, TypeVar, get_type_hints

from edgeopt.errors import EdgeoptError
from edgeopt.measurement.bench.stored import is_stored
from edgeopt.report.document import Document
from edgeopt.report.result import Result
from edgeopt.runtime.bundle import is_bundle
from edgeopt.system.declared.options import flags_of, options_of
from edgeopt.system.declared.signatures import with_options_of
from edgeopt.workloads import Kind, kind_of, kinds, require_same_kind

Function = TypeVar("Function", bound=Callable[..., Any])


Shown = TypeVar("Shown")
"""A result that is shown."""


@dataclass(frozen=True, slots=True)
class Performed(Generic[Shown]):
    """A result, and how its kind shows it."""

    result: Shown
    summarize: Callable[[Any], Document | str]

    @property
    def summary(self) -> Document | str:
        """The result for a reader: a document, or lines behind an answer."""
        return self.summarize(self.result)

    @property
    def document(self) -> Document:
        """The document for a reader, of a verb that shows one."""
        shown = self.summary
        assert isinstance(shown, Document)
        return shown

    @property
    def exit_code(self) -> int:
        """The exit code of the process; 0 where a result has none."""
        return int(getattr(self.result, "exit_code", 0))


def perform(verb: str, source: str, options: Any, values: Mapping[str, Any], hears: Any = None) -> Performed[Result]:
    """Do a verb that each kind does in a file of its own.

    Args:
        verb: One of `workloads.verbs()`.
        source: What it is pointed at.
        options: The kind's own dataclass; None: the defaults.
        values: Fields of it that differ, by name.
        hears: Listens to what the verb tells of its progress; None: nobody does.

    Raises:
        EdgeoptError: If the kind refuses the verb or an option, or the work fails.
        TypeError: If no kind has such an option.
    """
    kind, chosen = prepare(verb, (source,), options, values)
    module = kind.module(verb)
    return Performed(module.work(source, chosen, hears), module.summarize)


def prepare(verb: str, sources: tuple[str, ...], options: Any, values: Mapping[str, Any]) -> tuple[Kind, Any]:
    """Return the kind that does a verb, and its options.

    Raises:
        EdgeoptError: If the kind refuses the verb or an option.
        TypeError: If no kind has such an option.
    """
    kind = require_same_kind(sources) if len(sources) > 1 else kind_of(sources[0], verb, str(values.get("task", "")))
    kind.require_verb(verb)
    require_taken(kind, verb, values, sources)
    if options is None:
        require_whole(kind, verb, values)
    return kind, kind.make_options(verb, values, options)


def result_type(kind: Kind, verb: str) -> Any:
    """Return the type of the result that a kind's own file says a verb has; of two that which is no document."""
    module = kind.module(verb)
    hint = get_type_hints(module.view)["result"] if verb == "bench" else get_type_hints(module.work)["return"]
    kept = [each for each in getattr(hint, "__args__", ()) if each is not Document]
    return kept[0] if len(kept) == 1 else hint


def prepare_sides(sources: tuple[str, ...], options: Any, values: Mapping[str, Any]) -> tuple[Kind, Any]:
    """Return the kind that compares workloads, and its options, which may add sides of their own.

    Raises:
        EdgeoptError: If there are fewer than two sides, or the kind refuses an option.
    """
    if not sources:
        require_two(sources)
    kind, chosen = prepare("compare", sources, options, values)
    if not chosen.more_sides:
        require_two(sources)
    return kind, chosen


def require_two(sources: tuple[str, ...]) -> None:
    """Raise where there is nothing to compare.

    Raises:
        EdgeoptError: If fewer than two are named.
    """
    if len(sources) < 2:
        raise EdgeoptError(
            f"a comparison needs two, {len(sources)} given",
            remedy="name the model to compare with first, then the others (beside a language model --rivals); "
            "edgeopt bench measures one",
        )


def with_options_of_kinds(verb: str) -> Callable[[Function], Function]:
    """Return a decorator that shows every option of a verb, of all kinds, in a function's signature."""
    return with_options_of(*(kind.options[verb] for kind in reversed(kinds()) if verb in kind.options))


def require_taken(kind: Kind, verb: str, values: Mapping[str, Any], sources: tuple[str, ...]) -> None:
    """Raise where a value is for another kind.

    Raises:
        EdgeoptError: If another kind takes it.
        TypeError: If none does.
    """
    own = names_of(kind, verb)
    for name in values:
        if name in own:
            continue
        if takers := tuple(other for other in reversed(kinds()) if name in names_of(other, verb)):
            refuse(kind, flags_of(takers[0].options[verb]).get(name, name), takers, sources[0])
        raise TypeError(f"{verb}() got an unexpected keyword argument {name!r}")


def require_whole(kind: Kind, verb: str, values: Mapping[str, Any]) -> None:
    """Raise where an option without a default is missing.

    Raises:
        EdgeoptError: If so.
    """
    for name, each in options_of(kind.options[verb]):
        if each.required and name not in values:
            raise EdgeoptError(f"{verb} needs {each.flags[0]}", remedy=f"{each.help} Write {each.flags[0]}, or {name}=")


def split_values(verb: str, sources: tuple[str, ...], values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return for each of several workloads of any kinds those values that its kind takes.

    Raises:
        EdgeoptError: If only other kinds take one of them.
        TypeError: If none does.
    """
    chosen = [kind_of(source, verb) for source in sources]
    for name, value in values.items():
        if not any(name in names_of(kind, verb) for kind in chosen):
            chosen[0].require_verb(verb)
            require_taken(chosen[0], verb, {name: value}, sources)
    return [{name: value for name, value in values.items() if name in names_of(kind, verb)} for kind in chosen]


def names_of(kind: Kind, verb: str) -> frozenset[str]:
    """Return the names of the options that a kind takes for a verb; none where it has not that verb."""
    return frozenset(each.name for each in fields(kind.options[verb])) if verb in kind.options else frozenset()


def is_result(source: str) -> bool:
    """Return whether a source is an earlier result of `bench -o`, of any kind, and nothing that runs."""
    path = Path(source)
    return is_stored(path) and not is_bundle(path) and kind_of(source) is kinds()[-1]


def refuse(kind: Kind, flag: str, takers: tuple[Kind, ...], source: str) -> None:
    """Raise because an option is for other kinds.

    Raises:
        EdgeoptError: That a source is not there, where it is not; else that its kind does not take the option.
    """
    kind.require(source)
    *first, last = (each.noun for each in takers)
    whose = f"{', '.join(first)} or {last}" if first else last
    noun = "an earlier result" if is_result(source) else kind.noun
    raise EdgeoptError(f"{flag} is for {whose}, and {source} is {noun}", remedy=f"leave {flag} out")
