"""Ops that only move axes: Transpose, Squeeze, Unsqueeze; reductions over axes without channels."""

from __future__ import annotations

from edgeopt.graph.graph import Node, attribute
from edgeopt.graph.groups.rules import Rule
from edgeopt.graph.groups.tracer import Tracer, positive


def transpose(node: Node, at: Tracer) -> None:
    """Move labels with their axes."""
    rank = at.rank(node.inputs[0])
    order = attribute(node, "perm", tuple(reversed(range(rank))))
    axes = at.axes(node.inputs[0])
    at.give(node.outputs[0], {new: axes[old] for new, old in enumerate(order) if old in axes})


def squeeze(node: Node, at: Tracer) -> None:
    """Renumber axes; one with channels has more than one entry, or cannot be taken out."""
    dims = at.dims(node.inputs[0])
    taken = _axes_of(node, at, 1, len(dims))
    if taken is None:
        taken = tuple(axis for axis, size in enumerate(dims) if size == 1)
    _drop(node, at, taken, "takes out an axis of channels")


def unsqueeze(node: Node, at: Tracer) -> None:
    """Renumber axes."""
    rank = at.rank(node.inputs[0])
    count = len(_given(node, at, 1) or ())
    added = {positive(axis, rank + count) for axis in _given(node, at, 1) or ()}
    kept = [axis for axis in range(rank + count) if axis not in added]
    at.give(node.outputs[0], {kept[axis]: array for axis, array in at.axes(node.inputs[0]).items()})


def reduce(node: Node, at: Tracer) -> None:
    """Pass on axes that are not reduced."""
    rank = at.rank(node.inputs[0])
    taken = _axes_of(node, at, 1, rank)
    if not taken:
        taken = () if attribute(node, "noop_with_empty_axes", 0) else tuple(range(rank))
    _reduce(node, at, taken)


def find_along_axis(node: Node, at: Tracer) -> None:
    """Pass on all axes but the one that is searched: ArgMax, ArgMin."""
    _reduce(node, at, (positive(int(attribute(node, "axis", 0)), at.rank(node.inputs[0])),))


def _reduce(node: Node, at: Tracer, taken: tuple[int, ...]) -> None:
    reason = f"{node.op_type} reduces over the channels"
    if attribute(node, "keepdims", 1):
        rank = at.rank(node.inputs[0])
        at.pin_other_axes(node, node.inputs[0], [axis for axis in range(rank) if axis not in taken], reason)
        at.give(node.outputs[0], {axis: array for axis, array in at.axes(node.inputs[0]).items() if axis not in taken})
    else:
        _drop(node, at, taken, reason)


def _drop(node: Node, at: Tracer, taken: tuple[int, ...], reason: str) -> None:
    rank = at.rank(node.inputs[0])
    left = [axis for axis in range(rank) if axis not in taken]
    at.pin_other_axes(node, node.inputs[0], left, reason)
    axes = at.axes(node.inputs[0])
    at.give(node.outputs[0], {new: axes[old] for new, old in enumerate(left) if old in axes})


def _given(node: Node, at: Tracer, place: int) -> tuple[int, ...] | None:
    """Return the axes of a node: an attribute, later an input."""
    result = attribute(node, "axes", None)
    if result is not None:
        return tuple(int(value) for value in result)
    if len(node.inputs) <= place or node.inputs[place] is None:
        return None
    return at.integers(node.inputs[place], "axes")


def _axes_of(node: Node, at: Tracer, place: int, rank: int) -> tuple[int, ...] | None:
    result = _given(node, at, place)
    return None if result is None else tuple(positive(number, rank) for number in result)


_REDUCTIONS = (
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin"),
    *("ReduceProd", "ReduceSum", "ReduceSumSquare"),
)
RULES = {
    "Transpose": Rule(transpose),
    "Squeeze": Rule(squeeze),
    "Unsqueeze": Rule(unsqueeze),
    "ArgMax": Rule(find_along_axis),
    "ArgMin": Rule(find_along_axis),
    **{op: Rule(reduce) for op in _REDUCTIONS},
}
