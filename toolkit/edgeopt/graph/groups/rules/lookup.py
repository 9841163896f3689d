"""Gather and Expand along other axes than that of the channels; Shape."""

from __future__ import annotations

from edgeopt.graph.graph import Node, attribute
from edgeopt.graph.groups.rules import Rule
from edgeopt.graph.groups.rules.elementwise import tie_operands
from edgeopt.graph.groups.tracer import PinnedError, Tracer, positive


def gather(node: Node, at: Tracer) -> None:
    """Pass on the axes that are not looked up along."""
    data, indices = node.inputs
    if at.axes(indices):
        raise PinnedError("channels are used as places of a lookup")
    rank = at.rank(data)
    axis = positive(int(attribute(node, "axis", 0)), rank)
    at.pin_other_axes(node, data, [one for one in range(rank) if one != axis], "Gather picks channels")
    by = at.rank(indices) - 1
    axes = {one if one < axis else one + by: labels for one, labels in at.axes(data).items() if one != axis}
    at.give(node.outputs[0], axes)


def expand(node: Node, at: Tracer) -> None:
    """Pass on axes that keep their size; a size that counts channels is rewritten."""
    rank = at.rank(node.outputs[0])
    result = tie_operands(node, at, (0,), {}, rank)
    values = at.integers(node.inputs[1], "the size of an Expand")
    for axis, labels in result.items():
        entry = axis - rank + len(values)
        if entry >= 0 and values[entry] > 1:
            at.count(node, 1, values, entry, labels)
    at.give(node.outputs[0], result)


def tile(node: Node, at: Tracer) -> None:
    """Pass on axes that are not repeated."""
    repeats = at.integers(node.inputs[1], "the repeats of a Tile")
    if any(repeats[axis] != 1 for axis in at.axes(node.inputs[0])):
        raise PinnedError("repeats the channels")
    at.give(node.outputs[0], at.axes(node.inputs[0]))


RULES = {"Gather": Rule(gather), "Expand": Rule(expand), "Tile": Rule(tile)}
