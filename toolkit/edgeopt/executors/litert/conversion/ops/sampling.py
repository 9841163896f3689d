"""Numbers between a picture's pixels, read at places that are computed: the attention of RT-DETR looks so."""

from __future__ import annotations

import numpy as np

from edgeopt.executors.litert.conversion.conversion import TfliteConversion, TfliteStep, channels_last
from edgeopt.executors.litert.conversion.network import type_name

_MOST_PLACES = 1 << 24
"""Pixels that a float32 counts exactly."""


def _grid_sample(conversion: TfliteConversion, step: TfliteStep) -> None:
    """Write rows of a picture, framed by a pixel of zeros, taken at four neighbours and added by their shares."""
    before, after = conversion.shape(step.inputs[0]), conversion.shape(step.outputs[0])
    mode, padding = step.attribute("mode", "bilinear"), step.attribute("padding_mode", "zeros")
    if len(before) != 4 or mode not in ("bilinear", "linear") or padding not in ("zeros", "border"):
        raise conversion.refuse(step.node, f"of {len(before) - 2} axes, in mode {mode}, padded by {padding}")
    pictures, channels, height, width = before
    if pictures * (height + 2) * (width + 2) > _MOST_PLACES:
        raise conversion.refuse(step.node, "of so many pixels")
    frame = conversion.network.constant("frame", np.array([[0, 0], [1, 1], [1, 1], [0, 0]], np.int32))
    framed = (pictures, height + 2, width + 2, channels)
    picture = conversion.apply("PAD", [conversion.tensor(step.inputs[0], channels_last(4)), frame], framed)
    rows = conversion.reshaped(picture, (pictures * (height + 2) * (width + 2), channels))

    shape = (pictures, *after[2:], 1)
    places = conversion.tensor(step.inputs[1], (0, 1, 2, 3))
    first, shares = list[int](), list[int]()
    for axis, size in ((1, height), (0, width)):
        low, share = _position(conversion, step, places, axis, size, shape)
        first.append(low)
        shares.append(share)
    begins = np.arange(pictures, dtype=np.float32).reshape(-1, 1, 1, 1) * ((height + 2) * (width + 2))
    corner = conversion.apply("MUL", [first[0], conversion.number(width + 2)], shape)
    for other in (first[1], conversion.network.constant("begins", begins)):
        corner = conversion.apply("ADD", [corner, other], shape)

    made = (pictures, *after[2:], channels)
    lines = []
    for down in (0, width + 2):
        pair = [_read(conversion, rows, corner, down + right, made) for right in (0, 1)]
        lines.append(_between(conversion, pair, shares[1], made))
    conversion.set(step.outputs[0], _between(conversion, lines, shares[0], made), channels_last(4))


def _position(
    conversion: TfliteConversion, step: TfliteStep, places: int, axis: int, size: int, shape: tuple[int, ...]
) -> tuple[int, int]:
    """Return the pixel before each place along an axis, in the frame, and how far behind it the place lies."""
    number = conversion.network.constant("axis", np.array([axis], np.int32))
    at = conversion.apply("GATHER", [places, number], shape, axis=3)
    reach = size - 1 if step.attribute("align_corners", 0) else size
    inside = step.attribute("padding_mode", "zeros") == "border"
    least, most = (1.0, float(size)) if inside else (0.0, float(size + 1))
    for code, value in (("MUL", reach / 2), ("ADD", (size - 1) / 2 + 1), ("MAXIMUM", least), ("MINIMUM", most)):
        at = conversion.apply(code, [at, conversion.number(value)], shape)
    low = conversion.apply("MINIMUM", [conversion.apply("FLOOR", [at], shape), conversion.number(size)], shape)
    return low, conversion.apply("SUB", [at, low], shape)


def _read(conversion: TfliteConversion, rows: int, corner: int, beside: int, made: tuple[int, ...]) -> int:
    """Return the rows that lie so many places behind the corners."""
    shape = (*made[:3], 1)
    moved = conversion.apply("ADD", [corner, conversion.number(beside)], shape) if beside else corner
    whole = conversion.network.tensor("pixels", made[:3], "int32")
    flat = conversion.reshaped(moved, made[:3])
    names = {"inDataType": type_name("float32"), "outDataType": type_name("int32")}
    conversion.network.add("CAST", [flat], [whole], **names)
    return conversion.apply("GATHER", [rows, whole], made, axis=0)


def _between(conversion: TfliteConversion, pair: list[int], share: int, made: tuple[int, ...]) -> int:
    """Return the first of two tensors and a share of the way to the second."""
    way = conversion.apply("MUL", [conversion.apply("SUB", [pair[1], pair[0]], made), share], made)
    return conversion.apply("ADD", [pair[0], way], made)


OPS = {"GridSample": _grid_sample}
