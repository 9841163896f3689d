"""The blocks of `.gguf` files as blocks of ONNX Runtime: which types are kept as they are, and how.

| type | integers | block | scale | rest |
|---|---|---|---|---|
| Q4_0 | 4 bits | 32 | d | none |
| Q4_1, Q4_K | 4 bits | 32 | d, d * sc | m, -dmin * m |
| Q2_K, Q3_K | 2 or 3 bits in 4 | 16 | d * sc | -dmin * m; none |
| Q5_0, Q8_0, IQ4_NL, MXFP4 | 5, 8, 8, 5 bits in 8 | 32 | d | none |
| Q5_1, Q5_K | 5 bits in 8 | 32 | d, d * sc | m, -dmin * m |
| Q6_K, IQ4_XS | 6, 8 bits in 8 | 16, 32 | d * sc | none |

`d` has 16 bits and `sc` 8 at most, so that 32 bits hold each product exactly. IQ4 and MXFP4 name 16 numbers, which
are integers of 8 bits.

Source: `ggml-common.h` (layouts) and `ggml-quants.c` (dequantize_row_*) of ggml.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeopt.export.decoder.packed import PackedMatrix, with_low
from edgeopt.steps.convert.blocks import Blocks

Bytes = NDArray[np.uint8]
_LONG = 256
"""Weights in a block of a k-quant, 32 in others."""
_IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int16)
_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int16)
"""Twice the numbers of FP4."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """Blocks of the file: (count, weights) integers, (count, scales) scales and lows."""

    integers: Bytes
    scale: NDArray[np.float32]
    low: NDArray[np.float32] | None
    bits: int


WITH_LOWS = ("Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K")
"""Types whose blocks begin at a number that is no multiple of their scale."""


def is_kept(form: str) -> bool:
    """Return whether blocks of the engine hold a type."""
    return form in _READERS


def pack_gguf(data: Bytes, form: str) -> PackedMatrix | None:
    """Return a matrix in blocks.

    Args:
        data: (outputs, bytes), as it stands in the file.
        form: Name of its type.

    Returns:
        None where blocks of the engine do not hold the type.
    """
    if not is_kept(form):
        return None
    size, read = _READERS[form]
    outputs = len(data)
    parts = read(np.ascontiguousarray(data).reshape(-1, size))
    inputs = parts.integers.size // outputs
    scale = np.ascontiguousarray(parts.scale, np.float32).reshape(outputs, -1)
    integers = np.ascontiguousarray(parts.integers).reshape(outputs, scale.shape[1], -1)
    if parts.low is None:
        return PackedMatrix(Blocks(integers, scale, None, parts.bits), inputs)
    return with_low(integers, scale, parts.low.astype(np.float32).reshape(scale.shape), parts.bits, inputs)


def _half(data: Bytes) -> NDArray[np.float32]:
    return np.ascontiguousarray(data).view("<f2").astype(np.float32)


def _nibbles(data: Bytes) -> Bytes:
    """Return (count, 2 * bytes): all low halves, then all high ones."""
    return np.concatenate([data & 15, data >> 4], axis=1)


def _fifth_bits(data: Bytes) -> Bytes:
    """Return (count, 32): the bits of 4 bytes, as the fifth bit of an integer."""
    return np.asarray(np.unpackbits(data, axis=1, bitorder="little") << 4, np.uint8)


def _q4_0(data: Bytes) -> _Parts:
    return _Parts(_nibbles(data[:, 2:]), _half(data[:, :2]), None, 4)


def _q4_1(data: Bytes) -> _Parts:
    return _Parts(_nibbles(data[:, 4:]), _half(data[:, :2]), _half(data[:, 2:4]), 4)


def _q5_0(data: Bytes) -> _Parts:
    return _Parts((_nibbles(data[:, 6:]) | _fifth_bits(data[:, 2:6])) + np.uint8(112), _half(data[:, :2]), None, 8)


def _q5_1(data: Bytes) -> _Parts:
    integers = _nibbles(data[:, 8:]) | _fifth_bits(data[:, 4:8])
    return _Parts(integers, _half(data[:, :2]), _half(data[:, 2:4]), 8)


def _q8_0(data: Bytes) -> _Parts:
    return _Parts(data[:, 2:] ^ np.uint8(128), _half(data[:, :2]), None, 8)


def _pairs(data: Bytes) -> Bytes:
    """Return (count, 2, bytes of two bits * 2): 2-bit fields of each 32 bytes, the lowest of all 32 first."""
    apart = data.reshape(len(data), -1, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None]
    return np.asarray(apart & 3, np.uint8).reshape(len(data), -1)


def _q2_k(data: Bytes) -> _Parts:
    scales, d, least = data[:, :16], _half(data[:, 80:82]), _half(data[:, 82:84])
    return _Parts(_pairs(data[:, 16:80]), d * (scales & 15), -(least * (scales >> 4)), 4)


def _q3_k(data: Bytes) -> _Parts:
    high = data[:, None, :32] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    integers = np.asarray(_pairs(data[:, 32:96]) | high.reshape(len(data), -1) << 2, np.uint8)
    low, top = data[:, 96:104], data[:, 104:108]
    scale = _nibbles(low) | np.concatenate([top >> shift & 3 for shift in (0, 2, 4, 6)], axis=1) << 4
    return _Parts(integers + np.uint8(4), _half(data[:, 108:110]) * (scale.astype(np.float32) - 32), None, 4)


def _scales_and_lows(data: Bytes) -> tuple[Bytes, Bytes]:
    """Return eight scales and eight lows of 6 bits each from 12 bytes."""
    first, second, rest = data[:, :4], data[:, 4:8], data[:, 8:]
    scale = np.concatenate([first & 63, rest & 15 | first >> 2 & 48], axis=1)
    low = np.concatenate([second & 63, rest >> 4 | second >> 2 & 48], axis=1)
    return scale, low


def _long_nibbles(data: Bytes) -> Bytes:
    """Return (count, 256): low halves of each 32 bytes, then their high ones."""
    apart = data.reshape(len(data), -1, 1, 32) >> np.array([0, 4], np.uint8)[:, None]
    return np.asarray(apart & 15, np.uint8).reshape(len(data), -1)


def _q4_k(data: Bytes) -> _Parts:
    scale, low = _scales_and_lows(data[:, 4:16])
    return _Parts(_long_nibbles(data[:, 16:]), _half(data[:, :2]) * scale, -(_half(data[:, 2:4]) * low), 4)


def _q5_k(data: Bytes) -> _Parts:
    scale, low = _scales_and_lows(data[:, 4:16])
    high = data[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    integers = np.asarray(_long_nibbles(data[:, 48:]) | high.reshape(len(data), -1) << 4, np.uint8)
    return _Parts(integers, _half(data[:, :2]) * scale, -(_half(data[:, 2:4]) * low), 8)


def _q6_k(data: Bytes) -> _Parts:
    low = data[:, :128].reshape(len(data), 2, 1, 64) >> np.array([0, 4], np.uint8)[:, None] & 15
    integers = np.asarray(low.reshape(len(data), -1) | _pairs(data[:, 128:192]) << 4, np.uint8)
    scale = data[:, 192:208].view(np.int8).astype(np.float32)
    return _Parts(integers + np.uint8(96), _half(data[:, 208:210]) * scale, None, 8)


def _named(table: NDArray[np.int16], places: Bytes) -> Bytes:
    return (table + 128).astype(np.uint8)[places]


def _iq4_nl(data: Bytes) -> _Parts:
    return _Parts(_named(_IQ4, _nibbles(data[:, 2:])), _half(data[:, :2]), None, 8)


def _iq4_xs(data: Bytes) -> _Parts:
    high = np.ascontiguousarray(data[:, 2:4]).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    low = np.stack([data[:, 4:8] & 15, data[:, 4:8] >> 4], axis=2).reshape(len(data), -1)
    scale = (low | high.astype(np.uint8) << 4).astype(np.float32) - 32
    places = np.concatenate([_nibbles(data[:, 8 + i : 24 + i]) for i in range(0, 128, 16)], axis=1)
    return _Parts(_named(_IQ4, places), _half(data[:, :2]) * scale, None, 8)


def _mxfp4(data: Bytes) -> _Parts:
    power = np.ldexp(np.float32(1), data[:, :1].astype(np.int32) - 128).astype(np.float32)
    return _Parts(_named(_E2M1, _nibbles(data[:, 1:])), power, None, 8)


_READERS: dict[str, tuple[int, Callable[[Bytes], _Parts]]] = {
    "Q4_0": (18, _q4_0),
    "Q4_1": (20, _q4_1),
    "Q5_0": (22, _q5_0),
    "Q5_1": (24, _q5_1),
    "Q8_0": (34, _q8_0),
    "Q2_K": (84, _q2_k),
    "Q3_K": (110, _q3_k),
    "Q4_K": (144, _q4_k),
    "Q5_K": (176, _q5_k),
    "Q6_K": (210, _q6_k),
    "IQ4_NL": (18, _iq4_nl),
    "IQ4_XS": (136, _iq4_xs),
    "MXFP4": (17, _mxfp4),
}
"""Type to the bytes of a block and what reads blocks."""
