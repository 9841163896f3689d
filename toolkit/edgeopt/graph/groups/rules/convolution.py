"""Conv and ConvTranspose: ordinary, grouped, depthwise."""

from __future__ import annotations

import numpy as np

from edgeopt.graph.graph import Node, attribute
from edgeopt.graph.groups.labels import FIXED
from edgeopt.graph.groups.rules import Rule
from edgeopt.graph.groups.tracer import PinnedError, Tracer
from edgeopt.graph.groups.types import Channels, channels

_SPATIAL = "channels lie along an axis that the kernel moves over"


def follow(node: Node, at: Tracer) -> None:
    """Read the channels of axis 1; the outputs are new channels, or those of the input where it is grouped."""
    if any(at.constant(input_) is None for input_ in node.inputs[1:] if input_ is not None):
        raise PinnedError("weights are computed while the model runs")
    weight = at.dims(node.inputs[1])
    groups = int(attribute(node, "group", 1))
    is_transposed = node.op_type == "ConvTranspose"
    first, second = int(weight[0] or 0), int(weight[1] or 0)
    inputs, outputs = (first, second * groups) if is_transposed else (second * groups, first)
    axes = at.axes(node.inputs[0])
    at.pin_other_axes(node, node.inputs[0], (0, 1), _SPATIAL)
    read = axes.get(1, np.full(inputs, FIXED, np.int32))
    if groups == 1:
        made = at.fresh(node, outputs)
        at.use(node, 1, {0: read, 1: made} if is_transposed else {0: made, 1: read}, reads=0 if is_transposed else 1)
    else:
        made = _grouped(node, at, read, groups, outputs)
        at.use(node, 1, {0: read if is_transposed else made})
    if len(node.inputs) > 2:
        at.use(node, 2, {0: made})
    at.give(node.outputs[0], {**{axis: array for axis, array in axes.items() if axis == 0}, 1: made})


def _grouped(node: Node, at: Tracer, read: Channels, groups: int, outputs: int) -> Channels:
    """Return labels of the outputs where whole groups are removed: each is one unit from its inputs to its outputs."""
    blocks = read.reshape(groups, -1)
    first = channels(blocks[:, 0])
    every = channels(np.broadcast_to(blocks[:, :1], blocks.shape))
    at.tie(node, every, channels(blocks), "a group of a convolution reads channels that stay")
    at.count(node, "group", (groups,), -1, first)
    return np.repeat(first, outputs // groups)


RULES = {op: Rule(follow, joins=True, makes=True) for op in ("Conv", "ConvTranspose")}
