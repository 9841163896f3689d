"""Gather, Expand and Tile along other axes than that of the channels; tables of embeddings make channels."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from edgeopt.graph.graph import Node, attribute
from edgeopt.graph.groups.rules import Rule
from edgeopt.graph.groups.rules.elementwise import tie_operands
from edgeopt.graph.groups.tracer import PinnedError, Tracer, positive


def gather(node: Node, at: Tracer) -> None:
    """Pass on the axes that are not looked up along."""
    data, indices = node.inputs
    table = at.constant(data)
    if table is not None:
        return _embed(node, at, table)
    rank = at.rank(data)
    axis = positive(int(attribute(node, "axis", 0)), rank)
    at.pin_other_axes(node, data, [other for other in range(rank) if other != axis], "Gather picks channels")
    by = at.rank(indices) - 1
    axes = {
        number if number < axis else number + by: labels for number, labels in at.axes(data).items() if number != axis
    }
    at.give(node.outputs[0], axes)
    return None


def _embed(node: Node, at: Tracer, table: NDArray[Any]) -> None:
    """Make the columns of a table of numbers new channels."""
    if table.ndim == 2 and table.dtype.kind == "f" and positive(int(attribute(node, "axis", 0)), 2) == 0:
        made = at.fresh(node, table.shape[1])
        at.use(node, 0, {1: made})
        at.give(node.outputs[0], {at.rank(node.outputs[0]) - 1: made})


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
    if len(repeats) != at.rank(node.inputs[0]) or any(repeats[axis] != 1 for axis in at.axes(node.inputs[0])):
        raise PinnedError("repeats the channels")
    at.give(node.outputs[0], at.axes(node.inputs[0]))


RULES = {"Gather": Rule(gather, makes=True), "Expand": Rule(expand), "Tile": Rule(tile)}
