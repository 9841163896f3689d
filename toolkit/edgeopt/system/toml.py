"""TOML and JSON from outside, read within limits, and as frozen dataclasses: an unknown or missing key is an error.

Limits hold for every file: its size, how deep it nests, finite numbers of 64 bits. A field declares its own range as
`Annotated[int, Within(1, 64)]`.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import StrEnum
from functools import cache
from itertools import chain
from numbers import Real
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from edgeopt.errors import EdgeoptError, InvalidFileError, UnknownEntryError
from edgeopt.system.disk.files import MOST_BYTES, read_text
from edgeopt.system.text import short

T = TypeVar("T")
MOST_DEPTH = 32
"""Tables in tables; the deepest of our own files has 6."""
_PART = r"(?:[\w-]++|\"[^\"\n]*+\"|'[^'\n]*+')"
_DEEP_KEY = re.compile(rf"(?<![\w.-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{MOST_DEPTH}}}")
"""A dotted key of more parts than tables may nest."""
_MOST_INTEGER = 2**63
_EXACT = (int, str, bool)
"""Types whose values are taken as they are; whether a float is finite is looked at."""
_TYPE_NAMES = {float: "a number", int: "a whole number", str: "a text", bool: "true or false"}


@dataclass(frozen=True, slots=True)
class Within:
    """The range of a number in a file, both ends allowed: `Annotated[float, Within(0, 1)]`."""

    least: float = -math.inf
    most: float = math.inf
    above: bool = False
    """Whether `least` itself is refused."""

    def holds(self, value: float) -> bool:
        """Return whether a value is inside."""
        return self.least <= value <= self.most and not (self.above and value == self.least)

    def require(self, name: str, value: object) -> None:
        """Raise EdgeoptError unless a value that someone gave is a number inside."""
        if not isinstance(value, Real) or isinstance(value, bool) or not self.holds(float(value)):
            raise EdgeoptError(f"{name} is {short(value)}", remedy=f"give a number {self}")

    def __str__(self) -> str:
        low = f"above {self.least:g}" if self.above else f"{self.least:g} or more"
        if math.isinf(self.most):
            return low
        if math.isinf(self.least):
            return f"{self.most:g} or less"
        return f"above {self.least:g}, to {self.most:g}" if self.above else f"from {self.least:g} to {self.most:g}"


DURATION_S = Within(0, 30 * 86400, above=True)
DURATION_MS = Within(0, 30 * 86400e3, above=True)
THREADS = Within(0, 1024)
"""Threads of an engine, 0 for its own choice; what this machine can run is for `threads.engine_threads` to say."""
SEEDS = Within(0, 2**63 - 1)


def require_ranges(values: object) -> None:
    """Raise EdgeoptError unless the numbers of a dataclass lie where their annotations say; None is no number."""
    for name, hint in get_type_hints(type(values), include_extras=True).items():
        value = getattr(values, name)
        each = value if isinstance(value, tuple) else () if value is None else (value,)
        for limit in _limits_of(hint):
            for entry in each:
                limit.require(name, entry)


def require_measurable(seconds: object, seed: object, threads: object) -> None:
    """Raise EdgeoptError unless frames can run so long, in an order of that seed, with that many threads."""
    for name, limit, value in (("seconds", DURATION_S, seconds), ("seed", SEEDS, seed), ("threads", THREADS, threads)):
        limit.require(name, value)


def _limits_of(hint: Any) -> tuple[Within, ...]:
    """Return the ranges in an annotation, also inside a union or a tuple."""
    return tuple(limit for arg in get_args(hint) for limit in ((arg,) if isinstance(arg, Within) else _limits_of(arg)))


def read_toml(path: Path) -> dict[str, Any]:
    """Return the parsed file.

    Raises:
        InvalidFileError: If it cannot be read, is not TOML, or passes a limit.
    """
    text = read_text(path, remedy="check path and permissions")
    remedy = "mend the line it names"
    if _DEEP_KEY.search(text):  # the parser takes the square of their number
        raise InvalidFileError(f"{path} nests deeper than {MOST_DEPTH}: by a dotted key", remedy="write shallow tables")
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # whole numbers of 4,300 digits are a plain ValueError
        raise InvalidFileError(f"{path} is not TOML: {_why_unparsed(error)}", remedy=remedy) from error
    _require_limits(values, path, "write finite numbers of 64 bits, and shallow tables")
    return values


def read_json(path: Path, *, remedy: str, most_bytes: int = MOST_BYTES) -> Any:
    """Return the parsed file: plain values of a limited depth, every number finite and of 64 bits.

    Args:
        path: Of a regular file.
        remedy: What to do where it is wrong.
        most_bytes: A larger file is refused.

    Raises:
        InvalidFileError: If it cannot be read, is not JSON, or passes a limit; the first wrong entry is named.
    """
    text = read_text(path, remedy=remedy, most_bytes=most_bytes)
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidFileError(f"{path} is not JSON: {_why_unparsed(error)}", remedy=remedy) from error
    _require_limits(values, path, remedy)
    return values


def read_object(
    path: Path, *, schema: int | tuple[int, ...], remedy: str, most_bytes: int = MOST_BYTES
) -> dict[str, Any]:
    """Return a JSON object whose `schema` is one that this version reads.

    Raises:
        InvalidFileError: As `read_json`, or if it is no object or of another schema.
    """
    values = read_json(path, remedy=remedy, most_bytes=most_bytes)
    if not isinstance(values, dict) or "schema" not in values:
        raise InvalidFileError(f"{path} names no schema", remedy=remedy)
    known = schema if isinstance(schema, tuple) else (schema,)
    if type(found := values["schema"]) is not int or found not in known:
        *most, last = map(str, sorted(known))
        read = f"{', '.join(most)} and {last}" if most else last
        error = UnknownEntryError if type(found) is int and found > max(known) else InvalidFileError
        raise error(f"{path} has schema {short(found)}, this edgeopt reads {read}", remedy=remedy)
    return values


def _why_unparsed(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return f"it nests deeper than {MOST_DEPTH}"
    return "a number has thousands of digits" if "int_max_str_digits" in str(error) else str(error)


def _require_limits(values: Any, path: Path, remedy: str) -> None:
    """Raise InvalidFileError where values nest too deep or hold what is no finite number of 64 bits."""
    level: list[Any] = [[values]]
    for _ in range(MOST_DEPTH):
        level = list(chain.from_iterable(map(_inside, level)))
        if not level:
            return
        kinds = set(map(type, level))  # a tokenizer has a hundred thousand entries: no line of Python for each
        if not _are_numbers(level, kinds):
            break
        level = [entry for entry in level if isinstance(entry, dict | list)] if kinds & {dict, list} else []
    else:
        raise InvalidFileError(f"{path} nests deeper than {MOST_DEPTH}", remedy=remedy)
    where, value = _first_wrong_number(values)
    raise InvalidFileError(f"{path}: {where} is {short(value)}, no finite number of 64 bits", remedy=remedy)


def _inside(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _are_numbers(values: list[Any], kinds: set[type]) -> bool:
    """Return whether all numbers among values are such that this program reads."""
    integers = [value for value in values if type(value) is int] if int in kinds else [0]
    floats = [value for value in values if type(value) is float] if float in kinds else [0.0]
    return _is_number(min(integers)) and _is_number(max(integers)) and all(map(math.isfinite, floats))


def _is_number(value: float) -> bool:
    return math.isfinite(value) if isinstance(value, float) else -_MOST_INTEGER <= value < _MOST_INTEGER


def _first_wrong_number(values: Any) -> tuple[str, Any]:
    """Return the place of the number that passes a limit, and the number; slow, for messages."""
    level = [("", values)]
    while True:
        for where, value in level:
            if type(value) in (int, float) and not _is_number(value):
                return where.lstrip(".") or "the value", value
        level = [
            (f"{where}.{key:.60}" if isinstance(each, dict) else f"{where}[{key}]", value)
            for where, each in level
            for key, value in (each.items() if isinstance(each, dict) else enumerate(_inside(each)))
        ]


def parse_table(kind: type[T], values: Mapping[str, Any], where: str, given: Mapping[str, Any] | None = None) -> T:
    """Return `values` as the dataclass `kind`; nested tables become nested dataclasses.

    Args:
        kind: A frozen dataclass whose annotations are plain, tuples, unions with None, enums or dataclasses; a number
            may be `Annotated` with the range `Within` which it must lie.
        values: The parsed TOML table or JSON object.
        where: The file and table, for messages.
        given: Fields that the file may not hold, ready; paths are always such.

    Raises:
        InvalidFileError: On an unknown or missing key, a wrong type, or a value the type refuses.
    """
    hints = _hints_of(kind)  # type: ignore[arg-type]
    ready = given or {}
    known = {field.name: field for field in fields(kind) if field.name not in ready and hints[field.name] is not Path}  # type: ignore[arg-type]
    required = {n for n, f in known.items() if f.default is MISSING and f.default_factory is MISSING}
    unknown, missing = sorted(values.keys() - known.keys()), sorted(required - values.keys())
    if unknown or missing:
        problem = "; ".join(
            f"{what} {', '.join(f'{key:.60}' for key in keys[:5])}"
            for what, keys in (("unknown", unknown), ("missing", missing))
            if keys
        )
        error = UnknownEntryError if unknown else InvalidFileError
        raise error(f"{where}: {problem}", remedy=f"keys are {', '.join(sorted(known))}")
    parsed = {key: _parse(hints[key], value, f"{where}: {key}") for key, value in values.items()}
    try:
        return kind(**parsed, **ready)
    except ValueError as error:
        raise InvalidFileError(f"{where}: {error}", remedy="correct the value") from error


@cache
def _hints_of(kind: type[Any]) -> Mapping[str, Any]:
    """Return the annotations of a dataclass, evaluated once: they are texts."""
    return get_type_hints(kind, include_extras=True)


@cache
def _form_of(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return what an annotation is made of, taken apart once: the manifest of a language model has 1,500 values."""
    return get_origin(hint), get_args(hint)


