"""The file beside an INT8 candidate from which another run makes the same bytes."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from edgeopt.errors import EdgeoptError, InvalidFileError, Note, NoteKind
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.steps.quantize.forms import Form
from edgeopt.steps.quantize.grids.affine import Affine
from edgeopt.steps.quantize.grids.ranges import Method
from edgeopt.steps.quantize.grids.weights import QuantizedWeight
from edgeopt.steps.quantize.keep_float.layer_times import BorderTime, LayerTime, LayerTimes
from edgeopt.steps.quantize.repairs import all_repairs
from edgeopt.steps.quantize.scheme import NhwcOptions, Scheme
from edgeopt.steps.quantize.search.decisions import Decisions, Extremes, make_again
from edgeopt.steps.quantize.search.variant import Variant
from edgeopt.system.declared.target import Granularity, Int8Rules
from edgeopt.system.machine.environment import package_versions
from edgeopt.system.toml import read_object

DECISIONS = "decisions.json"
_SCHEMA = 3
_MOST_BYTES = 4 << 30
_REMEDY = "name the output folder of edgeopt optimize, or its report.json"


@dataclass(frozen=True, slots=True)
class StoredDecisions:
    """The decisions of one INT8 candidate, and the fingerprints of what they belong to."""

    decisions: Decisions
    original: str
    """Fingerprint of the model as it came, as are the next three of what they name."""
    float_model: str
    calibration: str
    made: str
    is_joined: bool
    """Whether attentions were joined first, since that was faster."""
    options: Mapping[str, str]
    """Session entries with which it was faster."""
    packages: Mapping[str, str]
    reason: str = ""
    """Why it is what it is, in one paragraph."""
    notes: tuple[Note, ...] = ()
    """The search's notes on it."""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """Measurements: attempts, layer times. The model does not depend on them."""

    @property
    def figures(self) -> tuple[float | None, float]:
        """Speed ratio and agreement as they were measured; None and 0 where the file does not tell them."""
        values = {value[0]: (value[1], float(value[2])) for value in self.evidence.get("attempts", ())}
        speed, agreement = values.get(str(self.decisions.variant), (None, 0.0))
        return None if speed is None else float(speed), agreement

    def to_json(self) -> str:
        """Return the text of a file."""
        values = {name: getattr(self, name) for name in (*_PLAIN, *_TOLD)} | {"decisions": self.decisions}
        held = {name: to_plain(value) for name, value in values.items()}
        return json.dumps({"schema": _SCHEMA, **held}, allow_nan=False) + "\n"

    def outcome(self, model: Model, whose: str) -> Outcome:
        """Return the model once more.

        Args:
            model: The float model that this run made.
            whose: The report, for the error.

        Raises:
            EdgeoptError: If the float model or what is made of it is another one than it was.
        """
        if model.fingerprint != self.float_model:
            raise self._differs("the float model before INT8", whose)
        outcome = make_again(model, self.decisions)
        if outcome.model.fingerprint != self.made:
            raise self._differs("the INT8 model", whose)
        return outcome

    def _differs(self, what: str, whose: str) -> EdgeoptError:
        there, here = self.packages, package_versions()
        names = sorted(name for name in {*here, *there} if here.get(name) != there.get(name))
        text = ", ".join(f"{name} {there.get(name, 'absent')} there, {here.get(name, 'absent')} here" for name in names)
        return EdgeoptError(
            f"{what} is not that of {whose}: {text or 'the same packages, but other steps or shapes'}",
            remedy="give the options of that run" + (", and install its packages" if text else ""),
        )


_PLAIN = ("original", "float_model", "calibration", "made", "is_joined", "options", "packages")
_TOLD = ("reason", "notes", "evidence")


def read_decisions(file: Path) -> StoredDecisions:
    """Read what decided a candidate.

    Raises:
        InvalidFileError: If it is no file of decisions.
    """
    values = read_object(file, schema=_SCHEMA, remedy=_REMEDY, most_bytes=_MOST_BYTES)
    try:
        held = {name: from_plain(values[name]) for name in (*_PLAIN, *_TOLD, "decisions")}
        if not isinstance(held["decisions"], Decisions):
            raise TypeError("no decisions")
        return StoredDecisions(**held)
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidFileError(f"{file} is no file of decisions: {error!r}", remedy=_REMEDY) from error


# Decisions as plain JSON values, and back.
#
# A dataclass is stored with the name of its type, an array with type and shape; no type but those listed here is made
# from a file.

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
