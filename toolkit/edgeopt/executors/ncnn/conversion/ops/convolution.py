"""Convolutions and their transposes, over lines and pictures, in float or on 8-bit integers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgeopt.executors.ncnn.conversion.conversion import Conversion
from edgeopt.executors.ncnn.conversion.network import Parameter, Weight
from edgeopt.executors.ncnn.conversion.ops.quantization import integer_weights, scales_of
from edgeopt.graph.graph import Node, attribute

_PICTURE, _LINE = 2, 1
_FEATURES, _NO_WINOGRAD = 31, 1 << 6
"""Parameter of a layer that switches off what its bits name: see `get_masked_option` in ncnn's `net.cpp`."""
_WINOGRAD_SCALE = 576
"""ncnn's F(4x4, 3x3) on integers keeps sums in 32 bits, times 24 twice: 32 channels of nothing but 127 overflow."""


def window_padding(
    conversion: Conversion, node: Node, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[int, ...]:
    """Return the padding of a window: what lies before each axis, then what lies behind each."""
    count = len(kernel)
    mode = attribute(node, "auto_pad", "NOTSET")
    if mode in ("NOTSET", ""):
        pads = tuple(attribute(node, "pads", (0,) * (2 * count)))
        if any(pad < 0 for pad in pads):
            raise conversion.refuse(node, "with negative padding")
        return pads
    if mode == "VALID":
        return (0,) * (2 * count)
    before, behind = list[int](), list[int]()
    for size, width, stride, dilation in zip(
        conversion.shape(node.inputs[0])[2:], kernel, strides, dilations, strict=True
    ):
        missing = max((-(-size // stride) - 1) * stride + (width - 1) * dilation + 1 - size, 0)
        less = missing // 2
        before.append(less if mode == "SAME_UPPER" else missing - less)
        behind.append(missing - before[-1])
    return (*before, *behind)


def _window(
    kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int], pads: Sequence[int]
) -> dict[int, Parameter]:
    """Return the parameters of a window; the last axis is ncnn's width."""
    parameters: dict[int, Parameter] = {1: kernel[-1], 2: dilations[-1], 3: strides[-1]}
    parameters |= {4: pads[len(kernel) - 1], 15: pads[-1]}
    if len(kernel) == _PICTURE:
        parameters |= {11: kernel[0], 12: dilations[0], 13: strides[0], 14: pads[0], 16: pads[2]}
    return parameters


def _convolution(conversion: Conversion, node: Node) -> None:
    stored = integer_weights(conversion, node)
    weight = stored.numbers if stored else conversion.numbers(node, 1)
    assert weight is not None
    bias = conversion.numbers(node, 2)
    kernel = weight.shape[2:]
    if bias is not None and bias.size != weight.shape[0]:
        raise conversion.refuse(node, f"with a bias of {bias.size} for {weight.shape[0]} channels")
    if len(kernel) not in (_LINE, _PICTURE):
        raise conversion.refuse(node, f"over {len(kernel)} axes")
    if conversion.shape(node.inputs[0])[0] != 1:
        raise conversion.refuse(node, "of several pictures at once")
    ones = (1,) * len(kernel)
    strides, dilations = tuple(attribute(node, "strides", ones)), tuple(attribute(node, "dilations", ones))
    pads = window_padding(conversion, node, kernel, strides, dilations)
    group = attribute(node, "group", 1)
    parameters = _window(kernel, strides, dilations, pads)
    parameters |= {0: weight.shape[0], 5: int(bias is not None), 6: weight.size}
    if group > 1:
        parameters[7] = group
    kind = "Convolution" if group == 1 else "ConvolutionDepthWise"
    kind += "1D" if len(kernel) == _LINE else ""
    grid = conversion.grid(node.inputs[0])
    is_integer = stored is not None and grid is not None and len(kernel) == _PICTURE
    weights = [Weight(weight.astype(np.float32))]
    if bias is not None:
        weights.append(Weight(bias.astype(np.float32), has_tag=False))
    if is_integer and stored is not None and grid is not None:
        scales = scales_of(stored, group)
        if scales is not None:
            weights[0] = Weight(stored.integers)
            weights += [Weight(scales, has_tag=False), Weight(np.array([1 / grid], np.float32), has_tag=False)]
            parameters[8] = 1
            if kernel == (3, 3) and _overflows(stored.integers):
                parameters[_FEATURES] = _NO_WINOGRAD
    conversion.set(node.outputs[0], conversion.layer(node, kind, [node.inputs[0]], parameters, weights))


def _overflows(weights: NDArray[np.int8]) -> bool:
    """Whether some input would let the sums of Winograd's form pass 32 bits."""
    largest = 127 * int(np.abs(weights.astype(np.int64)).sum((1, 2, 3)).max())
    return largest * _WINOGRAD_SCALE >= 1 << 31


def _transposed(conversion: Conversion, node: Node) -> None:
    stored = integer_weights(conversion, node)
    weight = stored.numbers if stored else conversion.numbers(node, 1)
    assert weight is not None
    bias = conversion.numbers(node, 2)
    kernel = weight.shape[2:]
    if len(kernel) not in (_LINE, _PICTURE) or conversion.shape(node.inputs[0])[0] != 1:
        raise conversion.refuse(node, f"over {len(kernel)} axes")
    ones = (1,) * len(kernel)
    strides, dilations = tuple(attribute(node, "strides", ones)), tuple(attribute(node, "dilations", ones))
    group = attribute(node, "group", 1)
    before, after = conversion.shape(node.inputs[0])[2:], conversion.shape(node.outputs[0])[2:]
    padding: tuple[int, ...] = attribute(node, "pads", ())
    if attribute(node, "output_shape", ()) or any(pad < 0 for pad in padding):
        raise conversion.refuse(node, "with output_shape, or negative padding")
    if attribute(node, "auto_pad", "NOTSET") not in ("NOTSET", "", "VALID"):
        raise conversion.refuse(node, "with auto_pad")
    pads = tuple(attribute(node, "pads", (0,) * (2 * len(kernel))))
    full = [
        (size - 1) * stride + (width - 1) * dilation + 1
        for size, stride, width, dilation in zip(before, strides, kernel, dilations, strict=True)
    ]
    # what ONNX cuts off behind each axis is what is left over: less than `pads` says where output_padding adds rows
    behind = [have - pads[i] - want for i, (have, want) in enumerate(zip(full, after, strict=True))]
    added = [max(-cut, 0) for cut in behind]
    pads = (*pads[: len(kernel)], *(max(cut, 0) for cut in behind))
    parameters = _window(kernel, strides, dilations, pads)
    outputs = weight.shape[1] * group
    parameters |= {0: outputs, 5: int(bias is not None), 6: weight.size, 18: added[-1]}
    if len(kernel) == _PICTURE:
        parameters[19] = added[0]
    if group > 1:
        parameters[7] = group
    inputs = weight.shape[0] // group
    numbers = weight.reshape(group, inputs, weight.shape[1], *kernel).swapaxes(1, 2)
    weights = [Weight(np.ascontiguousarray(numbers, np.float32))]
    if bias is not None:
        weights.append(Weight(bias.astype(np.float32), has_tag=False))
    kind = "Deconvolution" if group == 1 else "DeconvolutionDepthWise"
    kind += "1D" if len(kernel) == _LINE else ""
    conversion.set(node.outputs[0], conversion.layer(node, kind, [node.inputs[0]], parameters, weights))


OPS = {"Conv": _convolution, "ConvTranspose": _transposed}
