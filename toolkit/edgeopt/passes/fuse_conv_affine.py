"""Fold multiplication and addition of constants into the Conv or ConvTranspose before, or the Conv after.

After:   (W x + b) * s + t        ->   W' = W * s (output channels)   and   b' = b * s + t.
Before:  W (x * s + t) + b        ->   W' = W * s (input channels)    and   b' = b + sum W t.
Padding adds zeros to x * s + t, not to x, so a shift before a padded Conv stays where it is, and so does the half of
a Gaussian error linear unit: without it engines make no one kernel of the unit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeopt.graph.channels import out_channels, per_channel, scale_inputs, scale_outputs, shift_inputs
from edgeopt.graph.gelu import halves_gelu
from edgeopt.graph.graph import Array, Graph, Node, Value, attribute
from edgeopt.passes import Pass, Phase

_OPS = ("Mul", "Add", "Sub", "Div")
_Affine = tuple[NDArray[np.float64], NDArray[np.float64]]


def fuse_conv_affine(graph: Graph) -> int:
    """Return how many Mul, Add, Sub and Div nodes disappeared into a convolution."""
    return sum(_fuse_into_previous(graph, node) or _fuse_into_next(graph, node) for node in graph.nodes(*_OPS))


def _fuse_into_previous(graph: Graph, node: Node) -> bool:
    data = _data_input(graph, node)
    conv = graph.sole_producer(data, "Conv") or graph.sole_producer(data, "ConvTranspose")
    weights = _weights(graph, conv)
    if conv is None or weights is None:
        return False
    weight, bias = weights
    groups, transposed = attribute(conv, "group", 1), conv.op_type == "ConvTranspose"
    channels = out_channels(weight, groups, transposed=transposed)
    affine = _affine(graph, node, weight.ndim, channels)
    if affine is None or not graph.bypass(node, keep=conv):
        return False
    scale, shift = affine
    _write(graph, conv, scale_outputs(weight, scale, groups, transposed=transposed), bias * scale + shift)
    return True


def _fuse_into_next(graph: Graph, node: Node) -> bool:
    conv, data = graph.sole_consumer(node.outputs[0], "Conv"), _data_input(graph, node)
    weights = _weights(graph, conv)
    if conv is None or weights is None or data is None or conv.inputs[0] is not node.outputs[0]:
        return False
    weight, bias = weights
    groups = attribute(conv, "group", 1)
    channels = weight.shape[1] * groups
    affine = _affine(graph, node, weight.ndim, channels)
    if affine is None or not _keeps_shape(graph, node, data, weight.ndim, channels):
        return False
    scale, shift = affine
    if (shift.any() and _is_padded(conv)) or halves_gelu(graph, node) or not graph.bypass(node, keep=data):
        return False
    _write(graph, conv, scale_inputs(weight, scale, groups), bias + shift_inputs(weight, shift, groups))
    return True


def _data_input(graph: Graph, node: Node) -> Value | None:
    result = graph.split(node)
    return result[0] if result else None


def _weights(graph: Graph, conv: Node | None) -> tuple[Array, Array] | None:
    arrays = graph.constants(value for value in conv.inputs[1:] if value is not None) if conv else None
    if not arrays or arrays[0].dtype.kind != "f":
        return None
    return arrays[0], arrays[1] if len(arrays) > 1 else np.zeros(1)


def _affine(graph: Graph, node: Node, rank: int, channels: int) -> _Affine | None:
    """Return scale and shift per channel of a Mul, Add, Sub or Div with one constant."""
    found = graph.split(node)
    constant = per_channel(found[1], rank, channels) if found else None
    if found is None or constant is None:
        return None
    zeros, ones, first = np.zeros(channels), np.ones(channels), found[2] == 0
    if node.op_type == "Mul":
        return constant, zeros
    if node.op_type == "Div":
        return None if first or not constant.all() else (1 / constant, zeros)
    if node.op_type == "Add":
        return ones, constant
    return (-ones, constant) if first else (ones, -constant)


def _keeps_shape(graph: Graph, node: Node, data: Value, rank: int, channels: int) -> bool:
    """Whether the constant neither adds a dimension to `data` nor widens its channels."""
    constant = graph.split(node)
    if constant is not None and constant[1].ndim == 0:
        return True
    shape = data.shape
    return shape is not None and shape.rank() == rank and shape[1] == channels


def _is_padded(conv: Node) -> bool:
    mode: str = attribute(conv, "auto_pad", "NOTSET")
    pads: tuple[int, ...] = attribute(conv, "pads", ())
    return mode.startswith("SAME") or any(pads)


def _write(graph: Graph, conv: Node, weight: NDArray[np.float64], bias: NDArray[np.float64]) -> None:
    old = graph.constant(conv.inputs[1])
    dtype = old.dtype if old is not None else np.dtype(np.float32)
    graph.set_input(conv, 1, weight.astype(dtype))
    if bias.any() or len(conv.inputs) > 2:
        graph.set_input(conv, 2, bias.astype(dtype))


PASS = Pass(fuse_conv_affine, Phase.FUSE)
