"""Results as plain values and arrays, and back, by the annotations of their dataclasses.

A device sends them: its words choose no class, and what is not of the annotated type is refused.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from edgeopt.system.text import short

_IS, _OF, _MAP, _ARRAY = "is", "of", "map", "array"
_LISTS = (tuple, list, frozenset, Set, Sequence)
_MADE = {list: list, frozenset: frozenset, Set: frozenset}
"""The types that a list of JSON becomes; all others become tuples."""
_SCALARS = (str, bool, int, float)

Arrays: TypeAlias = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class StandIn:
    """A plain dataclass in place of one that holds what is open: a session, a file."""

    plain: type
    store: Callable[[Any], Any]
    restore: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Plainly:
    """A way to write values of dataclasses as plain ones, and to read them."""

    stand_ins: Mapping[type, StandIn]
    members: Mapping[type, tuple[type, ...]]
    """Dataclasses that a protocol stands for in annotations."""

    def flatten(self, value: Any, arrays: Arrays) -> Any:
        """Return a value as plain ones for JSON.

        Args:
            value: A dataclass, or what one holds.
            arrays: Takes the arrays that are in it.

        Raises:
            TypeError: If it holds what is not plain.
        """
        if isinstance(value, Enum):
            return value.value
        if value is None or isinstance(value, _SCALARS):
            return value
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, Path):
            return str(value)
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            name = str(len(arrays))
            arrays[name] = value
            return {_ARRAY: name}
        if isinstance(value, Mapping):
            return {_MAP: [[self.flatten(key, arrays), self.flatten(each, arrays)] for key, each in value.items()]}
        if isinstance(value, tuple | list | frozenset):
            return [self.flatten(each, arrays) for each in value]
        if stand_in := self.stand_ins.get(type(value)):
            return self.flatten(stand_in.store(value), arrays)
        if is_dataclass(value) and not isinstance(value, type):
            held = {each.name: self.flatten(getattr(value, each.name), arrays) for each in fields(value) if each.init}
            return {_IS: _name(type(value)), _OF: held}
        raise TypeError(f"{type(value).__name__} is not plain")

    def restore(self, hint: Any, value: Any, arrays: Arrays) -> Any:
        """Return the value of an annotated type that `flatten` made plain.

        Raises:
            ValueError: If it is no such value.
        """
        kinds = _kinds_of(hint)
        if value is None and (type(None) in kinds or Any in kinds):
            return None
        if isinstance(value, dict):
            return self._restore_table(kinds, value, arrays)
        for kind in kinds:
            if kind is Any:
                return [self.restore(Any, each, arrays) for each in value] if isinstance(value, list) else value
            origin, inner = get_origin(kind) or kind, get_args(kind)
            if isinstance(value, list) and origin in _LISTS:
                if origin is not tuple or inner[1:] == (...,):
                    each_kinds = [inner[0]] * len(value)
                elif len(inner) == len(value):
                    each_kinds = [*inner]
                else:
                    continue
                listed = [self.restore(each, part, arrays) for each, part in zip(each_kinds, value, strict=True)]
                return _MADE.get(origin, tuple)(listed)
            if origin is Literal and any(type(value) is type(each) and value == each for each in inner):
                return value
            if isinstance(kind, type) and _is_scalar(kind, value):
                return kind(value)
        raise ValueError(f"{short(value)} is no {hint}")

    def _restore_table(self, kinds: tuple[Any, ...], value: Mapping[str, Any], arrays: Arrays) -> Any:
        if _MAP in value:
            table = next((kind for kind in kinds if kind is Any or (get_origin(kind) or kind) in (dict, Mapping)), None)
            if table is None:
                raise ValueError("a table is not expected")
            key_kind, each_kind = get_args(table) or (Any, Any)
            pairs = value[_MAP]
            return {self.restore(key_kind, k, arrays): self.restore(each_kind, v, arrays) for k, v in pairs}
        if _ARRAY in value:
            array = arrays[value[_ARRAY]]
            if not any(kind is Any or _is_array_of(kind, array) for kind in kinds):
                raise ValueError(f"an array of {array.dtype} is not expected")
            return array
        for kind in kinds:
            stand_in = self.stand_ins.get(kind)
            plain = (stand_in.plain,) if stand_in else self._classes_of(kind)
            chosen = next((each for each in plain if _name(each) == value[_IS]), None)
            if chosen is not None:
                hints = _hints_of(chosen)
                held = {name: self.restore(hints[name], each, arrays) for name, each in value[_OF].items()}
                made = chosen(**held)
                return stand_in.restore(made) if stand_in else made
        raise ValueError(f"{short(value[_IS])} is not expected")

    def _classes_of(self, kind: Any) -> tuple[type, ...]:
        """Return the dataclasses that an annotation allows: itself, what derives from it, or a protocol's members."""
        if kind in self.members:
            return self.members[kind]
        return tuple(_derived(kind)) if isinstance(kind, type) and is_dataclass(kind) else ()

    def why_not(self, hint: Any) -> str:
        """Return which part of a type cannot be restored, such as `Setup.task`; empty: all can."""
        return self._why_not(hint, "the result", set())

    def _why_not(self, hint: Any, where: str, seen: set[Any]) -> str:
        for kind in _kinds_of(hint):
            if kind in seen or kind in (Any, type(None)):
                continue
            seen.add(kind)
            origin = get_origin(kind) or kind
            if origin in (*_LISTS, dict, Mapping):
                problem = next(filter(None, (self._why_not(each, where, seen) for each in get_args(kind))), "")
            elif origin in (np.ndarray, Literal, Ellipsis, *_SCALARS) or (
                isinstance(kind, type) and issubclass(kind, Enum | Path)
            ):
                problem = ""
            else:
                stand_in = self.stand_ins.get(kind)
                problem = self._why_no_class((stand_in.plain,) if stand_in else self._classes_of(kind), where, seen)
            if problem:
                return problem
        return ""

    def _why_no_class(self, classes: tuple[type, ...], where: str, seen: set[Any]) -> str:
        if not classes:
            return where
        for each in classes:
            try:
                hints = _hints_of(each)
            except NameError:
                return where
            for field in fields(each):
                if field.init and (problem := self._why_not(hints[field.name], f"{each.__name__}.{field.name}", seen)):
                    return problem
        return ""


def _kinds_of(hint: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the one type."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _is_array_of(kind: Any, array: NDArray[Any]) -> bool:
    """Return whether an annotation, such as `NDArray[np.int64]`, stands for an array."""
    if (get_origin(kind) or kind) is not np.ndarray:
        return False
    of = next((get_args(each)[0] for each in get_args(kind) if get_origin(each) is np.dtype), Any)
    return not isinstance(of, type) or of is Any or bool(np.issubdtype(array.dtype, of))


def _is_scalar(kind: type, value: Any) -> bool:
    if issubclass(kind, Enum):
        return any(type(value) is type(each.value) and value == each.value for each in kind)
    if kind is float:
        return type(value) in (int, float)
    return type(value) is (str if issubclass(kind, Path) else kind)


@cache
def _hints_of(kind: type) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _derived(kind: type) -> list[type]:
    children: list[type] = kind.__subclasses__()
    return [kind, *(each for child in filter(_is_current, children) for each in _derived(child))]


def _is_current(kind: type) -> bool:
    """Return whether a class is the one of its name: `dataclass(slots=True)` leaves another behind."""
    return getattr(sys.modules.get(kind.__module__), kind.__qualname__, kind) is kind


def _name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"
