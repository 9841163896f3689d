"""Windows over pictures, as a convolution or a pool lays them: sizes, steps and what is padded on each side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.graph import Node, attribute


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
    def pads(self) -> tuple[tuple[int, int], ...]:
        """Padding before and behind each axis."""
        return tuple((before, max(behind, 0)) for before, behind in zip(self.before, self.behind, strict=True))


def windows_of(node: Node, kernel: Sequence[int], sizes: Sequence[int], counts: Sequence[int]) -> Windows | None:
    """Return the windows of a convolution or a pool; None where its padding cuts off.

    Args:
        node: With attributes `strides`, `dilations`, `pads` and `auto_pad`.
        kernel: Sizes of a window.
        sizes: Of the picture, along the axes of space.
        counts: Of the result, along these.
    """
    ones = (1,) * len(kernel)
    strides, dilations = attribute(node, "strides", ones), attribute(node, "dilations", ones)
    spans = [(width - 1) * dilation + 1 for width, dilation in zip(kernel, dilations, strict=True)]
    needed = [
        (count - 1) * stride + span - size
        for count, stride, span, size in zip(counts, strides, spans, sizes, strict=True)
    ]
    mode = attribute(node, "auto_pad", "NOTSET")
    pads = attribute(node, "pads", (0,) * (2 * len(kernel)))
    if any(pad < 0 for pad in pads):
        return None
    if mode in ("NOTSET", ""):
        before = tuple(pads[: len(kernel)])
    elif mode == "VALID":
        before = (0,) * len(kernel)
    else:
        total = [max(need, 0) for need in needed]
        before = tuple(pad // 2 if mode == "SAME_UPPER" else pad - pad // 2 for pad in total)
    behind = tuple(need - pad for need, pad in zip(needed, before, strict=True))
    return Windows(tuple(kernel), tuple(strides), tuple(dilations), before, behind, tuple(sizes), tuple(counts))


def counted(node: Node, windows: Windows, *, counts_padding: bool) -> NDArray[np.float64]:
    """Return how many numbers the mean of each window is over; shape: the windows.

    Args:
        node: An AveragePool.
        windows: Its windows.
        counts_padding: Padding that the node asks for counts; what rounding up adds behind it does not.
    """
    axes = len(windows.kernel)
    is_written = attribute(node, "auto_pad", "NOTSET") in ("NOTSET", "")
    pads: Sequence[int] = attribute(node, "pads", (0,) * (2 * axes))
    behind: Sequence[int] = pads[axes:] if is_written else windows.behind
    made = np.ones(())
    for axis in range(axes):
        first = np.arange(windows.counts[axis]) * windows.strides[axis] - windows.before[axis]
        last = first + windows.kernel[axis]
        least = -windows.before[axis] if counts_padding else 0
        most = windows.sizes[axis] + (max(behind[axis], 0) if counts_padding else 0)
        made = np.multiply.outer(made, np.minimum(last, most) - np.maximum(first, least))
    return made


def lies_in_padding(node: Node, windows: Windows) -> bool:
    """Whether a window reads padding alone: ONNX Runtime leaves it out, onnx's shapes count it."""
    pads = attribute(node, "pads", (0,) * (2 * len(windows.kernel)))
    return any(
        (count - 1) * stride >= size + before
        for count, stride, size, before in zip(windows.counts, windows.strides, windows.sizes, pads, strict=False)
    )
