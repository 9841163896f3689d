"""How a folder of Hugging Face says that its weights are quantized: `quantization_config` of its `config.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeopt.errors import InvalidFileError, UnsupportedError
from edgeopt.system.disk.files import read_file

GPTQ, AWQ, COMPRESSED = "gptq", "awq", "compressed-tensors"
_BITS = (4, 8)
_REMEDY = "name the folder in floats that it was made of, or one in GPTQ, AWQ or compressed-tensors of 4 or 8 bits"
_FORMATS = {GPTQ: ("gptq", "gptq_v2"), AWQ: ("gemm",), COMPRESSED: ("pack-quantized",)}
_FILES = {"quantize_config.json": GPTQ, "quant_config.json": AWQ}
_MOST_BYTES = 1 << 20
_FORMAT_KEYS = {GPTQ: "checkpoint_format", AWQ: "version", COMPRESSED: "format"}


@dataclass(frozen=True, slots=True)
class StoredScheme:
    """How matrices of a folder are stored."""

    method: str
    """`gptq`, `awq` or `compressed-tensors`."""
    group: int
    """Inputs that share a scale; 0: all, or what the shapes say."""
    adds_one: bool = False
    """Whether zeros are stored less one, as the first version of GPTQ's files has them."""


def read_scheme(values: Mapping[str, Any], file: Path) -> StoredScheme | None:
    """Return how the weights of a folder are quantized; None: they are not.

    Args:
        values: Of `config.json`.
        file: Where they stand.

    Raises:
        UnsupportedError: If they are quantized in a way that is not read here.
        InvalidFileError: If a number is missing or none.
    """
    table = values.get("quantization_config") or _beside(file)
    if not table:
        return None
    if not isinstance(table, Mapping):
        raise InvalidFileError(f"{file}: quantization_config is no table", remedy="copy the folder again")
    method = str(table.get("quant_method", table.get("quantization_method", "")))[:40]
    if method not in _FORMATS:
        raise _refused(file, f"quant_method = {method or 'nothing'}")
    key = _FORMAT_KEYS[method]
    form = str(table.get(key, _FORMATS[method][0]))[:40].lower()
    if form not in _FORMATS[method] or bool(table.get("is_marlin_format")):
        raise _refused(file, f"{method} and {key} = {'marlin' if table.get('is_marlin_format') else form}")
    if method == COMPRESSED:
        return StoredScheme(method, 0)
    try:
        bits = int(table.get("bits", table.get("w_bit", 0)))
        group = int(table.get("group_size", table.get("q_group_size", -1)))
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidFileError(f"{file}: quantization_config holds no number: {error}", remedy=_REMEDY) from error
    if bits not in _BITS or (method == AWQ and bits != _BITS[0]):
        raise _refused(file, f"{method} in {bits} bits")
    if group == 0 or group < -1:
        raise InvalidFileError(f"{file}: quantization_config has groups of {group}", remedy="copy the folder again")
    return StoredScheme(method, max(group, 0), adds_one=method == GPTQ and form == _FORMATS[GPTQ][0])


def _beside(file: Path) -> Mapping[str, Any]:
    """Return what a file beside the configuration says, where tools of 2023 wrote it; empty where there is none."""
    for name, method in _FILES.items():
        place = file.parent / name
        if place.is_file():
            try:
                table = json.loads(read_file(place, remedy="copy the folder again", most_bytes=_MOST_BYTES))
            except (ValueError, RecursionError) as error:
                raise InvalidFileError(f"{place} is no JSON: {str(error)[:80]}", remedy="copy it again") from error
            return {"quant_method": method, **table} if isinstance(table, Mapping) else {}
    return {}


def _refused(file: Path, reason: str) -> UnsupportedError:
    return UnsupportedError(f"{file}: quantization_config with {reason} is not read here", remedy=_REMEDY)
