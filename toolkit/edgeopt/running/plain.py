"""The return value of an app's function, as JSON can hold it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from edgeopt.runtime.pipelines.crop import Crops
from edgeopt.system.text import short

_DEEPEST: Final = 20
"""Lists in lists: what is deeper refers to itself."""
_CHANNELS: Final = (1, 3, 4)


def plain(answer: Any) -> Any:
    """Return an answer as texts, numbers, lists and mappings; None for numbers that are not finite.

    Dataclasses become mappings, arrays and sets lists, a picture its size, crops their boxes; what JSON has no form for
    becomes a short text.
    """
    return _plain(answer, _DEEPEST)


def _plain(value: Any, deeper: int) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, np.generic):
        return _plain(value.item(), deeper - 1) if deeper else short(value)
    if not deeper:
        return short(value)
    if isinstance(value, Crops):
        return {"boxes": value.boxes.tolist(), "rows": value.rows.tolist(), "left_out": value.left_out}
    if isinstance(value, np.ndarray):
        if value.dtype == np.uint8 and value.ndim == 3 and value.shape[2] in _CHANNELS:
            return {"height": value.shape[0], "width": value.shape[1]}
        return _plain(value.tolist(), deeper - 1)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name), deeper - 1) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(entry, deeper - 1) for key, entry in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((_plain(entry, deeper - 1) for entry in value), key=repr)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return [_plain(entry, deeper - 1) for entry in value]
    return short(value)


def as_text(answer: Any) -> str:
    """Return an answer in a line."""
    result = plain(answer)
    return "nothing" if result is None else _text(result) or "nothing"


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    if isinstance(value, dict):
        return ", ".join(f"{name} {_text(entry)}" for name, entry in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "n/a" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
