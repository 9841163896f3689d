"""Largest numbers and means of windows, and of all positions."""

from __future__ import annotations

import numpy as np

from edgeopt.executors._conversion.windows import Windows, counted, lies_in_padding
from edgeopt.executors.coreml.conversion.conversion import Convert, MilConversion
from edgeopt.executors.coreml.conversion.ops.convolution import flat_pads, windows_of_node
from edgeopt.graph.graph import Node, attribute


def _windows(conversion: MilConversion, node: Node) -> Windows:
    none: tuple[int, ...] = ()
    kernel = attribute(node, "kernel_shape", none)
    if any(size > 1 for size in attribute(node, "dilations", none)):
        raise conversion.refuse(node, "with holes")
    windows = windows_of_node(conversion, node, kernel)
    if lies_in_padding(node, windows):
        raise conversion.refuse(node, "with a window that lies in padding alone")
    return windows


def _largest(conversion: MilConversion, node: Node) -> None:
    if len(node.outputs) > 1 and node.outputs[1].consumers():
        raise conversion.refuse(node, "with its indices read")
    windows = _windows(conversion, node)
    made = conversion.mb.max_pool(
        x=conversion.var(node.inputs[0]),
        kernel_sizes=windows.kernel,
        strides=windows.strides,
        pad_type="custom",
        pad=flat_pads(windows),
    )
    conversion.set(node.outputs[0], made)


def _mean(conversion: MilConversion, node: Node) -> None:
    """Write a mean over what lies in the picture, or over padding too, but not over what rounding up adds."""
    windows = _windows(conversion, node)
    counts_padding = bool(attribute(node, "count_include_pad", 0))
    made = conversion.mb.avg_pool(
        x=conversion.var(node.inputs[0]),
        kernel_sizes=windows.kernel,
        strides=windows.strides,
        pad_type="custom",
        pad=flat_pads(windows),
        exclude_padding_from_average=not counts_padding,
    )
    if counts_padding:
        factor = np.prod(windows.kernel) / counted(node, windows, counts_padding=True)
        if (factor != 1).any():
            made = conversion.mb.mul(x=made, y=factor.astype(np.float32)[None, None])
    conversion.set(node.outputs[0], made)


def _over_positions(name: str) -> Convert:
    def convert(conversion: MilConversion, node: Node) -> None:
        axes = [*range(2, len(conversion.shape(node.inputs[0])))]
        made = getattr(conversion.mb, name)(x=conversion.var(node.inputs[0]), axes=axes, keep_dims=True)
        conversion.set(node.outputs[0], made)

    return convert


OPS = {
    "MaxPool": _largest,
    "AveragePool": _mean,
    "GlobalAveragePool": _over_positions("reduce_mean"),
    "GlobalMaxPool": _over_positions("reduce_max"),
}
