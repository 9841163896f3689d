"""Windows over pictures: where they lie, and what is added around a picture so that LiteRT lays them there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgeopt.executors.litert.conversion.conversion import TfliteConversion, TfliteStep


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows along the axes of space, the outermost first."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    """Padding before each axis."""
    behind: tuple[int, ...]
    """Padding that the last window reads behind each axis; negative: what no window reads."""
    sizes: tuple[int, ...]
    """Sizes of the picture."""
    counts: tuple[int, ...]
    """Windows along each axis."""

    @property
    def padding(self) -> str:
        """LiteRT's word for this padding; empty: it has none, and the picture must be padded before."""
        if not any(self.before) and all(pad <= 0 for pad in self.behind):
            return "VALID"
        total = [max(before + behind, 0) for before, behind in zip(self.before, self.behind, strict=True)]
        is_same = all(
            count == -(-size // stride)
            for count, size, stride in zip(self.counts, self.sizes, self.strides, strict=True)
        )
        return "SAME" if is_same and all(b == t // 2 for b, t in zip(self.before, total, strict=True)) else ""

    @property
    def pads(self) -> tuple[tuple[int, int], ...]:
        """Padding before and behind each axis."""
        return tuple((before, max(behind, 0)) for before, behind in zip(self.before, self.behind, strict=True))


def windows_of(conversion: TfliteConversion, step: TfliteStep, kernel: Sequence[int]) -> Windows:
    """Return the windows of a convolution or a pool. Raises UnsupportedError on padding that cuts off."""
    ones = (1,) * len(kernel)
    strides, dilations = step.attribute("strides", ones), step.attribute("dilations", ones)
    sizes = conversion.shape(step.node.inputs[0])[2:]
    counts = conversion.shape(step.node.outputs[0])[2:]
    spans = [(width - 1) * dilation + 1 for width, dilation in zip(kernel, dilations, strict=True)]
    needed = [
        (count - 1) * stride + span - size
        for count, stride, span, size in zip(counts, strides, spans, sizes, strict=True)
    ]
    mode = step.attribute("auto_pad", "NOTSET")
    pads = step.attribute("pads", (0,) * (2 * len(kernel)))
    if any(pad < 0 for pad in pads):
        raise conversion.refuse(step.node, "with negative padding")
    if mode in ("NOTSET", ""):
        before = tuple(pads[: len(kernel)])
    elif mode == "VALID":
        before = (0,) * len(kernel)
    else:
        total = [max(need, 0) for need in needed]
        before = tuple(pad // 2 if mode == "SAME_UPPER" else pad - pad // 2 for pad in total)
    behind = tuple(need - pad for need, pad in zip(needed, before, strict=True))
    return Windows(tuple(kernel), tuple(strides), tuple(dilations), before, behind, tuple(sizes), tuple(counts))


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