def _parse(hint: Any, value: Any, where: str) -> Any:
    if hint in _EXACT and type(value) is hint:
        return value
    origin, inner = _form_of(hint)
    if origin is Annotated:
        return _parse_within(hint, value, where)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in inner:
            return None
        return _parse(next(entry for entry in inner if entry is not type(None)), value, where)
    if is_dataclass(hint) and isinstance(hint, type):
        if not isinstance(value, Mapping):
            raise _wrong(where, "a table", value)
        return parse_table(hint, value, where)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise _wrong(where, "a list", value)
        return tuple(_parse(inner[0], entry, where) for entry in value)
    if origin in (dict, Mapping) or getattr(hint, "__origin__", None) is Mapping:
        if not isinstance(value, Mapping):
            raise _wrong(where, "a table", value)
        return {str(key): _parse(inner[1], entry, where) for key, entry in value.items()}
    return value if hint is Any else _parse_scalar(hint, value, where)


def _parse_within(hint: Any, value: Any, where: str) -> Any:
    plain, *limits = get_args(hint)
    parsed = _parse(plain, value, where)
    for limit in limits:
        if isinstance(limit, Within) and not limit.holds(parsed):
            raise _wrong(where, f"{_TYPE_NAMES[plain]} {limit}", value)
    return parsed


def _parse_scalar(hint: Any, value: Any, where: str) -> Any:
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        allowed = [str(one) for one in hint]
        if value not in allowed:
            wrong = _wrong(where, f"one of {', '.join(allowed)}", value)
            raise UnknownEntryError(wrong.problem, remedy=wrong.remedy) if isinstance(value, str) else wrong
        return hint(value)
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    if hint is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if hint in (str, bool) and isinstance(value, hint):
        return value
    raise _wrong(where, _TYPE_NAMES.get(hint, "nothing: it is derived"), value)


def _wrong(where: str, wanted: str, value: object) -> InvalidFileError:
    return InvalidFileError(f"{where} is {short(value)}", remedy=f"write {wanted}")
