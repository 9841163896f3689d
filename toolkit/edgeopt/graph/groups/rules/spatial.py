"""Ops over height and width: pooling, Resize, Pad."""

from __future__ import annotations

import numpy as np

from edgeopt.graph.graph import Node, attribute
from edgeopt.graph.groups.labels import FIXED
from edgeopt.graph.groups.rules import Rule
from edgeopt.graph.groups.tracer import PinnedError, Tracer, positive
from edgeopt.graph.groups.types import channels


def pool(node: Node, at: Tracer) -> None:
    """Pass on channels; along other axes values mix."""
    if any(output.uses() or output.is_graph_output() for output in node.outputs[1:]):
        raise PinnedError("places of maxima count the channels")
    at.pin_other_axes(node, node.inputs[0], (0, 1), "channels lie along an axis that is pooled")
    at.give(node.outputs[0], {axis: array for axis, array in at.axes(node.inputs[0]).items() if axis < 2})


def resize(node: Node, at: Tracer) -> None:
    """Pass on axes that keep their size; a size that counts channels is rewritten."""
    before, after = at.dims(node.inputs[0]), at.dims(node.outputs[0])
    axes = dict(at.axes(node.inputs[0]))
    resized = attribute(node, "axes", tuple(range(len(before))))
    order = [positive(int(number), len(before)) for number in resized]
    for axis in [*axes]:
        if not isinstance(after[axis], int):
            raise PinnedError("the size of a Resize is not known before the model runs")
        if before[axis] != after[axis] or attribute(node, "coordinate_transformation_mode", "") == "tf_crop_and_resize":
            raise PinnedError("resizes along the channels")
        if axis in order and attribute(node, "keep_aspect_ratio_policy", "stretch") != "stretch":
            raise PinnedError("the scale along the channels hangs on other sizes")
        _require_unscaled(node, at, order.index(axis) if axis in order else None)
        if len(node.inputs) > 3 and node.inputs[3] is not None and axis in order:
            sizes = at.integers(node.inputs[3], "the size of a Resize")
            at.count(node, 3, sizes, order.index(axis), axes[axis])
    at.give(node.outputs[0], axes)


def _require_unscaled(node: Node, at: Tracer, entry: int | None) -> None:
    """Raise where the scale along an axis is not exactly 1: of a size that stays, values may still mix."""
    place = 2 if at.graph.opset >= 11 and node.op_type == "Resize" else 1
    value = node.inputs[place] if len(node.inputs) > place else None
    if value is None or entry is None:
        return
    scales = at.constant(value)
    if scales is None or (scales.size and scales.reshape(-1)[entry] != 1):
        raise PinnedError("resizes along the channels")


def pad(node: Node, at: Tracer) -> None:
    """Put entries that stay around channels that are padded."""
    rank = at.rank(node.inputs[0])
    given = attribute(node, "pads", ())
    pads = tuple(int(one) for one in given) if given else at.integers(node.inputs[1], "the width of a Pad")
    order = list(range(rank))
    if len(node.inputs) > 3 and node.inputs[3] is not None:
        order = [positive(integer, rank) for integer in at.integers(node.inputs[3], "the axes of a Pad")]
    axes = dict(at.axes(node.inputs[0]))
    for axis in [*axes]:
        if axis not in order:
            continue
        before, after = pads[order.index(axis)], pads[order.index(axis) + len(order)]
        if min(before, after) < 0 or ((before or after) and attribute(node, "mode", "constant") != "constant"):
            raise PinnedError("pads channels with values of other channels")
        sides = [np.full(number, FIXED, np.int32) for number in (before, after)]
        axes[axis] = channels(np.concatenate([sides[0], axes[axis], sides[1]]))
    at.give(node.outputs[0], axes)


_POOLS = ("AveragePool", "MaxPool", "LpPool", "GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
RULES = {**{op: Rule(pool) for op in _POOLS}, "Resize": Rule(resize), "Upsample": Rule(resize), "Pad": Rule(pad)}
