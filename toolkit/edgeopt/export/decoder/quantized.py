"""Matrices of Hugging Face folders that are quantized already: their integers, zeros and scales as they are stored.

Weight of input i and output n: scale[g, n] * (integer[i, n] - zero[g, n]), with the group g of i, packed in 32 bits:

- GPTQ: `qweight` (inputs / 8, outputs), neighbours of the inputs; `qzeros`, less one in files of the first version;
  g = `g_idx[i]`.
- AWQ: `qweight` (inputs, outputs / 8), eight outputs in the order 0 2 4 6 1 3 5 7; `qzeros` alike; g = i / group.
- compressed-tensors: `weight_packed` (outputs, inputs / 8), neighbours of the inputs; `weight_zero_point`
  (outputs / 8, groups); g = `weight_g_idx[i]`.

Inputs whose groups are mixed (act-order) are put in the order of the groups; what a product reads is put in it alike.

Source: AutoGPTQ and GPTQModel (`qlinear`, `convert_gptq_v1_to_v2_format`), AutoAWQ (`WQLinear_GEMM`, `packing_utils`),
compressed-tensors (`pack_quantized`).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import InvalidFileError, Note, UnsupportedError
from edgeopt.export.decoder.packed import PackedMatrix, grouped, kept_notes
from edgeopt.export.decoder.tensors_file import NamedTensors, TensorFiles
from edgeopt.system.disk.files import read_file

GPTQ, AWQ, COMPRESSED = "gptq", "awq", "compressed-tensors"
_OTHER_FOLDER = (
    "name the folder in floats that it was made of, or one in GPTQ, AWQ or compressed-tensors of 4 or 8 bits"
)
_FORMATS = {GPTQ: ("gptq", "gptq_v2"), AWQ: ("gemm",), COMPRESSED: ("pack-quantized",)}
_FILES = {"quantize_config.json": GPTQ, "quant_config.json": AWQ}
_MOST_BYTES = 1 << 20
_FORMAT_KEYS = {GPTQ: "checkpoint_format", AWQ: "version", COMPRESSED: "format"}
_WORD = 32
"""Bits of the integers in which others are packed."""
_AWQ_PLACES = np.array([0, 4, 1, 5, 2, 6, 3, 7])
"""Where each of eight outputs stands in a word of AWQ."""
_SUFFIX = ".weight"
_PARTS = {GPTQ: "qweight", AWQ: "qweight", COMPRESSED: "weight_packed"}
_SCALES = {GPTQ: "scales", AWQ: "scales", COMPRESSED: "weight_scale"}
_ZEROS = {GPTQ: "qzeros", AWQ: "qzeros", COMPRESSED: "weight_zero_point"}
_ORDERS = {GPTQ: "g_idx", COMPRESSED: "weight_g_idx"}
_BITS = (4, 8)
_REMEDY = "copy the folder again, or save it once more with the tool that quantized it"


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
        if table.get("transform_config"):  # inputs are turned before each product, as the weights were
            raise _refused(file, "transform_config")
        return StoredScheme(method, 0)
    try:
        bits = int(table.get("bits", table.get("w_bit", 0)))
        group = int(table.get("group_size", table.get("q_group_size", -1)))
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidFileError(f"{file}: quantization_config holds no number: {error}", remedy=_OTHER_FOLDER) from error
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
    return UnsupportedError(f"{file}: quantization_config with {reason} is not read here", remedy=_OTHER_FOLDER)


def open_weights(folder: Path) -> NamedTensors:
    """Return the tensors of a folder, quantized ones as they are stored.

    Raises:
        InvalidFileError: If a file of the folder is damaged.
        UnsupportedError: If it is quantized in a way that is not read here.
    """
    file, files = folder / "config.json", TensorFiles(folder)
    scheme = read_scheme(json.loads(file.read_text("utf-8")), file)
    return files if scheme is None else QuantizedFolder(files, scheme)


class QuantizedFolder:
    """The tensors of a folder of which matrices are stored in integers."""

    def __init__(self, files: TensorFiles, scheme: StoredScheme) -> None:
        """Take the files, which are read as they are needed."""
        self._files, self._scheme = files, scheme
        self._kept, self._read = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)

    def __contains__(self, name: str) -> bool:
        return name in self._files or self._is_packed(name)

    def read(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Return one tensor in float32; of a packed one what its integers stand for.

        Raises:
            InvalidFileError: If it is not there, of another shape, or its parts do not fit each other.
        """
        if not self._is_packed(name):
            return self._files.read(name, shape)
        outputs, inputs = self._sides(name, shape)
        integers, zero, scale, groups = self._parts(name, outputs, inputs)
        self._read[self._kind(self._bits(name, inputs, outputs))].add(name)
        wide = integers.astype(np.float32) - (zero.astype(np.float32)[:, groups])
        return np.asarray(wide * scale[:, groups], np.float32)

    def packed(self, name: str, shape: tuple[int, ...]) -> PackedMatrix | None:
        """Return a matrix as it is stored; None: it holds floats, or groups that no blocks hold.

        Raises:
            InvalidFileError: If it is not there, of another shape, or its parts do not fit each other.
        """
        if not self._is_packed(name):
            return None
        outputs, inputs = self._sides(name, shape)
        integers, zero, scale, groups = self._parts(name, outputs, inputs)
        bits = self._bits(name, inputs, outputs)
        group = self._group(inputs, scale.shape[1])
        order = np.argsort(groups, kind="stable")
        made = None
        if np.array_equal(groups[order], np.arange(inputs) // group):
            is_half = bool((zero == 1 << (bits - 1)).all())
            made = grouped(integers[:, order], scale, None if is_half else zero, bits, group)
        if made is not None:
            self._kept[self._kind(bits)].add(name)
        if made is None or np.array_equal(order, np.arange(inputs)):
            return made
        return PackedMatrix(made.blocks, inputs, None, order)

    @property
    def has_blocks(self) -> bool:
        """Whether any matrix is stored in integers."""
        return True

    @property
    def notes(self) -> tuple[Note, ...]:
        """Which matrices were kept in their blocks so far, and which were read as floats only."""
        return kept_notes(self._kept, self._read)

    def _kind(self, bits: int) -> str:
        return f"{self._scheme.method} of {bits} bits"

    def _is_packed(self, name: str) -> bool:
        return name.endswith(_SUFFIX) and self._part(name, _PARTS) in self._files

    def _part(self, name: str, parts: dict[str, str]) -> str:
        return f"{name.removesuffix(_SUFFIX)}.{parts[self._scheme.method]}"

    def _sides(self, name: str, shape: tuple[int, ...]) -> tuple[int, int]:
        if len(shape) != 2:
            raise InvalidFileError(f"{self._files.folder}: {name} is quantized and no matrix", remedy=_REMEDY)
        return shape[0], shape[1]

    def _group(self, inputs: int, groups: int) -> int:
        return self._scheme.group or -(-inputs // max(groups, 1))

    def _bits(self, name: str, inputs: int, outputs: int) -> int:
        """Return the bits of each integer, as the shape of the packed ones tells them."""
        method, part = self._scheme.method, self._part(name, _PARTS)
        packed, plain = {
            GPTQ: ((-1, outputs), inputs),
            AWQ: ((inputs, -1), outputs),
            COMPRESSED: ((outputs, -1), inputs),
        }[method]
        shape = self._files.shape_of(part)
        words = shape[packed.index(-1)] if len(shape) == len(packed) else 0
        is_fitting = words > 0 and all(wanted in (-1, side) for wanted, side in zip(packed, shape, strict=True))
        bits = next((bits for bits in (4, 8, 2, 3) if -(-plain * bits // _WORD) == words), 0) if is_fitting else 0
        if not bits:
            sides = "x".join(map(str, shape))
            raise InvalidFileError(
                f"{self._files.folder}: {part} is {sides}, which is no matrix of {outputs} rows of {inputs}",
                remedy=_REMEDY,
            )
        if bits not in _BITS or (method == AWQ and bits != _BITS[0]):
            raise UnsupportedError(
                f"{self._files.folder}: {part} holds integers of {bits} bits, which are not read here",
                remedy="name a folder in 4 or 8 bits, or the one in floats that it was made of",
            )
        return bits

    def _parts(
        self, name: str, outputs: int, inputs: int
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.float32], NDArray[np.int64]]:
        """Return integers (outputs, inputs), zeros and scales (outputs, groups), and the group of each input."""
        method, bits = self._scheme.method, self._bits(name, inputs, outputs)
        words = self._words(self._part(name, _PARTS))
        is_by_row = method == COMPRESSED
        if method == GPTQ:
            integers = _unpacked(words.T, bits, inputs)
        elif is_by_row:
            integers = _unpacked(words, bits, inputs)
        else:
            integers = _unpacked(words, bits, outputs, _AWQ_PLACES).T
        scales = self._part(name, _SCALES)
        sides = self._files.shape_of(scales)
        groups = sides[1 if is_by_row else 0] if len(sides) == 2 else 0
        is_uneven = groups > 0 and not self._scheme.group and inputs % groups  # the shapes tell no length of groups
        if not 0 < groups <= inputs or is_uneven or groups != -(-inputs // self._group(inputs, groups)):
            text = f"{'x'.join(map(str, sides))}" if sides else "not there"
            raise InvalidFileError(f"{self._files.folder}: {scales} is {text}, which fits no groups", remedy=_REMEDY)
        scale = self._files.read(scales, (outputs, groups) if is_by_row else (groups, outputs))
        zero = self._zero(name, bits, outputs, groups)
        return integers, zero, scale if is_by_row else np.ascontiguousarray(scale.T), self._groups(name, inputs, groups)

    def _zero(self, name: str, bits: int, outputs: int, groups: int) -> NDArray[np.uint8]:
        part, method = self._part(name, _ZEROS), self._scheme.method
        if method == COMPRESSED and part not in self._files:
            return np.full((outputs, groups), 1 << (bits - 1), np.uint8)
        count = -(-outputs * bits // _WORD)
        words = self._words(part, (count, groups) if method == COMPRESSED else (groups, count))
        if method == COMPRESSED:
            return np.ascontiguousarray(_unpacked(words.T, bits, outputs).T)
        if method == AWQ:
            return np.ascontiguousarray(_unpacked(words, bits, outputs, _AWQ_PLACES).T)
        if self._scheme.adds_one:  # in whole words, as GPTQModel adds it: a zero that was 0 borrowed from its neighbour
            words = words + np.uint32(sum(1 << place for place in range(0, _WORD, bits)))
        return np.ascontiguousarray(_unpacked(words, bits, outputs).T)

    def _groups(self, name: str, inputs: int, groups: int) -> NDArray[np.int64]:
        part = self._part(name, _ORDERS) if self._scheme.method in _ORDERS else ""
        if part not in self._files:
            return np.arange(inputs, dtype=np.int64) // self._group(inputs, groups)
        stored = self._files.integers(part, (inputs,)).astype(np.int64)
        if stored.min() < 0 or stored.max() >= groups:
            raise InvalidFileError(f"{self._files.folder}: {part} names groups that are not there", remedy=_REMEDY)
        return stored

    def _words(self, name: str, shape: tuple[int, ...] | None = None) -> NDArray[np.uint32]:
        stored: NDArray[Any] = self._files.integers(name, shape)
        if stored.dtype.itemsize * 8 != _WORD:
            raise InvalidFileError(
                f"{self._files.folder}: {name} holds integers of {stored.dtype}, not of {_WORD} bits", remedy=_REMEDY
            )
        return stored.view(np.uint32)


def _unpacked(
    words: NDArray[np.uint32], bits: int, count: int, places: NDArray[np.int64] | None = None
) -> NDArray[np.uint8]:
    """Return (rows, count) integers of (rows, words), the first of a word in its lowest bits.

    Args:
        words: Packed.
        bits: Of each integer.
        count: Integers of a row.
        places: Where each of a word's integers stands in it; None: in order.
    """
    shifts = np.arange(0, _WORD, bits, dtype=np.uint32)
    if places is not None:
        shifts = shifts[places]
    apart = (words[..., None] >> shifts & np.uint32((1 << bits) - 1)).astype(np.uint8)
    return np.ascontiguousarray(apart.reshape(len(words), -1)[:, :count])
