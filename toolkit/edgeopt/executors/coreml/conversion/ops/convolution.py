"""Convolutions and their transposes, over lines, pictures and volumes."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgeopt.executors._conversion.windows import Windows, windows_of
from edgeopt.executors.coreml.conversion.conversion import MilConversion
from edgeopt.graph.graph import Node, attribute


def flat_pads(windows: Windows) -> tuple[int, ...]:
    """Return padding as MIL has it: before and behind each axis of space in turn."""
    return tuple(pad for pads in windows.pads for pad in pads)


def windows_of_node(conversion: MilConversion, node: Node, kernel: tuple[int, ...]) -> Windows:
    """Return the windows of a convolution or a pool. Raises UnsupportedError on padding that cuts off."""
    windows = windows_of(node, kernel, conversion.shape(node.inputs[0])[2:], conversion.shape(node.outputs[0])[2:])
    if windows is None:
        raise conversion.refuse(node, "with negative padding")
    return windows


def _bias(conversion: MilConversion, node: Node, channels: int) -> dict[str, Any]:
    bias = conversion.numbers(node, 2)
    if bias is None:
        return {}
    if bias.size != channels:
        raise conversion.refuse(node, f"with a bias of {bias.size} for {channels} channels")
    return {"bias": conversion.constant_var(bias.astype(np.float32).reshape(-1))}


def _convolution(conversion: MilConversion, node: Node) -> None:
    shape, weight = conversion.shape(node.inputs[0]), conversion.shape(node.inputs[1])
    kernel, group = weight[2:], attribute(node, "group", 1)
    if weight[1] * group != shape[1] or attribute(node, "kernel_shape", kernel) != kernel or weight[0] % group:
        raise conversion.refuse(node, "whose groups or kernel are not those of its weights")
    windows = windows_of_node(conversion, node, kernel)
    made = conversion.mb.conv(
        x=conversion.var(node.inputs[0]),
        weight=conversion.weight(node, 1),
        strides=windows.strides,
        dilations=windows.dilations,
        pad_type="custom",
        pad=flat_pads(windows),
        groups=group,
        **_bias(conversion, node, weight[0]),
    )
    conversion.set(node.outputs[0], made)


def _transposed(conversion: MilConversion, node: Node) -> None:
    """Write a transposed convolution; padding that differs between sides is cut off, as Apple's converter does."""
    weight = conversion.shape(node.inputs[1])
    axes = len(weight) - 2
    ones, group = (1,) * axes, attribute(node, "group", 1)
    if attribute(node, "output_shape", ()) or attribute(node, "auto_pad", "NOTSET") not in ("NOTSET", "", "VALID"):
        raise conversion.refuse(node, "with output_shape or auto_pad")
    pads, more = attribute(node, "pads", (0,) * (2 * axes)), attribute(node, "output_padding", (0,) * axes)
    before, behind = pads[:axes], tuple(pad - added for pad, added in zip(pads[axes:], more, strict=True))
    if any(pad < 0 for pad in (*before, *behind)):
        raise conversion.refuse(node, "with output_padding beyond its windows")
    is_even = before == behind
    made = conversion.mb.conv_transpose(
        x=conversion.var(node.inputs[0]),
        weight=conversion.weight(node, 1),
        strides=attribute(node, "strides", ones),
        dilations=attribute(node, "dilations", ones),
        pad_type="custom",
        pad=[pad for pad in before for _ in range(2)] if is_even else [0] * (2 * axes),
        groups=group,
        **_bias(conversion, node, weight[1] * group),
    )
    if not is_even:
        sizes = conversion.shape(node.outputs[0])[2:]
        made = conversion.mb.slice_by_index(
            x=made,
            begin=[0, 0, *before],
            end=[*made.shape[:2], *(start + size for start, size in zip(before, sizes, strict=True))],
        )
    conversion.set(node.outputs[0], made)


OPS = {"Conv": _convolution, "ConvTranspose": _transposed}
