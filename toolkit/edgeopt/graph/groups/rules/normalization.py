"""Normalisations: by channel they are cut with them; across channels they pin them."""

from __future__ import annotations

from edgeopt.graph.graph import Node, attribute
from edgeopt.graph.groups.rules import Rule
from edgeopt.graph.groups.tracer import PinnedError, Tracer, positive
from edgeopt.graph.groups.types import Channels

_ACROSS = "normalises across the channels"


def by_channel(node: Node, at: Tracer) -> None:
    """Cut scale, shift, mean and variance along axis 1: BatchNormalization, InstanceNormalization."""
    if any(one.uses() or one.is_graph_output() for one in node.outputs[1:]):
        raise PinnedError("a batch normalisation that is still training")
    if any(at.constant(one) is None for one in node.inputs[1:]):
        raise PinnedError("scales are computed while the model runs")
    axes = at.axes(node.inputs[0])
    if node.op_type == "InstanceNormalization":
        at.pin_other_axes(node, node.inputs[0], (0, 1), _ACROSS)
    if 1 in axes:
        for place in range(1, len(node.inputs)):
            at.use(node, place, {0: axes[1]})
    at.give(node.outputs[0], axes)


def layer(node: Node, at: Tracer) -> None:
    """Pass on what lies in front of the normalised axes."""
    start = positive(int(attribute(node, "axis", -1)), at.rank(node.inputs[0]))
    _across(node, at, range(start, at.rank(node.inputs[0])))
    at.give(node.outputs[0], {axis: one for axis, one in at.axes(node.inputs[0]).items() if axis < start})


def along_axis(node: Node, at: Tracer) -> None:
    """Pass on all axes but the one along which entries are compared: Softmax and the like."""
    rank = at.rank(node.inputs[0])
    flattens = at.graph.opset < 13 and node.op_type in ("Softmax", "LogSoftmax", "Hardmax")
    axis = positive(int(attribute(node, "axis", 1 if flattens else -1)), rank)
    axes = _across(node, at, range(axis, rank) if flattens else (axis,))
    at.give(node.outputs[0], axes)


def mean_variance(node: Node, at: Tracer) -> None:
    """Pass on the axes that are not averaged over."""
    rank = at.rank(node.inputs[0])
    axes = [positive(int(one), rank) for one in attribute(node, "axes", (0, 2, 3))]
    at.give(node.outputs[0], _across(node, at, axes))


def _across(node: Node, at: Tracer, axes: range | tuple[int, ...] | list[int]) -> dict[int, Channels]:
    for axis, labels in at.axes(node.inputs[0]).items():
        if axis in axes:
            at.pin(node, labels, f"{node.op_type} {_ACROSS}")
    return {axis: labels for axis, labels in at.axes(node.inputs[0]).items() if axis not in axes}


RULES = {
    "BatchNormalization": Rule(by_channel),
    "InstanceNormalization": Rule(by_channel),
    "LayerNormalization": Rule(layer),
    "RMSNormalization": Rule(layer),
    "Softmax": Rule(along_axis),
    "LogSoftmax": Rule(along_axis),
    "Hardmax": Rule(along_axis),
    "LpNormalization": Rule(along_axis),
    "MeanVarianceNormalization": Rule(mean_variance),
}
