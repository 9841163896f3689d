"""Decisions as plain JSON values, and back.

A dataclass is stored with the name of its type, an array with type and shape; no type but those listed here is made
from a file.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Set
from dataclasses import fields
from enum import StrEnum
from functools import cache
from typing import Any

import numpy as np

from edgeopt.errors import Note, NoteKind
from edgeopt.steps.quantize.forms import Form
from edgeopt.steps.quantize.grids.affine import Affine
from edgeopt.steps.quantize.grids.ranges import Method
from edgeopt.steps.quantize.grids.weights import QuantizedWeight
from edgeopt.steps.quantize.keep_float.layer_times import BorderTime, LayerTime, LayerTimes
from edgeopt.steps.quantize.repairs import all_repairs
from edgeopt.steps.quantize.scheme import NhwcOptions, Scheme
from edgeopt.steps.quantize.search.decisions import Decisions, Extremes
from edgeopt.steps.quantize.search.variant import Variant
from edgeopt.system.declared.target import Granularity, Int8Rules

_TYPE = "type"
_KINDS: dict[str, Any] = {
    one.__name__: one
    for one in (
        *(Decisions, Extremes, Variant, NhwcOptions, Scheme, Affine, QuantizedWeight, Int8Rules),
        *(LayerTimes, LayerTime, BorderTime, Form, Method, Granularity, Note, NoteKind),
    )
}


@cache
def _kinds() -> Mapping[str, Any]:
    """Return all types that are kept, by name: ours, and those of repairs."""
    return _KINDS | {kind.__name__: kind for repair in all_repairs().values() for kind in repair.keeps}


_MOST_NUMBERS = 1 << 31
"""Most numbers of one array."""


def to_plain(value: Any) -> Any:
    """Return a value as JSON holds it.

    Raises:
        TypeError: If it is of a type that is not kept.
    """
    if isinstance(value, StrEnum):
        return {_TYPE: type(value).__name__, "is": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray):
        data = base64.b64encode(zlib.compress(np.ascontiguousarray(value).tobytes())).decode()
        return {_TYPE: "array", "dtype": value.dtype.newbyteorder("<").str, "shape": list(value.shape), "data": data}
    if isinstance(value, Set):
        return {_TYPE: "set", "of": sorted(value)}
    if isinstance(value, Mapping):
        return {_TYPE: "map", "of": {str(key): to_plain(entry) for key, entry in value.items()}}
    if isinstance(value, list | tuple):
        return [to_plain(entry) for entry in value]
    if type(value).__name__ in _kinds():
        held = {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
        return {_TYPE: type(value).__name__, **held}
    raise TypeError(f"{type(value).__name__} is not kept")


def from_plain(value: Any) -> Any:
    """Return what `to_plain` was given.

    Raises:
        ValueError, TypeError, KeyError: If it is nothing that `to_plain` gave.
    """
    if isinstance(value, list):
        return tuple(from_plain(entry) for entry in value)
    if not isinstance(value, Mapping):
        return value
    kind, held = value[_TYPE], {name: entry for name, entry in value.items() if name != _TYPE}
    if kind == "array":
        return _array(held)
    if kind == "set":
        return frozenset(held["of"])
    if kind == "map":
        return {name: from_plain(entry) for name, entry in held["of"].items()}
    made = _kinds()[kind]
    if issubclass(made, StrEnum):
        return made(held["is"])
    return made(**{name: from_plain(entry) for name, entry in held.items()})


def _array(held: Mapping[str, Any]) -> Any:
    dtype, shape = np.dtype(held["dtype"]), tuple(held["shape"])
    count = int(np.prod(shape, dtype=object)) if shape else 1
    if dtype.kind not in "fiu" or not 0 <= count <= _MOST_NUMBERS:
        raise ValueError(f"an array of {dtype} {shape}")
    size = count * dtype.itemsize
    data = zlib.decompressobj().decompress(base64.b64decode(held["data"]), size or 1)
    return np.frombuffer(data, dtype, count).reshape(shape).copy()
