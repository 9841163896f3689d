"""TOML tables as frozen dataclasses: an unknown or missing key is an error, never a default."""

from __future__ import annotations

import math
import tomllib
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from edgeopt.errors import InvalidFileError

T = TypeVar("T")


def read_toml(path: Path) -> dict[str, Any]:
    """Return the parsed file.

    Raises:
        InvalidFileError: If it cannot be read or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidFileError(f"{path} cannot be read: {error}", remedy="check path and permissions") from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidFileError(f"{path} is not TOML: {error}", remedy="mend the line it names") from error


def parse_table(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    """Return `values` as the dataclass `kind`; nested tables become nested dataclasses.

    Args:
        kind: A frozen dataclass whose annotations are plain, tuples, unions with None, enums or dataclasses.
        values: The parsed TOML table.
        where: The file and table, for messages.

    Raises:
        InvalidFileError: On an unknown or missing key, a wrong type, or a value the type refuses.
    """
    hints = get_type_hints(kind)
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    required = {n for n, f in known.items() if f.default is MISSING and f.default_factory is MISSING}
    unknown, missing = sorted(values.keys() - known.keys()), sorted(required - values.keys())
    if unknown or missing:
        problem = "; ".join(
            f"{what} {', '.join(keys)}" for what, keys in (("unknown", unknown), ("missing", missing)) if keys
        )
        raise InvalidFileError(f"{where}: {problem}", remedy=f"keys are {', '.join(sorted(known))}")
    parsed = {key: _parse(hints[key], value, f"{where}: {key}") for key, value in values.items()}
    try:
        return kind(**parsed)
    except ValueError as error:
        raise InvalidFileError(f"{where}: {error}", remedy="correct the value") from error


def _parse(hint: Any, value: Any, where: str) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _parse(next(one for one in inner if one is not type(None)), value, where)
    if is_dataclass(hint) and isinstance(hint, type):
        if not isinstance(value, Mapping):
            raise _wrong(where, "a table", value)
        return parse_table(hint, value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise _wrong(where, "a list", value)
        return tuple(_parse(inner[0], one, where) for one in value)
    if origin in (dict, Mapping) or getattr(hint, "__origin__", None) is Mapping:
        if not isinstance(value, Mapping):
            raise _wrong(where, "a table", value)
        return {str(key): _parse(inner[1], one, where) for key, one in value.items()}
    return _parse_scalar(hint, value, where)


def _parse_scalar(hint: Any, value: Any, where: str) -> Any:
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        allowed = [str(one) for one in hint]
        if value not in allowed:
            raise _wrong(where, f"one of {', '.join(allowed)}", value)
        return hint(value)
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    if hint is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if hint in (str, bool) and isinstance(value, hint):
        return value
    raise _wrong(where, {float: "a number", int: "a whole number", str: "a text", bool: "true or false"}[hint], value)


def _wrong(where: str, wanted: str, value: object) -> InvalidFileError:
    return InvalidFileError(f"{where} is {value!r}", remedy=f"write {wanted}")
