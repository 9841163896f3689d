"""Convolutions, with their padding in numbers."""

from __future__ import annotations

from typing import Any

from edgeopt.executors._conversion.windows import windows_of
from edgeopt.executors.mnn.conversion.rewriting import MnnGraph
from edgeopt.graph.graph import Node, Value, attribute


def _convolution(graph: MnnGraph, node: Node) -> None:
    """Write windows over two axes; a line becomes a picture of one column."""
    x, y = graph.shape(node.inputs[0]), graph.shape(node.outputs[0])
    weight, bias = graph.numbers(node, 1), graph.numbers(node, 2)
    if weight is None or len(x) not in (3, 4) or weight.ndim != len(x):
        raise graph.refuse(node, "over other axes than one or two")
    group, kernel = attribute(node, "group", 1), weight.shape[2:]
    if (
        weight.shape[1] * group != x[1]
        or weight.shape[0] % group
        or tuple(attribute(node, "kernel_shape", kernel)) != kernel
    ):
        raise graph.refuse(node, "whose groups or kernel are not those of its weights")
    if bias is not None and bias.shape != (weight.shape[0],):
        raise graph.refuse(node, f"with a bias of {bias.size} for {weight.shape[0]} channels")
    windows = windows_of(node, kernel, x[2:], y[2:])
    if windows is None:
        raise graph.refuse(node, "whose padding cuts off")
    before, behind = zip(*windows.pads, strict=True)
    attributes: dict[str, Any] = {
        "kernel_shape": kernel,
        "strides": windows.strides,
        "dilations": windows.dilations,
        "pads": (*before, *behind),
        "group": group,
    }
    shape, value = y, node.inputs[0]
    if len(x) == 3:
        length = len(kernel)
        attributes |= {key: (*attributes[key], 1) for key in ("kernel_shape", "strides", "dilations")}
        attributes["pads"] = (*before, 0, *behind, 0)
        assert length == 1
        weight, shape, value = weight[..., None], (*y, 1), graph.reshaped(node, value, (*x, 1))
    inputs = [value, weight.astype("float32"), *([] if bias is None else [bias.astype("float32")])]
    made = graph.add(node, "Conv", inputs, shape, **attributes)
    graph.put(node, graph.reshaped(node, made, y))


def _transposed(graph: MnnGraph, node: Node) -> None:
    x, weight, bias = graph.shape(node.inputs[0]), graph.numbers(node, 1), graph.numbers(node, 2)
    dilations: tuple[int, ...] = attribute(node, "dilations", ())
    if weight is None or len(x) != 4 or any(size > 1 for size in dilations):
        raise graph.refuse(node, "over other axes than two, or with holes")
    if attribute(node, "auto_pad", "NOTSET") not in ("NOTSET", "") or attribute(node, "output_shape", ()):
        raise graph.refuse(node, "that is padded by itself")
    pads: tuple[int, ...] = attribute(node, "pads", (0, 0, 0, 0))
    if min(pads) < 0:
        raise graph.refuse(node, "whose padding cuts off")
    attributes = {
        "kernel_shape": weight.shape[2:],
        "strides": attribute(node, "strides", (1, 1)),
        "pads": pads,
        "group": attribute(node, "group", 1),
        "output_padding": attribute(node, "output_padding", (0, 0)),
    }
    inputs: list[Value | Any] = [node.inputs[0], weight.astype("float32")]
    inputs += [] if bias is None else [bias.astype("float32")]
    graph.put(node, graph.add(node, "ConvTranspose", inputs, graph.shape(node.outputs[0]), **attributes))


OPS = {"Conv": _convolution, "ConvTranspose": _transposed}
