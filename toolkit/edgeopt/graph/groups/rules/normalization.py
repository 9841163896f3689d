"""Normalisations: by channel they are cut with them; across channels they pin them."""

from __future__ import annotations

from collections.abc import Collection

from edgeopt.graph.graph import Node, attribute
from edgeopt.graph.groups.rules import Rule
from edgeopt.graph.groups.tracer import PinnedError, Tracer, positive

_ACROSS = "normalises across the channels"


def by_channel(node: Node, at: Tracer) -> None:
    """Cut scale, shift, mean and variance along axis 1: BatchNormalization, InstanceNormalization."""
    if attribute(node, "training_mode", 0) or any(
        output.uses() or output.is_graph_output() for output in node.outputs[1:]
    ):
        raise PinnedError("a batch normalisation that is still training")
    if any(at.constant(input_) is None for input_ in node.inputs[1:]) or not attribute(node, "spatial", 1):
        raise PinnedError("scales are computed while the model runs")
    axes = at.axes(node.inputs[0])
    if node.op_type == "InstanceNormalization":
        at.pin_other_axes(node, node.inputs[0], (0, 1), _ACROSS)
    if 1 in axes:
        for place in range(1, len(node.inputs)):
            at.use(node, place, {0: axes[1]})
    at.give(node.outputs[0], axes)


def layer(node: Node, at: Tracer) -> None:
    """Pass on what lies in front of the normalised axes; along those, channels stay."""
    rank = at.rank(node.inputs[0])
    _across(node, at, range(positive(int(attribute(node, "axis", -1)), rank), rank))


def along_axis(node: Node, at: Tracer) -> None:
    """Let channels stay along the axis on which entries are compared: Softmax and the like."""
    rank = at.rank(node.inputs[0])
    flattens = at.graph.opset < 13 and node.op_type in ("Softmax", "LogSoftmax", "Hardmax")
    axis = positive(int(attribute(node, "axis", 1 if flattens else -1)), rank)
    _across(node, at, range(axis, rank) if flattens else (axis,))


def neighbours(node: Node, at: Tracer) -> None:
    """Let channels stay that are divided by those beside them: LRN, GroupNormalization."""
    _across(node, at, (1,))


def mean_variance(node: Node, at: Tracer) -> None:
    """Let channels stay along the axes that are averaged over."""
    rank = at.rank(node.inputs[0])
    _across(node, at, [positive(int(one), rank) for one in attribute(node, "axes", (0, 2, 3))])


def _across(node: Node, at: Tracer, axes: Collection[int]) -> None:
    """Pin the channels of these axes; the output has them too, so that what is tied to it stays for the same reason."""
    if any(output.uses() or output.is_graph_output() for output in node.outputs[1:]):
        raise PinnedError("means are read too")
    for axis, labels in at.axes(node.inputs[0]).items():
        if axis in axes:
            at.pin(node, labels, f"{node.op_type} {_ACROSS}")
    at.give(node.outputs[0], at.axes(node.inputs[0]))


RULES = {
    "BatchNormalization": Rule(by_channel),
    "InstanceNormalization": Rule(by_channel),
    "LayerNormalization": Rule(layer),
    "RMSNormalization": Rule(layer),
    "Softmax": Rule(along_axis),
    "LogSoftmax": Rule(along_axis),
    "Hardmax": Rule(along_axis),
    "LpNormalization": Rule(along_axis),
    "LRN": Rule(neighbours),
    "GroupNormalization": Rule(neighbours),
    "MeanVarianceNormalization": Rule(mean_variance),
}
