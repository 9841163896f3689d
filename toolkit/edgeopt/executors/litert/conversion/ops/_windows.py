"""Windows over pictures: where they lie, and what is added around a picture so that LiteRT lays them there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgeopt.executors._conversion.windows import Windows
from edgeopt.executors._conversion.windows import windows_of as _windows_of
from edgeopt.executors.litert.conversion.conversion import TfliteConversion, TfliteStep


def padding_of(windows: Windows) -> str:
    """Return LiteRT's word for padding; empty: it has none, and the picture must be padded before."""
    if not any(windows.before) and all(pad <= 0 for pad in windows.behind):
        return "VALID"
    total = [max(before + behind, 0) for before, behind in zip(windows.before, windows.behind, strict=True)]
    is_same = all(
        count == -(-size // stride)
        for count, size, stride in zip(windows.counts, windows.sizes, windows.strides, strict=True)
    )
    return "SAME" if is_same and all(b == t // 2 for b, t in zip(windows.before, total, strict=True)) else ""


def windows_of(conversion: TfliteConversion, step: TfliteStep, kernel: Sequence[int]) -> Windows:
    """Return the windows of a convolution or a pool. Raises UnsupportedError on padding that cuts off."""
    sizes = conversion.shape(step.node.inputs[0])[2:]
    windows = _windows_of(step.node, kernel, sizes, conversion.shape(step.node.outputs[0])[2:])
    if windows is None:
        raise conversion.refuse(step.node, "with negative padding")
    return windows


def padded(conversion: TfliteConversion, place: int, pads: Sequence[tuple[int, int]], number: float = 0.0) -> int:
    """Return a picture, channels last, with a number around it; on integers the number's own.

    Args:
        conversion: The conversion.
        place: A picture.
        pads: Before and behind each axis of space.
        number: What is written there; on integers 0, or minus infinity for the least integer.
    """
    shape = conversion.shown(place)
    wide = ((0, 0), *pads, (0, 0))
    made = [size + before + behind for size, (before, behind) in zip(shape, wide, strict=True)]
    table = conversion.network.constant("padding", np.array(wide, np.int32))
    if not number:
        return conversion.apply("PAD", [place, table], made)
    tensor = conversion.network.tensors[place]
    least: Any = np.int8(-128) if tensor.dtype == "int8" else np.float32(max(number, float(np.finfo(np.float32).min)))
    filled = conversion.network.constant("padding_value", np.array(least), tensor.grid)
    return conversion.apply("PADV2", [place, table, filled], made)
