"""Ops that put channels together and take them apart: Concat, Split, Slice."""

from __future__ import annotations

import numpy as np

from edgeopt.graph.graph import Node, attribute
from edgeopt.graph.groups.labels import FIXED
from edgeopt.graph.groups.rules import Rule
from edgeopt.graph.groups.tracer import MEETS_FIXED, PinnedError, Tracer, positive
from edgeopt.graph.groups.types import Channels, channels


def concat(node: Node, at: Tracer) -> None:
    """Put labels behind each other; along the other axes all inputs have the same channels."""
    rank = at.rank(node.inputs[0])
    axis = positive(int(attribute(node, "axis", 1)), rank)
    joined = [_entries(node, at, place, axis) for place in range(len(node.inputs))]
    result = {axis: channels(np.concatenate(joined))} if any((array != FIXED).any() for array in joined) else {}
    for value in node.inputs:
        for other, labels in at.axes(value).items():
            if other != axis:
                result.setdefault(other, labels)
    for place, value in enumerate(node.inputs):
        others = {other: labels for other, labels in result.items() if other != axis}
        if at.constant(value) is not None:
            at.use(node, place, others)
            continue
        for other, labels in others.items():
            own = at.axes(value).get(other, np.full(len(labels), FIXED, np.int32))
            at.tie(node, labels, own, MEETS_FIXED)
    at.give(node.outputs[0], result)


def _entries(node: Node, at: Tracer, place: int, axis: int) -> Channels:
    """Return the labels of one input along the axis of a Concat."""
    array = at.axes(node.inputs[place]).get(axis)
    if array is not None:
        return array
    size = at.dims(node.inputs[place])[axis]
    has_labels = any(axis in at.axes(value) for value in node.inputs)
    if not isinstance(size, int):
        if has_labels:
            raise PinnedError("channels are put behind others whose number is not known")
        return channels([])
    return np.full(size, FIXED, np.int32)


def split(node: Node, at: Tracer) -> None:
    """Hand each output its part; sizes that count channels are rewritten."""
    rank = at.rank(node.inputs[0])
    axis = positive(int(attribute(node, "axis", 0)), rank)
    axes = at.axes(node.inputs[0])
    others = {other: labels for other, labels in axes.items() if other != axis}
    labels = axes.get(axis)
    if labels is None:
        for value in node.outputs:
            at.give(value, others)
        return
    place: int | str = "split" if at.graph.opset < 13 else 1
    sizes = _sizes(node, at, len(labels))
    ends = np.cumsum(sizes)
    for entry, (value, size, end) in enumerate(zip(node.outputs, sizes, ends, strict=True)):
        part = labels[end - size : end]
        at.count(node, place, sizes, entry, part)
        at.give(value, {**others, axis: part})


def _sizes(node: Node, at: Tracer, total: int) -> tuple[int, ...]:
    given: tuple[int, ...] = attribute(node, "split", ())
    if not given and len(node.inputs) > 1 and node.inputs[1] is not None:
        given = at.integers(node.inputs[1], "the sizes of a Split")
    if given:
        return tuple(int(number) for number in given)
    each = -(-total // len(node.outputs))
    return tuple(min(each, total - i * each) for i in range(len(node.outputs)))


def cut_out(node: Node, at: Tracer) -> None:
    """Pass on the channels of one stretch; its start and end are rewritten."""
    dims = at.dims(node.inputs[0])
    starts, ends, axes, steps = _slice(node, at, len(dims))
    result = dict(at.axes(node.inputs[0]))
    for entry, axis in enumerate(axes):
        if axis not in result:
            continue
        if steps[entry] != 1:
            raise PinnedError("takes every n-th channel")
        labels = result[axis]
        start, end, _ = slice(starts[entry], ends[entry]).indices(len(labels))
        as_attribute = at.graph.opset < 10
        at.count(node, "starts" if as_attribute else 1, starts, entry, labels[:start])
        at.count(node, "ends" if as_attribute else 2, ends, entry, labels[:end])
        result[axis] = labels[start:end]
    at.give(node.outputs[0], result)


def _slice(node: Node, at: Tracer, rank: int) -> tuple[tuple[int, ...], ...]:
    """Return starts, ends, axes and steps."""
    if at.graph.opset < 10:
        starts: tuple[int, ...] = attribute(node, "starts", ())
        ends: tuple[int, ...] = attribute(node, "ends", ())
        axes = attribute(node, "axes", tuple(range(len(starts))))
        return starts, ends, tuple(positive(int(axis), rank) for axis in axes), (1,) * len(starts)
    starts, ends = (at.integers(node.inputs[place], "a stretch of channels") for place in (1, 2))
    optional = [node.inputs[place] if len(node.inputs) > place else None for place in (3, 4)]
    axes = tuple(range(len(starts))) if optional[0] is None else at.integers(optional[0], "the axes of a Slice")
    steps = (1,) * len(starts) if optional[1] is None else at.integers(optional[1], "the steps of a Slice")
    return starts, ends, tuple(positive(axis, rank) for axis in axes), steps


RULES = {"Concat": Rule(concat, joins=True), "Split": Rule(split), "Slice": Rule(cut_out)}
