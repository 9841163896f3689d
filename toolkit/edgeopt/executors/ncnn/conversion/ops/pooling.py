"""Pooling over windows and over all positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from edgeopt.executors.ncnn.conversion.conversion import Conversion
from edgeopt.executors.ncnn.conversion.network import Parameter
from edgeopt.executors.ncnn.conversion.ops.convolution import window_padding
from edgeopt.graph.graph import Node, attribute

_MAX, _AVERAGE = 0, 1
_EXPLICIT = 1
"""Pad as told, and leave out a window that does not fit."""


def _pooled(kind: int) -> Callable[[Conversion, Node], None]:
    def convert(conversion: Conversion, node: Node) -> None:
        conversion.require_one_picture(node)
        kernel: tuple[int, ...] = attribute(node, "kernel_shape", ())
        count = len(kernel)
        if count not in (1, 2):
            raise conversion.refuse(node, f"over {count} axes")
        ones = (1,) * count
        strides, dilations = tuple(attribute(node, "strides", ones)), tuple(attribute(node, "dilations", ones))
        if dilations != ones or any(output.consumers() for output in node.outputs[1:]):
            raise conversion.refuse(node, "with dilations or indices")
        pads = list(window_padding(conversion, node, kernel, strides, dilations))
        counts_padding = bool(attribute(node, "count_include_pad", 0))
        missing = _missing_behind(conversion, node, kernel, strides, pads)
        before, after = conversion.shape(node.inputs[0])[2:], conversion.shape(node.outputs[0])[2:]
        if any((after[i] - 1) * strides[i] >= before[i] + pads[i] for i in range(count)):
            raise conversion.refuse(node, "with windows that begin outside")
        if any(missing):
            if kind == _AVERAGE:
                raise conversion.refuse(node, "with windows that end outside")
            for axis, more in enumerate(missing):
                pads[count + axis] += more
        parameters: dict[int, Parameter] = {0: kind, 1: kernel[-1], 2: strides[-1], 3: pads[count - 1], 14: pads[-1]}
        if count == 1:
            parameters = {0: kind, 1: kernel[0], 2: strides[0], 3: pads[0], 14: pads[1]}
        else:
            parameters |= {11: kernel[0], 12: strides[0], 13: pads[0], 15: pads[2]}
        parameters |= {5: _EXPLICIT, 6: int(counts_padding)}
        name = "Pooling" if count > 1 else "Pooling1D"
        grid = conversion.grid(node.inputs[0]) if kind == _MAX else None  # a maximum of rounded numbers is rounded
        conversion.set(node.outputs[0], conversion.layer(node, name, [node.inputs[0]], parameters), grid)

    return convert


def _missing_behind(
    conversion: Conversion, node: Node, kernel: Sequence[int], strides: Sequence[int], pads: Sequence[int]
) -> list[int]:
    """Return the rows behind each axis that windows of the output need and padding does not give (`ceil_mode`)."""
    before, after = conversion.shape(node.inputs[0])[2:], conversion.shape(node.outputs[0])[2:]
    count = len(kernel)
    return [
        max((after[i] - 1) * strides[i] + kernel[i] - (before[i] + pads[i] + pads[count + i]), 0) for i in range(count)
    ]


def _global(kind: int) -> Callable[[Conversion, Node], None]:
    def convert(conversion: Conversion, node: Node) -> None:
        shape = conversion.shape(node.inputs[0])
        if shape[0] != 1:
            raise conversion.refuse(node, "of several pictures at once")
        over_all(conversion, node, kind)

    return convert


def over_all(conversion: Conversion, node: Node, kind: int) -> None:
    """Write the maximum (0) or mean (1) over all positions of a tensor (1, C, ...)."""
    shape = conversion.shape(node.inputs[0])
    channels, dims = shape[1], (shape[1], math.prod(shape[2:-1]), shape[-1])
    blob = conversion.reshaped(node, conversion.blob(node.inputs[0]), conversion.dims(node.inputs[0]), dims)
    made = conversion.layer(node, "Pooling", [blob], {0: kind, 4: 1})
    conversion.set(node.outputs[0], conversion.reshaped(node, made, (channels,), conversion.dims(node.outputs[0])))


OPS = {
    "MaxPool": _pooled(_MAX),
    "AveragePool": _pooled(_AVERAGE),
    "GlobalMaxPool": _global(_MAX),
    "GlobalAveragePool": _global(_AVERAGE),
}
